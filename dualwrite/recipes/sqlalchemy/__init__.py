"""Dual writes with SQLAlchemy: Engine, Connection and Session, blocking and awaited.

Open first: `writer.py`; `state_table.py` locks and writes the row that decides.
"""
