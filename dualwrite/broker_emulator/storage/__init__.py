"""Where a cluster keeps what it has: memory, or a data directory that survives crashes.

Open first: `storage.py`.
"""
