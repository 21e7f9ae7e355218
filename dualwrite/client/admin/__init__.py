"""The calls of `dualwrite.admin`: each asks the brokers that answer for its keys, until each key has an answer.

Open first: `calls.py`.
"""
