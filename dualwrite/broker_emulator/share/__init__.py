"""Share groups (KIP-932): membership, the records in flight of each share-partition, and their persisted state.

Start with `share_partition.py`, which decides which member gets which records; `states.py` has the tables of states.
Membership is in `group.py`, `membership.py` and `group_records.py` (records of `__consumer_offsets`), the persisted
state in `state.py` and `state_records.py` (records of `__share_group_state`), sessions in `leader.py`.

The shells (`groups_service.py` at the group coordinator, `state_coordinator.py`, `leader.py`) may import the cluster,
the log and the clock; everything else does no I/O and reads no clock.

Imports of its neighbours: `cluster`, `configs`, `groups`, `log`, `transactions`.
"""
