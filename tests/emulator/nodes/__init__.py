"""Several brokers."""
