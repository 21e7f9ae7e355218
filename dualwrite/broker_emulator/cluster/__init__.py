"""The cluster of one emulator: nodes, topics, partitions, leaders, reassignments and features.

Of the APIs it imports the registry and the call alone. Open first: `cluster.py`.

Imports of its neighbours: `api`, `configs`, `faults`, `groups`, `log`, `metrics`, `quotas`, `security`, `share`,
`storage`, `transactions`.
"""
