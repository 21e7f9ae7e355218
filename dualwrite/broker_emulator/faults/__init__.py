"""Declarative faults: which requests are hit, how often, and the action on them instead of normal service.

Open `fault.py` first: it defines a fault, and reads the names in a request. `actions.py` has the actions of faults,
`registry.py` the faults in place; `service.py` carries an action out. `partition_errors.py` fails a part of a request,
`markers.py` applies faults to the markers between nodes. Only `markers.py` imports the tables of `api/`.

Imports of its neighbours: `api`, `cluster`, `transactions`.
"""
