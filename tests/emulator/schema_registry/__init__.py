"""The schema registry beside the brokers."""
