"""Reading the log: the end of a prepared transaction, and its records.

`reader` sends the requests and repeats them, `transaction_end` decides by the responses, `codec` and `batches` decode
them; only `reader` does I/O.

Imports of its neighbours: `admin`, `records`, `transactions`, `wire`.
"""
