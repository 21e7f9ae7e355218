"""Invalid records are refused with an error that names the mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.records.send_arguments import (
    checked_headers,
    checked_partition,
    checked_timestamp_ms,
    checked_topic,
    encoded,
)
from dualwrite.errors import InvalidRecordError


class LikeNumpy:
    """An integer of another library."""

    def __index__(self) -> int:
        return 7


def value(content: Any) -> bytes | None:
    return encoded("value", content)


@pytest.mark.parametrize(
    ("check", "given", "words"),
    [
        (checked_topic, None, "the topic is None, not a str"),
        (checked_topic, b"orders", "the topic is bytes, not a str"),
        (checked_topic, ["orders"], "the topic is list, not a str"),
        (checked_topic, "", "'' is not a valid topic name"),
        (checked_topic, ".", "not a valid topic name"),
        (checked_topic, "..", "not a valid topic name"),
        (checked_topic, "a b", "not a valid topic name"),
        (checked_topic, "a\n", "not a valid topic name"),
        (checked_topic, "Zoë", "not a valid topic name"),
        (checked_topic, "\ud800", "not a valid topic name"),
        (checked_topic, "a" * 250, "not a valid topic name"),
        (checked_partition, "0", "the partition is '0' (str), not a whole number"),
        (checked_partition, True, "the partition is True (bool), not a whole number"),
        (checked_partition, 1.0, "the partition is 1.0 (float), not a whole number"),
        (checked_partition, -1, "the partition is -1, not a whole number from 0"),
        (checked_partition, 2**31, "not a whole number from 0 to 2147483647"),
        (checked_timestamp_ms, "now", "the timestamp_ms is 'now' (str), not a whole number"),
        (checked_timestamp_ms, 1.5, "the timestamp_ms is 1.5 (float)"),
        (checked_timestamp_ms, -5, "the timestamp_ms is -5, not a whole number from 0"),
        (checked_timestamp_ms, True, "the timestamp_ms is True (bool)"),
        (checked_timestamp_ms, 2**63, "not a whole number from 0 to"),
        (value, 5, "the value is int, not bytes or str"),
        (value, "ab\ud800", "the value has an unpaired surrogate at character 2"),
        (checked_headers, "abc", "the headers are str, not a mapping or pairs"),
        (checked_headers, b"abc", "the headers are bytes, not a mapping or pairs"),
        (checked_headers, 5, "the headers are int, not a mapping or pairs"),
        (checked_headers, 0, "the headers are int, not a mapping or pairs"),
        (checked_headers, [None], "the header None is not a pair"),
        (checked_headers, ["ab"], "the header 'ab' is not a pair"),
        (checked_headers, [("h",)], "the header ('h',) is not a pair"),
        (checked_headers, [("h", b"1", b"2")], "is not a pair"),
        (checked_headers, {1: b"1"}, "the name of header 1 is int, not a str"),
        (checked_headers, {"h": 1}, "the value of header 'h' is int; only bytes, str or None are allowed"),
        (checked_headers, {"h": "a\ud800"}, "the value of header 'h' has an unpaired surrogate at character 1"),
        (checked_headers, {"\ud800": b"1"}, "has an unpaired surrogate at character 0"),
    ],
)
def test_invalid_arguments_are_refused(check: Callable[[Any], object], given: Any, words: str) -> None:
    with pytest.raises(InvalidRecordError) as raised:
        check(given)
    assert words in str(raised.value)
    assert str(raised.value).endswith("; the record was not sent")


def test_valid_arguments_pass() -> None:
    for topic in ("a", "A.b_c-1", "...", "a" * 249):
        checked_topic(topic)
    assert (checked_partition(0), checked_partition(LikeNumpy())) == (0, 7)
    assert checked_timestamp_ms(2**63 - 1) == 2**63 - 1
    assert [value(content) for content in ("ë", b"b", bytearray(b"c"), memoryview(b"d"), None)] == [
        *("ë".encode(), b"b", b"c", b"d", None)
    ]


def test_headers_keep_their_order_and_may_repeat() -> None:
    assert checked_headers({}) == []
    assert checked_headers({"a": b"1", "b": None}) == [("a", b"1"), ("b", None)]
    pairs = [("h", b"2"), ("h", b"1")]
    assert checked_headers(iter(pairs)) == pairs
    assert checked_headers([["h", bytearray(b"1")], ("h", "ë")]) == [("h", b"1"), ("h", "ë".encode())]
