"""The commit store in one partition of a topic: a log of compare-and-set records, for pipelines without a database.

`docs/decisions/a-store-in-a-topic.md` says why it is so. `records.py`, `state.py`, `rows.py` and `operations.py` are
pure: a record, the rule by which it counts, and what each operation of the store changes. `replica.py` reads the log
into a state and sends records; `topic_store.py` is the store. `log.py` is the port to the log, and `kafka_log.py`
implements it.

Open first: `state.py` for the rule, `topic_store.py` for the store.
"""
