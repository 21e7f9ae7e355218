"""Tests that show whether a database can be used for dual writes. Run them against your own:

    python -m dualwrite.testing.conformance postgresql+psycopg://localhost/scratch [options of pytest]

which is short for

    pytest -p dualwrite.testing.conformance.plugin --pyargs dualwrite.testing.conformance --database-url=...

The tests use the database through SQLAlchemy, as `DualWriter` does. If it is reached over a socket, they go through a
relay that can lose connections and responses. Kafka is the emulator. The tables `kafka_transaction_state` and
`dualwrite_conformance` are created if missing; the second is emptied and dropped.
"""
