"""The APIs of the broker: a file for each subject, with the handler of each API and its rules.

Only `registry.py` imports handlers. Open first: `registry.py`, then any API.

Imports of its neighbours: `cluster`, `configs`, `groups`, `log`, `messages`, `quotas`, `security`, `share`, `storage`,
`topics`, `transactions`.
"""
