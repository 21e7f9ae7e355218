"""A Delta table that follows the decisions of the store: tasks write its files before, and they are added afterwards.

Open `publishing.py` first. May import `spark_sink.store`'s port and what it exchanges, never a database's library; only
`delta_log.py` imports deltalake, and only where a table is read.
"""
