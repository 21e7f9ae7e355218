"""The sink's database: decisions and attempts, and the rows of the table that is written in the same commit.

Uses no Spark and no Kafka. Open first: `commit_store.py` for decisions, `attempt_states.py` for the states of an
attempt, `dual_table.py` for the table.

Imports of its neighbours: none.
"""
