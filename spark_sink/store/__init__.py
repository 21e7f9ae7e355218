"""The database of the sink: decisions, attempts, and the rows of the table that is written in the same commit.

Open first: `commit_store.py`.
"""
