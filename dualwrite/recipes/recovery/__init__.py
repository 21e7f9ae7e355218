"""Complete the transactions that crashed processes left open, for many transactional ids at once.

`plan.py` is the table of the actions for an id, and the report; `service.py` carries them out; `adoption.py` decides
which of two copies of a database keeps its ids. May import `core/`, `sql/`, `sqlalchemy/` and the admin client. Open
first: `plan.py`.
"""
