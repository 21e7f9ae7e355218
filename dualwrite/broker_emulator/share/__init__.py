"""Share-partitions (KIP-932): the records in flight of each for a share group, and their persisted state.

Start with `share_partition.py`, which decides which member gets which records; `states.py` has the tables of states.
The persisted state is in `state.py` and `state_records.py` (records of `__share_group_state`), sessions are in
`leader.py`. The groups and their members are in `groups/share/`.

Only the shells (`state_coordinator.py`, `leader.py`) do I/O and read a clock.

Imports of its neighbours: `configs`, `log`, `topics`, `transactions`.
"""
