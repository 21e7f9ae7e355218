"""The group coordinator: classic and consumer groups, their members, and committed offsets.

Start with `coordinator.py`, which finds the shard of a group; a shard (`shard.py`) holds the groups and offsets of one
`__consumer_offsets` partition, stores decisions and carries them out. The decisions are pure: `membership.py` and
`rebalance.py` for classic groups, `offsets.py` for commits and expiry, the folder `consumer` for KIP-848's groups.
`replay.py` rebuilds all of it from the records (`records.py`, `consumer/records.py`).

The shells (coordinator, shard, `consumer/service.py`) may import the cluster, its replication, the log and the clock;
everything else does no I/O and reads no clock.

Imports of its neighbours: `cluster`, `configs`, `log`, `share`.
"""
