"""Read from Kafka, write a database and Kafka, each input record in effect exactly once.

Open first: `steps.py`.
"""
