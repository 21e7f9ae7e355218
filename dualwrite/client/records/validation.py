"""What `send()` is given, as the record builder takes it; `InvalidRecordError` where that cannot be. Pure.

All of it is checked before anything is touched: a mistake that only the builder or the codec met would come when other
records are on their way, and would end the producer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dualwrite.client.records.builder import Header
from dualwrite.errors import InvalidRecordError

_LEGAL_TOPIC: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")
_MAX_PARTITION: Final = 2**31 - 1
_MAX_TIMESTAMP_MS: Final = 2**63 - 1


def _refused(sentence: str) -> InvalidRecordError:
    return InvalidRecordError(f"{sentence}; the record was not sent")


def check_topic(topic: Any) -> None:
    """Kafka's rule for topic names."""
    if not isinstance(topic, str):
        raise _refused(f"the topic is {_kind(topic)}, not a text")
    if _LEGAL_TOPIC.match(topic) is None:
        raise _refused(
            f"{topic!r} is not a valid topic name: Kafka takes 1 to 249 letters, digits, '.', '_' and '-' (ASCII)"
        )


def whole_number(what: str, number: Any, most: int) -> int:
    """An integer from 0 to `most`; numpy's are integers too, booleans are not."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise _refused(f"the {what} is {number!r} ({_kind(number)}), not a whole number")
    whole: int = number.__index__()
    if not 0 <= whole <= most:
        raise _refused(f"the {what} is {whole}, not a whole number from 0 to {most}")
    return whole


def checked_partition(partition: Any) -> int:
    """Whether the topic has it is another question."""
    return whole_number("partition", partition, _MAX_PARTITION)


def checked_timestamp_ms(timestamp_ms: Any) -> int:
    """Milliseconds since 1970."""
    return whole_number("timestamp_ms", timestamp_ms, _MAX_TIMESTAMP_MS)


def encoded(what: str, content: Any) -> bytes | None:
    """A key or value as bytes; a text is encoded as UTF-8."""
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, str):
        return _utf8(f"the {what}", content)
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise _refused(f"the {what} is {_kind(content)}, not bytes or a text")


def checked_headers(headers: Any) -> list[Header]:
    """Pairs of a text and bytes or None, from a mapping or an iterable."""
    if isinstance(headers, str | bytes | bytearray | memoryview) or not isinstance(headers, Iterable):
        raise _refused(f"the headers are {_kind(headers)}, not a mapping or pairs of a name and a value")
    return [_header(pair) for pair in (headers.items() if isinstance(headers, Mapping) else headers)]


def _header(pair: Any) -> Header:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise _refused(f"the header {pair!r} is not a pair of a name and a value")
    name, value = pair
    if not isinstance(name, str):
        raise _refused(f"the name of header {name!r} is {_kind(name)}, not a text")
    _utf8(f"the name of header {name!r}", name)
    if value is None or type(value) is bytes:
        return name, value
    if isinstance(value, bytes | bytearray | memoryview):
        return name, bytes(value)
    remedy = "encode it to bytes" if isinstance(value, str) else "it takes bytes or None"
    raise _refused(f"the value of header {name!r} is {_kind(value)}; {remedy}")


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _refused(f"{what} has half a surrogate pair at character {error.start}, which is no UTF-8") from error


def _kind(thing: Any) -> str:
    return "None" if thing is None else type(thing).__name__
