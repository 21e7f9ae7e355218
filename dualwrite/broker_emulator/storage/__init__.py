"""Storage of a cluster: memory, or a data directory that survives crashes.

Open first: `storage.py`, the protocol and the storage in memory.

Imports of its neighbours: `log`.
"""
