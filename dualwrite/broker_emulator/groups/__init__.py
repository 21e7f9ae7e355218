"""The group coordinator: classic, consumer and share groups, their members, and committed offsets.

Start with `coordinator.py`, which finds the shard of a group; a shard (`shard.py`) holds the groups and offsets of one
`__consumer_offsets` partition, stores decisions and carries them out. The decisions are pure: `membership.py` and
`rebalance.py` for classic groups, `offsets.py` for commits and expiry, the folders `consumer` for KIP-848's groups and
`share` for KIP-932's.
`replay.py` rebuilds all of it from the records (`records.py`, `consumer/records.py`).

Only the shells (coordinator, shard, `shard_offsets.py`, `consumer/service.py`, `share/service.py`) do I/O and read a
clock.

Imports of its neighbours: `configs`, `log`, `share`, `topics`.
"""
