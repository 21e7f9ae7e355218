"""The sink's database: decisions and attempts, and the rows of the table that is written in the same commit.

May import `attempt/states.py` and `attempt/record_encoder.py`, and the modules at the top; uses no Spark and no Kafka.

Open first: `commit_store.py` for decisions, `dual_table.py` for the table.
"""
