"""Change a database and publish to Kafka atomically, across every crash."""
