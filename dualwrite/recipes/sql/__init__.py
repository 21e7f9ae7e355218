"""SQL that the backends share: row locks, durability, pinned tables, and what a text does to its transaction.

Holds statements and pure functions; the backends in `sqlalchemy/` and `psycopg/` carry them out.
"""
