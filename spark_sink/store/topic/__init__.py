"""The commit store in one partition of a topic: a log of compare-and-set records, for pipelines without a database.

`docs/decisions/a-store-in-a-topic.md` has the reasons. `records.py`, `state.py`, `rows.py` and `operations.py` are
pure: the records, the rule by which they count, and the changes that each operation of the store makes. `replica.py`
reads the log into a state and sends records; `topic_store.py` is the store. `log.py` is the port to the log, and
`kafka_log.py` implements it.

Open first: `state.py` for the rule, `topic_store.py` for the store.
"""
