"""The APIs of the broker: one file per API key, such as `k26_end_txn.py`, with its rules and its handler.

The handlers import the cluster and the packages that their API concerns. Only the server, the faults and the quotas
import from here, and only `registry.py` imports handlers. Open first: `registry.py`, then `call.py`, then any API.
"""
