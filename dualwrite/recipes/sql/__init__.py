"""SQL that several backends share, as text, pure functions and generators of statements.

Covers which tables a writer uses, whose transactional ids a database owns, how PostgreSQL locks the state row and makes
a commit durable, and what a statement sent as text does to its transaction. The backends in `sqlalchemy/` and
`psycopg/` execute the statements. Imports `dualwrite.errors` and `core/`, no database library and no backend.
Open first: `pinned_tables.py`, then `postgres.py`.
"""
