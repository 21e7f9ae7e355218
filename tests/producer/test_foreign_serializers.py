"""Unchanged serializers of other codebases: they make the same bytes as for their own producers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import kafka.serializer
import pytest
import sqlalchemy as sa
from confluent_kafka import SerializingProducer
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AsyncAvroSerializer, AvroSerializer
from confluent_kafka.schema_registry.schema_registry_client import AsyncSchemaRegistryClient
from confluent_kafka.serialization import (
    MessageField,
    SerializationContext,
    StringSerializer,
)
from schema_registry.client import SchemaRegistryClient as OtherClient
from schema_registry.client.schema import AvroSchema
from schema_registry.serializers.message_serializer import AvroMessageSerializer

from dualwrite import AsyncProducer, DualWriter, Producer
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.log.record import Record
from dualwrite.errors import InvalidRecordError
from tests.support.registry_values import AVRO, KINDS, ORDER, deserializer, serializer, value


@pytest.fixture(scope="module")
def registry() -> Iterator[Emulator]:
    with Emulator(schema_registry="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def client(registry: Emulator) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.schema_registry_url})


@pytest.fixture
def topic(registry: Emulator, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-100:]
    registry.create_topic(name)
    return name


def content(record: Record) -> tuple[Any, ...]:
    return record.key, record.value, record.headers


def send_with_confluent(registry: Emulator, topic: str, settings: dict[str, Any], **record: Any) -> None:
    producer = SerializingProducer({"bootstrap.servers": registry.bootstrap_servers, **settings})
    producer.produce(topic, **record)
    producer.flush()


@pytest.mark.parametrize(
    "conf", [None, {"schema.id.serializer": header_schema_id_serializer}], ids=["prefix", "header"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_record_is_confluents(
    registry: Emulator, client: SchemaRegistryClient, topic: str, kind: str, conf: dict[str, Any] | None
) -> None:
    settings = {"key_serializer": serializer(kind, client, conf), "value_serializer": serializer(kind, client, conf)}
    with Producer(bootstrap_servers=registry.bootstrap_servers, **settings) as producer:
        producer.send(topic, value(kind), value(kind), headers=[("a", b"b")])
        producer.send(topic, None, value(kind))
    dotted = {name.replace("_", "."): each for name, each in settings.items()}
    send_with_confluent(registry, topic, dotted, key=value(kind), value=value(kind), headers=[("a", b"b")])
    send_with_confluent(registry, topic, dotted, key=value(kind), value=None, headers=[])
    ours, our_tombstone, theirs, their_tombstone = registry.records(topic)
    assert content(ours) == content(theirs)
    assert content(our_tombstone) == content(their_tombstone)
    assert sorted(name for name in client.get_subjects() if name.startswith(f"{topic}-")) == [
        f"{topic}-key",
        f"{topic}-value",
    ]


def test_a_dual_write_and_a_rolled_back_one(
    registry: Emulator, client: SchemaRegistryClient, topic: str, tmp_path: Path
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    writer = DualWriter(
        engine,
        transactional_id=topic,
        bootstrap_servers=registry.bootstrap_servers,
        value_serializer=AvroSerializer(client, AVRO),
    )
    writer.recover()
    with writer.transaction() as tx:
        tx.session.execute(sa.text("INSERT INTO orders VALUES (7)"))
        tx.send(topic, ORDER)
    with pytest.raises(InvalidRecordError), writer.transaction() as tx:
        tx.session.execute(sa.text("INSERT INTO orders VALUES (8)"))
        tx.send(topic, {"id": "not a number"})
    writer.close()
    context = SerializationContext(topic, MessageField.VALUE)
    assert [deserializer("avro", client)(each.value, context) for each in registry.records(topic)] == [ORDER]
    with engine.connect() as connection:
        assert connection.scalars(sa.text("SELECT id FROM orders")).all() == [7]


def test_an_error_names_topic_and_subject(registry: Emulator, client: SchemaRegistryClient, topic: str) -> None:
    avro = serializer("avro", client, {"auto.register.schemas": False})
    with Producer(bootstrap_servers=registry.bootstrap_servers, value_serializer=avro) as producer:
        with pytest.raises(InvalidRecordError) as caught:
            producer.send(topic, ORDER)
    sentence = str(caught.value)
    assert f"the value serializer AvroSerializer of topic '{topic}' (subject {topic}-value" in sentence
    assert f"Subject '{topic}-value' not found." in sentence
    assert sentence.endswith("; the record was not sent")
    assert registry.records(topic) == []


async def test_an_asynchronous_serializer_is_refused(registry: Emulator, topic: str) -> None:
    client = AsyncSchemaRegistryClient({"url": registry.schema_registry_url})
    avro = await AsyncAvroSerializer(client, AVRO)
    async with AsyncProducer(bootstrap_servers=registry.bootstrap_servers, value_serializer=avro) as producer:
        with pytest.raises(InvalidRecordError, match="AsyncAvroSerializer is asynchronous: use its blocking form"):
            await producer.send(topic, ORDER)
    assert registry.records(topic) == []


def test_a_header_that_a_serializer_adds_is_checked(registry: Emulator, topic: str) -> None:
    class AddsNumber(StringSerializer):
        def __call__(self, obj: Any, ctx: Any = None) -> Any:
            ctx.headers.append(("a", 1))
            return super().__call__(obj, ctx)

    with Producer(bootstrap_servers=registry.bootstrap_servers, value_serializer=AddsNumber()) as producer:
        with pytest.raises(InvalidRecordError, match="the value of header 'a' is int; only bytes, str or None"):
            producer.send(topic, "x")
    assert registry.records(topic) == []


class OfKafkaPython3(kafka.serializer.Serializer):
    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
        headers.append(("by", b"kafka-python"))
        return f"{topic} {data}".encode()


class OfKafkaPython2:
    def serialize(self, topic: str, value: Any) -> bytes:
        return f"{topic} {value}".encode()


@pytest.mark.parametrize(
    ("made", "headers"), [(OfKafkaPython3(), (("by", b"kafka-python"),)), (OfKafkaPython2(), ())], ids=["3", "2"]
)
def test_the_objects_of_kafka_python(registry: Emulator, topic: str, made: Any, headers: Any) -> None:
    with Producer(bootstrap_servers=registry.bootstrap_servers, value_serializer=made) as producer:
        producer.send(topic, 5)
    assert [content(record) for record in registry.records(topic)] == [(None, f"{topic} 5".encode(), headers)]


def test_python_schema_registry_client_and_confluent_read_each_other(
    registry: Emulator, client: SchemaRegistryClient, topic: str
) -> None:
    """Another codebase, with a registry client of its own: its function takes the subject, so a partial names it."""
    other = AvroMessageSerializer(OtherClient(url=registry.schema_registry_url))
    schema = AvroSchema(AVRO)
    subject = f"{topic}-value"
    theirs = partial(other.encode_record_with_schema, subject, schema)
    for each in (theirs, AvroSerializer(client, AVRO)):
        with Producer(bootstrap_servers=registry.bootstrap_servers, value_serializer=each) as producer:
            producer.send(topic, ORDER)
    by_other, by_confluent = registry.records(topic)
    assert by_other.value == by_confluent.value
    assert other.decode_message(by_confluent.value) == ORDER
    assert client.get_versions(f"{topic}-value") == [1]
