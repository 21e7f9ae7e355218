"""The cluster of one emulator: nodes, topics, partitions, leaders, reassignments and features.

Imports the log, the storage, the coordinators (transactions, groups), faults, quotas and security, but neither `net`
nor the files of the APIs. Open first: `cluster.py`.
"""
