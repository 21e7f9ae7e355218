"""The slot policy "leased ids": many dual writes at once, each under a transactional id that its process leases.

Imports no database library. Open first: `coordinator.py`, then `slots.py`, which has the turns. The
public pools are defined in `sqlalchemy/writer.py` and `psycopg/writer.py`.

Imports of its neighbours: `core`.
"""
