"""The cluster of one emulator: nodes, topics, partitions, leaders, reassignments and features.

Open first: `cluster.py`.
"""
