"""Records on their way: arguments of `send()` become record batches, and Produce responses become results of futures.

May import the errors, the settings, and of the client `pacing`, `metrics` and `wire/kafka_python.py`; `bulk.py`,
`arrow.py` and `record_future.py` also import the producer's core. Open first: `accumulator.py`.
"""
