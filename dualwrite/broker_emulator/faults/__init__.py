"""Declarative faults: which requests are hit, how often, and the action on them instead of normal service.

Open `fault.py` first: it defines a fault, and reads the names in a request. `actions.py` has the actions of faults,
`registry.py` the faults in place; `service.py` carries an action out.

Imports of its neighbours: `messages`.
"""
