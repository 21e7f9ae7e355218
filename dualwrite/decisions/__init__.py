"""Decisions that a database takes for Kafka: by a state row, or by the rows of the Spark sink's commit store.

Both need a database that keeps a decision (`database_safety.py`), topics whose records can be published again
(`obstacles.py`), and the end of a transaction whose coordinator has forgotten it (`republish.py`); `by_row.py` has the
outcomes that a state row decides. Imports neither the recipes nor the sink.
"""
