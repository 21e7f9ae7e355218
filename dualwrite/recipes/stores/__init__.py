"""Dual writes on key-value stores: RocksDB and ZooKeeper.

May import `core/`, the identity of `sql/database_identity.py` and the store's own client library. Open first:
`key_value.py`, which both share.
"""
