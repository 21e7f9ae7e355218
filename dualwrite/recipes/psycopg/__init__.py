"""Dual writes with psycopg and nothing above it, blocking and awaited, alone, pooled and in groups.

Open first: `writer.py`, then `adapter.py`, which locks and writes the row that decides.
"""
