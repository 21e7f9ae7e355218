"""Dual writes on key-value stores: RocksDB and ZooKeeper.

Open first: `key_value.py`, which they share.
"""
