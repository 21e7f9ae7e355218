"""Kafka's settings of brokers, topics, groups and client metrics, and what is set of them."""
