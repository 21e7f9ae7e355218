"""The registry over HTTP: its codes, its state across restarts and failovers, and hostile requests."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from dualwrite import Producer
from dualwrite.broker_emulator import Acl, AclOperation, ResourceType
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.schema_registry import decisions, errors, schemas
from dualwrite.broker_emulator.schema_registry.endpoints import ENDPOINTS
from tests.emulator.hostile.turns import watched
from tests.support.conditions import until

INT, LONG, TEXT = ({"schema": f'"{kind}"'} for kind in ("int", "long", "string"))
TYPE = "application/vnd.schemaregistry.v1+json"


class Answer(NamedTuple):
    status: int
    body: Any
    content_type: str | None


def ask(url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method, path, raw, {"Content-Type": TYPE, **(headers or {})})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return Answer(response.status, json.loads(text) if text else None, response.headers["Content-Type"])


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(schema_registry="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def url(emulator: Emulator) -> str:
    return emulator.schema_registry_url


def code(answer: Answer) -> tuple[int, int]:
    assert answer.content_type == TYPE
    return answer.status, answer.body["error_code"]


def test_the_codes(url: str) -> None:
    assert ask(url, "GET", "/") == (200, {}, TYPE)
    assert ask(url, "GET", "/schemas/types").body == ["JSON", "PROTOBUF", "AVRO"]
    assert code(ask(url, "GET", "/subjects/a/versions")) == (404, 40401)
    assert code(ask(url, "GET", "/subjects/a/versions/1")) == (404, 40401)
    assert code(ask(url, "GET", "/schemas/ids/1")) == (404, 40403)
    assert ask(url, "POST", "/subjects/a/versions", INT).body["id"] == 1
    assert code(ask(url, "GET", "/subjects/a/versions/2")) == (404, 40402)
    assert code(ask(url, "GET", "/subjects/a/versions/x")) == (422, 42202)
    assert code(ask(url, "POST", "/subjects/a", LONG)) == (404, 40403)
    assert code(ask(url, "POST", "/subjects/a/versions", TEXT)) == (409, 40901)
    assert code(ask(url, "POST", "/subjects/a/versions", {"schema": "{"})) == (422, 42201)
    assert code(ask(url, "POST", "/subjects/a/versions", {})) == (422, 42201)
    assert code(ask(url, "POST", "/subjects/a/versions", {**INT, "schemaType": "XML"})) == (422, 42201)
    assert code(ask(url, "POST", "/subjects/a/versions", {**INT, "ruleSet": {"domainRules": [1]}})) == (422, 42210)
    assert code(ask(url, "PUT", "/config", {"compatibility": "ALL"})) == (422, 42203)
    assert code(ask(url, "PUT", "/config/a", {"compatibility": "FULL", "alias": "b"})) == (422, 42205)
    assert code(ask(url, "GET", "/config/a")) == (404, 40408)
    assert code(ask(url, "GET", "/mode/a")) == (404, 40409)
    assert code(ask(url, "PUT", "/mode", {"mode": "OFF"})) == (422, 42204)
    assert code(ask(url, "DELETE", "/subjects/a?permanent=true")) == (404, 40405)
    assert ask(url, "DELETE", "/subjects/a").body == [1]
    assert code(ask(url, "DELETE", "/subjects/a")) == (404, 40404)
    assert ask(url, "GET", "/subjects").body == []
    assert ask(url, "GET", "/subjects?deleted=true").body == ["a"]
    assert ask(url, "GET", "/schemas/ids/1").body["schema"] == '"int"'
    assert ask(url, "DELETE", "/subjects/a?permanent=true").body == [1]
    assert code(ask(url, "GET", "/schemas/ids/1")) == (404, 40403)
    assert code(ask(url, "GET", "/nothing")) == (404, 404)
    assert code(ask(url, "PATCH", "/subjects")) == (405, 405)
    assert code(ask(url, "POST", "/subjects/a/versions", b"{")) == (400, 400)
    assert code(ask(url, "POST", "/subjects/a/versions", b"[]")) == (400, 400)
    assert code(ask(url, "POST", "/subjects/a/versions", INT, {"Content-Type": "text/xml"})) == (415, 415)
    assert code(ask(url, "POST", "/subjects/a/versions", INT, {"Origin": "http://evil.example"})) == (403, 403)


def test_confluents_client(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    schema = Schema('{"type": "int"}', "AVRO")
    subject = "orders/ä value"
    registered = client.register_schema_full_response(subject, schema)
    assert (registered.schema_id, registered.version, client.register_schema(subject, schema)) == (1, 1, 1)
    assert client.get_schema(1).schema_str == '"int"'
    assert registered.guid is not None
    assert client.get_schema_by_guid(registered.guid).schema_str == '"int"'
    assert client.get_subjects_by_schema_id(1) == [subject]
    assert [(each.subject, each.version) for each in client.get_schema_versions(1)] == [(subject, 1)]
    assert client.lookup_schema(subject, schema).version == 1
    client.set_compatibility(subject, "FULL_TRANSITIVE")
    assert (client.get_compatibility(subject), client.get_compatibility()) == ("FULL_TRANSITIVE", "BACKWARD")
    long = Schema('"long"', "AVRO")
    assert not client.test_compatibility(subject, long)
    assert not client.test_compatibility_all_versions(subject, long)
    with pytest.raises(SchemaRegistryError, match="cannot read it: TYPE_MISMATCH"):
        client.register_schema(subject, long)
    assert client.delete_config(subject).compatibility_level == "FULL_TRANSITIVE"
    assert client.register_schema(subject, long) == 2
    assert client.get_latest_version(subject).version == 2
    assert client.delete_version(subject, 2) == 2
    assert client.get_versions(subject) == [1]
    assert client.update_global_mode("READONLY") == "READONLY"
    with pytest.raises(SchemaRegistryError, match="read-only mode; nothing was changed"):
        client.register_schema("other", long)
    assert client.get_global_mode() == "READONLY"
    assert client.get_contexts() == ["."]


def test_references(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    item = Schema('{"type": "record", "name": "Item", "fields": []}', "AVRO")
    order = '{"type": "record", "name": "Order", "fields": [{"name": "item", "type": "Item"}]}'
    with pytest.raises(SchemaRegistryError, match='No schema reference found for subject "item" and version 1'):
        client.register_schema("order", Schema(order, "AVRO", [SchemaReference("Item", "item", 1)]))
    client.register_schema("item", item)
    order_id = client.register_schema("order", Schema(order, "AVRO", [SchemaReference("Item", "item", 1)]))
    assert client.get_schema(order_id).references == [SchemaReference("Item", "item", 1)]
    assert client.get_referenced_by("item", 1) == [order_id]
    with pytest.raises(SchemaRegistryError, match="One or more references exist") as caught:
        client.delete_subject("item")
    assert caught.value.error_code == 42206
    client.delete_subject("order")
    assert client.delete_subject("item") == [1]


def test_an_unsupported_schema_is_refused_and_not_registered(url: str) -> None:
    schema = {"schemaType": "JSON", "schema": '{"type": "string", "pattern": "a"}'}
    other = {"schemaType": "JSON", "schema": '{"type": "string", "pattern": "b"}'}
    ask(url, "POST", "/subjects/a/versions", schema)
    answer = ask(url, "POST", "/subjects/a/versions", other)
    assert code(answer) == (422, 42205)
    assert "Nothing was registered. Set the subject's compatibility to NONE" in answer.body["message"]
    assert ask(url, "GET", "/subjects/a/versions").body == [1]
    ask(url, "PUT", "/config/a", {"compatibility": "NONE"})
    assert ask(url, "POST", "/subjects/a/versions", other).body["version"] == 2


def test_simultaneous_requests_register_one_version(url: str) -> None:
    answers: list[Answer] = []

    def register(number: int) -> None:
        answers.append(ask(url, "POST", "/subjects/a/versions", (INT, LONG)[number % 2]))

    ask(url, "PUT", "/config", {"compatibility": "NONE"})
    threads = [threading.Thread(target=register, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.body["id"] for answer in answers) == [1] * 6 + [2] * 6
    assert ask(url, "GET", "/subjects/a/versions").body == [1, 2]


# ---- durability --------------------------------------------------------------------------------------------------


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    with Emulator(schema_registry="127.0.0.1:0", data_dir=tmp_path / "kafka") as emulator:
        url = emulator.schema_registry_url
        for subject in ("a", "b", "c"):
            ask(url, "POST", f"/subjects/{subject}/versions", INT)
        ask(url, "POST", "/subjects/a/versions", LONG)
        ask(url, "PUT", "/config/a", {"compatibility": "FULL"})
        ask(url, "PUT", "/mode/b", {"mode": "READONLY"})
        ask(url, "DELETE", "/subjects/c")
    with Emulator(schema_registry="127.0.0.1:0", data_dir=tmp_path / "kafka") as emulator:
        url = emulator.schema_registry_url
        assert ask(url, "GET", "/subjects").body == ["a", "b"]
        assert ask(url, "GET", "/subjects?deleted=true").body == ["a", "b", "c"]
        assert ask(url, "GET", "/subjects/a/versions").body == [1, 2]
        assert ask(url, "GET", "/config/a").body == {"compatibilityLevel": "FULL"}
        assert ask(url, "GET", "/mode/b").body == {"mode": "READONLY"}
        assert ask(url, "POST", "/subjects/d/versions", TEXT).body["id"] == 3


def test_an_unreplicated_schema_is_gone_after_a_failover() -> None:
    """The leader dies with a record before a follower has it: nothing was registered, and no client got a response."""
    with Emulator(nodes=2, schema_registry="127.0.0.1:0") as emulator:
        url = emulator.schema_registry_url
        assert ask(url, "POST", "/subjects/a/versions", INT).body["version"] == 1
        held = emulator.hold_replication("_schemas")
        answers: list[Answer] = []
        thread = threading.Thread(target=lambda: answers.append(ask(url, "POST", "/subjects/a/versions", LONG)))
        thread.start()
        until(lambda: emulator.log("_schemas").log_end_offset == 2)
        assert code(ask(url, "GET", "/subjects/a/versions/2")) == (404, 40402)  # not before it is replicated
        emulator.crash_node(emulator.log("_schemas").leader_id)
        thread.join()
        assert code(answers[0]) == (500, 50001)
        assert ask(url, "GET", "/subjects/a/versions").body == [1]
        held.release()
        assert ask(url, "POST", "/subjects/a/versions", LONG).body["version"] == 2


def test_records_of_another_registry_are_read(emulator: Emulator, url: str) -> None:
    """Records of other clients count, such as a backup or those of Confluent's registry; invalid ones are ignored."""
    key = {"keytype": "SCHEMA", "subject": "a", "version": 4, "magic": 1}
    value = {"subject": "a", "version": 4, "id": 7, "schema": '"int"', "deleted": False}
    records = [
        (b'{"keytype":"NOOP","magic":0}', None),
        (b"no JSON", b"{}"),
        (json.dumps(key).encode(), b"[" * 100_000),
        (json.dumps({**key, "version": -1}).encode(), json.dumps(value).encode()),
        (json.dumps(key).encode(), json.dumps(value).encode()),
    ]
    with Producer(bootstrap_servers=emulator.bootstrap_servers) as producer:
        for name, content in records:
            producer.send("_schemas", content, name)
    assert ask(url, "GET", "/subjects/a/versions").body == [4]
    assert ask(url, "POST", "/subjects/a/versions", LONG).body == {
        "id": 8,
        "version": 5,
        "guid": ask(url, "GET", "/schemas/ids/8").body["guid"],
        "schema": '"long"',
    }


def test_without_its_topic_the_registry_is_unavailable(emulator: Emulator, url: str) -> None:
    admin = AdminClient({"bootstrap.servers": emulator.bootstrap_servers})
    admin.delete_topics(["_schemas"])["_schemas"].result()
    answer = ask(url, "POST", "/subjects/a/versions", INT)
    assert code(answer) == (500, 50001)
    assert "the topic _schemas does not exist; nothing was changed" in answer.body["message"]


# ---- hostile requests --------------------------------------------------------------------------------------------


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '"int"' + "}" * depth


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"[" * 500_000, (400, 400)),
        (b'{"schema": "' + b"x" * (1 << 20) + b'"}', (413, 413)),
        ({"schema": "[" * 300_000}, (422, 42201)),
        ({"schema": nested(10_000)}, (422, 42201)),
        ({"schema": nested(10_000), "schemaType": "JSON"}, (422, 42201)),
        ({"schema": "\ud800"}, (422, 42201)),
        ({"schema": '"int"', "references": [{"name": "a", "subject": "b", "version": 1}] * 200}, (422, 42201)),
        ({"schema": '"int"', "references": 1}, (422, 42201)),
        ({"schema": '"int"', "id": 10**400}, (422, 42205)),
    ],
)
def test_hostile_bodies(url: str, body: Any, expected: tuple[int, int]) -> None:
    assert code(ask(url, "POST", "/subjects/a/versions", body)) == expected
    assert ask(url, "GET", "/subjects").body == []


CHANGES = [
    ("POST", "/subjects/a/versions", LONG),
    ("DELETE", "/subjects/a", None),
    ("DELETE", "/subjects/a/versions/1", None),
    *(
        (method, path, body)
        for name, value in (("config", {"compatibility": "NONE"}), ("mode", {"mode": "READONLY"}))
        for path in (f"/{name}", f"/{name}/a")
        for method, body in (("PUT", value), ("DELETE", None))
    ),
]
READINGS = [
    *(("GET", re.sub("{.*?}", "1", each.template), None) for each in ENDPOINTS if each.method == "GET"),
    *(("POST", path, INT) for path in ("/subjects/a", "/compatibility/subjects/a/versions")),
]
OPEN_TO_ALL = {"/", "/contexts", "/schemas/types"}


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [((), READINGS + CHANGES), ((AclOperation.READ,), CHANGES), ((AclOperation.WRITE,), READINGS)],
)
def test_the_acls_of_the_topic_hold_over_http(
    allowed: tuple[AclOperation, ...], refused: list[tuple[str, str, Any]]
) -> None:
    """A client without a login gets no more over HTTP than the topic's ACLs allow over Kafka."""
    anyone = [
        Acl.allow("User:ANONYMOUS", operation, ResourceType.TOPIC, "_schemas")
        for operation in (AclOperation.READ, AclOperation.WRITE)
    ]
    with Emulator(schema_registry="127.0.0.1:0", acls=anyone) as emulator:
        url = emulator.schema_registry_url
        assert ask(url, "POST", "/subjects/a/versions", INT).status == 200
        before = emulator.records("_schemas")
        emulator.remove_acls()
        for operation in allowed:
            emulator.add_acls(Acl.allow("User:ANONYMOUS", operation, ResourceType.TOPIC, "_schemas", host="127.0.0.1"))
        for method, path, body in refused:
            answer = ask(url, method, path, body)
            if path in OPEN_TO_ALL:
                assert answer.status == 200
                continue
            assert code(answer) == (403, 40301), path
            assert "the ACLs deny User:ANONYMOUS" in answer.body["message"]
        assert emulator.records("_schemas") == before
        if AclOperation.READ in allowed:
            assert ask(url, "GET", "/subjects").body == ["a"]


@pytest.mark.parametrize(
    ("module", "limit", "value"),
    [(decisions, "MAX_COMPARED_TEXT", 15), (errors, "MAX_OF_DECISION", 3)],
)
def test_earlier_versions_are_parsed_once_and_compared_up_to_a_limit(
    url: str, monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str, value: int
) -> None:
    ask(url, "PUT", "/config/a", {"compatibility": "NONE"})
    for body in (INT, LONG, {"schema": '"float"'}):
        assert ask(url, "POST", "/subjects/a/versions", body).status == 200
    ask(url, "PUT", "/config/a", {"compatibility": "FULL_TRANSITIVE"})
    parsed: list[str] = []

    def parse(schema: schemas.Schema, resolved: schemas.Resolved) -> schemas.ParsedSchema:
        parsed.append(schema.text)
        return schemas.parsed(schema, resolved)

    monkeypatch.setattr(decisions, "parsed", parse)
    double = {"schema": '"double"'}
    assert code(ask(url, "POST", "/subjects/a/versions", double)) == (409, 40901)
    assert parsed == ['"double"', '"float"', '"long"', '"int"']
    monkeypatch.setattr(module, limit, value)
    refused = ask(url, "POST", "/subjects/a/versions", double)
    assert code(refused) == (422, 42209)
    assert "nothing was registered: delete versions, or set a compatibility" in refused.body["message"]
    ask(url, "PUT", "/config/a", {"compatibility": "BACKWARD"})
    assert ask(url, "POST", "/subjects/a/versions", double).status == 200


def test_foreign_records_are_read_in_slices_and_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each start reads them all, and starts."""
    many = 2000
    values = [(b"no JSON", b"{}"), (b'{"keytype":"SCHEMA"}', b"{}"), (b"[" * 2000, None), (b"\xff", b"")]
    last = json.dumps({"keytype": "CONFIG", "subject": "a", "magic": 0}).encode(), b'{"compatibilityLevel":"FULL"}'
    with Emulator(schema_registry="127.0.0.1:0", data_dir=tmp_path / "kafka") as emulator:
        with Producer(bootstrap_servers=emulator.bootstrap_servers, batch_size=1 << 20, linger_ms=50) as producer:
            for key, value in [*values * (many // len(values)), last]:
                producer.send("_schemas", value, key)
        with watched(emulator, 1000) as turns:
            assert ask(emulator.schema_registry_url, "GET", "/config/a").body == {"compatibilityLevel": "FULL"}
        assert turns.longest < 20_000
    caplog.clear()
    with Emulator(schema_registry="127.0.0.1:0", data_dir=tmp_path / "kafka") as emulator:
        assert ask(emulator.schema_registry_url, "GET", "/config/a").body == {"compatibilityLevel": "FULL"}
    told = [record.getMessage() for record in caplog.records if "not the registry's" in record.getMessage()]
    assert [re.sub(r"\(.*", "", line) for line in told] == [
        f"_schemas has records that are not the registry's and are ignored: {many}, the first at offset 0 "
    ]


def test_the_address(url: str) -> None:
    with pytest.raises(ValueError, match="schema_registry takes host:port, not '8081'"):
        Emulator(schema_registry="8081")
    port = urlsplit(url).port
    with pytest.raises(OSError, match=f"the schema registry cannot listen on 127.0.0.1:{port}: address already in use"):
        Emulator(schema_registry=f"127.0.0.1:{port}").start()
    emulator = Emulator(schema_registry="127.0.0.1:0")
    with emulator:
        assert emulator.schema_registry_url.startswith("http://127.0.0.1:")
    assert emulator.schema_registry_url == ""
