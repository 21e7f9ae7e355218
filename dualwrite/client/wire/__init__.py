"""Connections to brokers, and the messages on them: frames, versions, logins, metadata.

Imports nothing of the transaction manager or of the records. Open first: `connection.py`, then `cluster.py`.
"""
