"""Deterministic simulation: writers, brokers, a database and a network in one process, on one virtual clock.

A seed determines everything: the tier, the workload, each latency, each fault, and which process runs next. The same
seed has the same history, byte for byte. `run.py` runs one seed; `python -m tests.proof.simulate --seed N` prints it.

`loop.py` is the event loop and its clock, `network.py` the connections, `determinism.py` replaces all other input from
outside. `brokers.py` has the emulator's nodes, with the client's and the emulator's real code on both ends of the wire,
`disk.py` their files, `database.py` and `leases.py` the database, `application.py` the processes that write,
`faults.py` the faults, `history.py` the observations, `judge.py` the invariants.
"""
