"""Dual writes to a database and to Kafka: the recipes of KIP-939."""
