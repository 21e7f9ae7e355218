"""A schema registry beside the brokers: Confluent's REST API, for tests whose serializers need one.

Open `decisions.py` first: what a request changes, as a pure function of `state.py`. The changes are records of the
topic `_schemas` (`records.py`), from which the state is built, at start and after each request alike. `schemas.py`
reads schemas; `avro_schema.py`, `avro_resolution.py`, `json_schema.py` and `protobuf_schema.py` know one kind each.
`service.py` writes the records, `server.py` is the HTTP face, on the connections of `control/http_connection.py`. Only
`emulator.py` imports this package, when the registry is asked for.
"""
