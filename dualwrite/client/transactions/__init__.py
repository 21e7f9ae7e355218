"""The transactional producer without sockets: states, take-over, recovery, and the next request.

No sockets, threads or clocks: times and responses are arguments. It imports the values of `records/record.py` and the
version tables of `wire/versions.py`. Open first: `states.py`, then `manager.py`.

Imports of its neighbours: `records`, `wire`.
"""
