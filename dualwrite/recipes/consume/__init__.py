"""Read from Kafka, write to a database and to Kafka, each input record in effect exactly once.

Open first: `consume.py`, the public class; then `steps.py`, one step of it.

Imports of its neighbours: `core`, `sql`, `sqlalchemy`.
"""
