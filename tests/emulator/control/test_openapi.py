"""The OpenAPI document of the control port: it is complete, and every response fits its schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dualwrite.broker_emulator.control.endpoints import ENDPOINTS
from tests.emulator.control.client import Client
from tests.emulator.control.conftest import Transaction


@pytest.fixture
def described(client: Client) -> Any:
    return client.get("/v1/openapi.json")


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (element for name, element in value.items() if name == "$ref")
        yield from (found for element in value.values() for found in references(element))
    elif isinstance(value, list):
        yield from (found for element in value for found in references(element))


def test_every_endpoint_is_described(described: Any) -> None:
    assert described["openapi"] == "3.1.0"
    operations = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert operations == {(endpoint.method, endpoint.template) for endpoint in ENDPOINTS}
    ids = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


def test_every_reference_leads_somewhere(described: Any) -> None:
    schemas = described["components"]["schemas"]
    named = {reference.removeprefix("#/components/schemas/") for reference in references(described)}
    assert named == set(schemas)


def closed(value: Any) -> Any:
    """Return a schema whose objects have no other properties than those that it names."""
    if isinstance(value, list):
        return [closed(element) for element in value]
    if not isinstance(value, dict):
        return value
    limit = {"additionalProperties": False} if "properties" in value else {}
    return {name: closed(element) for name, element in value.items()} | limit


def check(body: Any, schema: Any, described: Any) -> None:
    Draft202012Validator(closed({**schema, "components": described["components"]})).validate(body)


def test_answers_are_as_described(client: Client, described: Any, transaction: Transaction) -> None:
    client.post("/v1/faults", {"api": "Fetch", "action": {"type": "Delay", "duration_ms": 1}}, 201)
    client.post("/v1/holds", {"point": "before-load", "node": 1}, 201)
    names = {"fault_id": 1, "hold_id": 1, "node": 0, "topic": "orders", "partition": 0}
    asked = 0
    for path, methods in described["paths"].items():
        content = methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        if schema is None or path == "/v1/openapi.json":
            continue
        query = "?hits=1&timeout_ms=1" if path.endswith("/wait") else ""
        answer = client.ask("GET", path.format_map({**names, "group": "g"}) + query)
        if answer.status == 200:
            check(answer.body, schema, described)
            asked += 1
        else:
            check(answer.body, {"$ref": "#/components/schemas/ErrorResponse"}, described)
    assert asked >= 14
