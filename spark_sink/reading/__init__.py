"""The Kafka source: which offsets a query reads, and how the tasks read them.

May import the modules at the top, and `driver/batch_log.py`. Only `source.py` imports Spark; only `kafka_python.py` and
`librdkafka.py` import a Kafka library.

Open first: `source.py`.
"""
