"""A Delta or Iceberg table that follows the decisions of the store: files are written before, and added afterwards.

Open `publishing.py` first; `table_log.py` is the port of both formats. Of the store it imports the port and its types.
Only `delta_log.py` imports deltalake, only `iceberg_log.py` pyiceberg, and only `iceberg_pointer.py` a database's
library, for catalogs; all of them only where a table is read.

Imports of its neighbours: `store`.
"""
