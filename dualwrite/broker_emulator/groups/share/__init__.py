"""Share groups (KIP-932) at the group coordinator: their members, and which share-partitions have state.

Everything is pure apart from `service.py`, which stores the decisions of `membership.py` and `partition_states.py`.
"""
