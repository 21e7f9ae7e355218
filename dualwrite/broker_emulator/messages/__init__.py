"""Kafka's messages: their schemas and bounds, the codec, and `Call`, a request that is being served.

Open first: `schema.py`, one version of one API, then `call.py`.

Imports of its neighbours: `log`, `security`, `topics`.
"""
