"""The steps of a dual write with the database and with Kafka, and their order, for any database.

Imports no database library. Open first: `coordinator.py`, then `store.py`, the contract that a backend fulfils.
`dual_write.py` has the handle of a block; `owned_id.py` and `completion.py` are the coordinator's parts.

Imports of its neighbours: none.
"""
