"""Read from Kafka, write to a database and to Kafka, each input record in effect exactly once.

May import `core/`, `sqlalchemy/` (for offsets in the database), the producer and the admin client. Open first:
`consume.py`, the public class; then `steps.py`, one step of it.
"""
