"""Objects, schemas and messages for tests with a schema registry."""

from __future__ import annotations

import json
from typing import Any, Final

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

AVRO: Final = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": ["null", "string"], "default": None}],
    }
)
JSON: Final = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "item": {"type": "string"}},
        "required": ["id"],
        "additionalProperties": False,
    }
)
ORDER: Final = {"id": 7, "item": "lamp"}


def _order_file() -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor that protoc would make of messages with an import, a nested message and an enum."""
    field = descriptor_pb2.FieldDescriptorProto
    item = descriptor_pb2.FileDescriptorProto(name="shop/item.proto", package="shop", syntax="proto3")
    message = item.message_type.add(name="Item")
    message.field.add(name="name", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    order = descriptor_pb2.FileDescriptorProto(name="shop/order.proto", package="shop", syntax="proto3")
    order.dependency.extend([item.name, timestamp_pb2.DESCRIPTOR.name])
    message = order.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    message.field.add(
        name="item", number=2, type=field.TYPE_MESSAGE, type_name=".shop.Item", label=field.LABEL_OPTIONAL
    )
    message.field.add(
        name="at",
        number=3,
        type=field.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=field.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.Default()
    pool.Add(item)
    pool.Add(order)
    return order


_order_file()
Order: Any = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("shop.Order"))
Item: Any = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("shop.Item"))


def an_order() -> Any:
    """Return the message with the values of ORDER."""
    return Order(id=7, item=Item(name="lamp"), at=timestamp_pb2.Timestamp(seconds=8))


KINDS: Final = ("avro", "json", "protobuf")


def serializer(kind: str, client: SchemaRegistryClient, conf: dict[str, Any] | None = None) -> Any:
    """Return Confluent's serializer of a kind."""
    if kind == "avro":
        return AvroSerializer(client, AVRO, conf=conf)
    if kind == "json":
        return JSONSerializer(JSON, client, conf=conf)
    return ProtobufSerializer(Order, client, conf=conf)


def deserializer(kind: str, client: SchemaRegistryClient) -> Any:
    """Return Confluent's deserializer of a kind."""
    if kind == "avro":
        return AvroDeserializer(client)
    if kind == "json":
        return JSONDeserializer(JSON, schema_registry_client=client)
    return ProtobufDeserializer(Order, {"use.deprecated.format": False}, client)


def value(kind: str) -> Any:
    """Return a value for the serializer of a kind."""
    return an_order() if kind == "protobuf" else dict(ORDER)
