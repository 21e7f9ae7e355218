"""How Kafka is read for Spark, which asks for it in `spark_sink.reading.source`; only that module imports Spark."""
