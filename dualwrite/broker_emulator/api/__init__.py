"""The APIs of the broker: a file for each subject, with the handler of each API and its rules.

The handlers import the cluster and the packages that their API concerns. Only the server, the faults and the quotas
import from here, and only `registry.py` imports handlers. Open first: `registry.py`, then `call.py`, then any API.
"""
