"""The Kafka source: which offsets a query reads, and how the tasks read them.

Of the driver it imports `batch_log.py` alone. Only `source.py` imports Spark; only `kafka_python.py` and
`librdkafka.py` import a Kafka library.

Open first: `source.py`.

Imports of its neighbours: `driver`.
"""
