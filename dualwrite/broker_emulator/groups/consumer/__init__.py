"""Consumer groups whose coordinator assigns the partitions (KIP-848), and migration from and to classic groups.

Start with `membership.py`, which decides heartbeats. A decision takes a group (`group.py`) through the steps of
`change.py`: a new target assignment (`assignors.py`) and the reconciliation of members. The
tables in `states.py` check the steps. Everything is pure apart from `service.py`, which stores the decisions.

May import the classic groups' values and requests, the cluster's topics and settings.
"""
