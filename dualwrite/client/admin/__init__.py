"""The calls of `dualwrite.admin`: each queries the brokers responsible for its keys until every key has a result.

May import the wire, the settings, the errors and `records/record.py`, but nothing of the transaction manager. Open
first: `calls.py`, then `driver.py`, which repeats requests.
"""
