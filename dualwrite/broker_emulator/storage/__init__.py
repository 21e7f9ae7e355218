"""Storage of a cluster: memory, or a data directory that survives crashes.

Imports the log and the settings. Open first: `storage.py`, the protocol and the storage in memory.
"""
