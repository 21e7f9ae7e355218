"""Explicit-state checking: the code that ships, driven through every interleaving of a small world.

`explore.py` visits the states of a space (`spaces.py`), `world.py` has the possible next steps, `automaton.py` runs the
real code of one process, `owner.py` is that process: the dual write's steps over the real producer state machine, and
`kafka_model.py` the broker: the emulator's pure decisions, and one partition.
"""
