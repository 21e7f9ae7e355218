"""Topics and partitions: their names, replicas and leaders, and the wait for replication.

Open first: `topics.py`.

Imports of its neighbours: `configs`, `log`.
"""
