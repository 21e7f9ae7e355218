"""The calls of `dualwrite.admin`: each queries the brokers responsible for its keys until every key has a result.

Open first: `calls.py` and `ending.py`, then `driver.py`, which repeats requests. Of the records it imports
`record.py` alone.

Imports of its neighbours: `records`, `wire`.
"""
