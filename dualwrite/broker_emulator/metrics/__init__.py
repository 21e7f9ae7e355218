"""What the emulator knows of its own work: counted as it goes, gathered when somebody asks.

`counters.py` is what requests pass by, `response_errors.py` finds the error codes in their answers, `collect.py`
gathers everything into a `snapshot.py`, and `prometheus.py` writes that as text.
"""
