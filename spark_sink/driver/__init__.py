"""What the driver does: plan a batch, decide it, tell Kafka, and recover what a crash left.

Open first: `protocol.py`.
"""
