"""Serializers, ready-made and the application's own; if one fails, no record is sent."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dualwrite import serializers
from dualwrite.broker_emulator import Emulator
from dualwrite.errors import ConfigError, InvalidRecordError
from dualwrite.producer import Producer
from tests.producer.conftest import MakeProducer
from tests.producer.readers import read_with_librdkafka


class WithHeader:
    def serialize(self, topic: str, value: Any, headers: serializers.Headers) -> bytes | None:
        headers.append(("of", topic.encode()))
        return None if value is None else repr(value).encode()


def test_key_and_value_are_serialized(emulator: Emulator, make_producer: MakeProducer) -> None:
    producer = make_producer(None, key_serializer=serializers.utf8, value_serializer=serializers.json)
    producer.send("orders", {"id": 1, "name": "Lämpchen"}, "schlüssel")
    producer.send("orders")
    producer.flush()
    first, second = read_with_librdkafka(emulator, "orders", 2)
    assert (first.key(), first.value()) == ("schlüssel".encode(), '{"id":1,"name":"Lämpchen"}'.encode())
    assert (second.key(), second.value()) == (None, None)


def test_an_object_may_add_headers(emulator: Emulator, make_producer: MakeProducer) -> None:
    producer = make_producer(None, value_serializer=WithHeader())
    producer.send("orders", (1, 2), headers={"a": b"b"})
    producer.flush()
    (record,) = read_with_librdkafka(emulator, "orders", 1)
    assert (record.value(), record.headers()) == (b"(1, 2)", [("a", b"b"), ("of", b"orders")])


@pytest.mark.parametrize("what", ["key", "value"])
def test_an_error_of_a_serializer_is_the_cause(make_producer: MakeProducer, what: str) -> None:
    producer = make_producer(None, **{f"{what}_serializer": lambda value: 1 // value})
    with pytest.raises(InvalidRecordError, match=f"the {what} serializer failed on int .*was not sent") as caught:
        given: dict[str, Any] = {what: 0}
        producer.send("orders", **given)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    producer.flush()


def test_a_serializer_gives_bytes(make_producer: MakeProducer) -> None:
    producer = make_producer(None, value_serializer=str)
    with pytest.raises(InvalidRecordError, match="the value serializer returned str, not bytes or None"):
        producer.send("orders", 1)


@pytest.mark.parametrize(
    ("value", "error"), [(math.nan, ValueError), (math.inf, ValueError), (object(), TypeError), (b"bytes", TypeError)]
)
def test_json_accepts_json_values_only(value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        serializers.json(value)


def test_utf8_takes_texts() -> None:
    assert serializers.utf8("ä") == b"\xc3\xa4"
    with pytest.raises(TypeError, match="not bytes"):
        serializers.utf8(b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["utf8", 1, WithHeader])
def test_a_setting_that_is_no_serializer_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"value_serializer: .* is neither a callable"):
        Producer(bootstrap_servers="127.0.0.1:9", value_serializer=wrong)
