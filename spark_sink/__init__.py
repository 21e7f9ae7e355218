"""An exactly-once PySpark sink into Kafka, and into a table in the same commit."""
