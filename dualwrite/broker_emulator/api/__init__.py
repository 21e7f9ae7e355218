"""The APIs of the broker: one file per API key, such as `k26_end_txn.py`, with its rules and its handler.

The handlers import the cluster and whatever their API concerns; only the server, the faults and the quotas import from
here, and nothing imports a handler but `registry.py`. Open first: `registry.py`, then `call.py`, then any API.
"""
