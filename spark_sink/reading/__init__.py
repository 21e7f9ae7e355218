"""How Kafka is read for Spark; `spark_sink.source` is where Spark asks for it. Nothing in here imports Spark."""
