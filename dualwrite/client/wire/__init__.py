"""Connections to brokers and the messages on them: frames, API versions, TLS, logins, metadata.

May import the settings, the errors, `messages`, `pacing`, `error_texts` and `records/record.py`, but no other records
module and nothing of the transaction manager. Open first: `connection.py`, then `cluster.py`, which users lease.
"""
