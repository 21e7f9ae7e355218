"""Complete the transactions that crashed processes left open, for many transactional ids at once.

`seen.py` has the facts about an id, `plan.py` the table of the actions by these facts, and the report; `service.py`
goes through the ids, and `completion.py` carries the actions out; `adoption.py` decides which of two copies of a
database keeps its ids. Open first: `plan.py`.

Imports of its neighbours: `core`, `sql`, `sqlalchemy`.
"""
