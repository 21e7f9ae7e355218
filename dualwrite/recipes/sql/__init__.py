"""SQL that several backends share, as text, pure functions and generators of statements.

Covers the tables of a writer, the transactional ids of a database, PostgreSQL's lock on the state row and durable
commits, and the effect of a statement sent as text on its transaction. The backends in `sqlalchemy/` and `postgres/`
execute the statements. Imports no database library. Open first: `database.py`, then `postgres.py`.

Imports of its neighbours: `core`.
"""
