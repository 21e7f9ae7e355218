"""The transaction coordinator of one node: pure decisions, the log they are written to, and the service around both.

Start with `coordinator.py`: it decides every request, with `init_producer_id.py`. A decision is a transition
(`transitions.py`) between two values of `metadata.py`; `states.py` has the valid steps between states. `service.py`
takes the requests, `execution.py` appends and applies transitions and sends the markers. All steps that bump a producer
epoch are in `transitions.py` (`ended_with_bump`, `fenced_and_aborted`, `kept`), except the step of InitProducerId
without an open transaction: `init_producer_id._initialise`.

`coordinator.py`, `init_producer_id.py`, `transitions.py`, `states.py` and `metadata.py` do no I/O and read no clock.

Imports of its neighbours: `log`, `topics`.
"""
