"""What a database must do for a dual write, as tests that anybody can run against theirs.

    python -m dualwrite.testing.conformance postgresql+psycopg://localhost/scratch [options of pytest]

which is short for

    pytest -p dualwrite.testing.conformance.plugin --pyargs dualwrite.testing.conformance --database-url=...

The database is reached as `DualWriter` does, with SQLAlchemy, and behind a relay where it is behind a socket, so that
connections and answers can be lost. Kafka's side is the emulator. The tables `kafka_transaction_state` and
`dualwrite_conformance` are created where they are missing; the second is emptied and dropped.
"""
