"""The cluster of one emulator: nodes, topics, partitions, leaders, reassignments and features.

Open first: `cluster.py`.

Imports of its neighbours: `configs`, `faults`, `groups`, `log`, `messages`, `quotas`, `security`, `share`, `storage`,
`topics`, `transactions`.
"""
