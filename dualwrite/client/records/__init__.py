"""Records on their way: arguments of `send()` become record batches, and Produce responses become results of futures.

Open first: `accumulator.py`. Only `bulk.py`, `arrow.py` and `record_future.py` import the producer's core.

Imports of its neighbours: none.
"""
