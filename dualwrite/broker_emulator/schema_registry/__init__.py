"""A schema registry beside the brokers: Confluent's REST API, for tests whose serializers need one.

Open `decisions.py` first: pure functions of `state.py` that return the changes of a request. The changes are records of
the topic `_schemas` (`records.py`); the state is built from them, both at start and after each request. `schemas.py`
reads schemas; `avro_schema.py`, `avro_resolution.py`, `json_schema.py` and `protobuf_schema.py` know one kind each.
`service.py` writes the records; `server.py` is the HTTP server, on the connections of `control/http_connection.py`.
Only `emulator.py` imports this package, and only when the registry is enabled.

Imports of its neighbours: `cluster`, `control`, `log`, `security`, `topics`.
"""
