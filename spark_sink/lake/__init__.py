"""A Delta or Iceberg table that follows the decisions of the store: its files are written before, and added afterwards.

Open `publishing.py` first; `table_log.py` is the port of both formats. May import `spark_sink.store`'s port and what it
exchanges. Only `delta_log.py` imports deltalake, only `iceberg_log.py` pyiceberg, and only `iceberg_pointer.py`, for
catalogs, a database's library; all of them only where a table is read.
"""
