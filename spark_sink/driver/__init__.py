"""The driver's side of a batch: plan it, decide it, complete its Kafka transactions, and recover after a crash.

Open first: `protocol.py`.

Imports of its neighbours: `attempt`, `lake`, `store`.
"""
