"""The transactional producer without sockets: states, take-over, recovery, and the next request.

No sockets, threads or clocks: times and responses are arguments. It may import `messages`, `pacing`, `error_texts` and
`producer_port` of `dualwrite.client`, the values of `records.record` and the version tables of `wire.codec`. Open
`states.py` first, then `manager.py`.
"""
