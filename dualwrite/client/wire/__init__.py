"""Connections to brokers and the messages on them: frames, API versions, TLS, logins, metadata.

Open first: `connection.py`, then `cluster.py`, which users lease. Of the records it imports `record.py` alone.

Imports of its neighbours: `records`.
"""
