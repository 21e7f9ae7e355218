"""Dual writes on a key-value store: RocksDB.

May import `core/`, the identity of `sql/database_identity.py` and the store's own client library. Open first:
`key_value.py`, which both share.
"""
