"""Differential fuzzing: `python -m tests.differential --kafka 4.4.0 --sequences 100 --seed 1`.

Seeded sequences of raw requests go to the emulator and to a real Apache Kafka in step. Each response is compared, and
in the end the records of the partitions, of `__transaction_state` and of `__consumer_offsets`. A difference is shrunk
to a minimal sequence. Open `comparison.py` first.
"""
