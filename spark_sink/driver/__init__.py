"""The driver's side of a batch: plan it, decide it, complete its Kafka transactions, and recover after a crash.

May import `attempt/`, `store/` and the modules at the top.

Open first: `protocol.py`.
"""
