"""The arguments of `send()`: validate them, convert them for the record builder, and choose a partition.

Everything is checked before anything is changed. An invalid argument that only the builder or the codec detected would
fail when other records are already on their way, and would end the producer. Errors are `InvalidRecordError`. The
application's serializers run here too: their exception fails the record, and nothing is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from dualwrite.client.records.serializer_kinds import call_of, described
from dualwrite.errors import InvalidRecordError
from dualwrite.exact import exact
from dualwrite.guarded import pass_on_signal
from dualwrite.partitioners import Partitioner, partitioning
from dualwrite.serializers import Headers, Serializer

if TYPE_CHECKING:  # they load aiokafka, which a process that only checks settings does not need
    from dualwrite.client.records.batches import Header
    from dualwrite.client.records.partition_queue import Batch

_LEGAL_TOPIC: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")
_MAX_PARTITION: Final = 2**31 - 1
_MAX_TIMESTAMP_MS: Final = 2**63 - 1


def _invalid(sentence: str) -> InvalidRecordError:
    return InvalidRecordError(f"{sentence}; the record was not sent")


def checked_topic(topic: Any) -> str:
    """Return `topic` as a plain str; raise if it is not a valid topic name by Kafka's rules."""
    if not isinstance(topic, str):
        raise _invalid(f"the topic is {_type_name(topic)}, not a str")
    if _LEGAL_TOPIC.match(topic) is None:
        raise _invalid(
            f"{topic!r} is not a valid topic name: Kafka takes 1 to 249 letters, digits, '.', '_' and '-' (ASCII)"
        )
    return topic if type(topic) is str else exact(topic)


def whole_number(what: str, number: Any, most: int) -> int:
    """Return `number` as an int from 0 to `most`. Accepts numpy's integers, but not booleans."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise _invalid(f"the {what} is {number!r} ({_type_name(number)}), not a whole number")
    whole: int = number.__index__()
    if not 0 <= whole <= most:
        raise _invalid(f"the {what} is {whole}, not a whole number from 0 to {most}")
    return whole


def checked_partition(partition: Any) -> int:
    """Return `partition` as an int. Whether the topic has this partition is checked later."""
    return whole_number("partition", partition, _MAX_PARTITION)


def checked_timestamp_ms(timestamp_ms: Any) -> int:
    """Return `timestamp_ms`, milliseconds since 1970, as an int."""
    return whole_number("timestamp_ms", timestamp_ms, _MAX_TIMESTAMP_MS)


def encoded(what: str, content: Any) -> bytes | None:
    """Return a key or value as bytes; a str is encoded as UTF-8."""
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, str):
        return _utf8(f"the {what}", content)
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise _invalid(
        f"the {what} is {_type_name(content)}, not bytes or str: encode it, or set {what}_serializer, for JSON to "
        "dualwrite.serializers.json"
    )


def checked_headers(headers: Any) -> list[Header]:
    """Return headers, a mapping or an iterable of pairs, as a list of (str, bytes or None); a str becomes UTF-8."""
    if isinstance(headers, str | bytes | bytearray | memoryview) or not isinstance(headers, Iterable):
        raise _invalid(f"the headers are {_type_name(headers)}, not a mapping or pairs of a name and a value")
    return [_header(pair) for pair in (headers.items() if isinstance(headers, Mapping) else headers)]


def _header(pair: Any) -> Header:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise _invalid(f"the header {pair!r} is not a pair of a name and a value")
    name, value = pair
    if not isinstance(name, str):
        raise _invalid(f"the name of header {name!r} is {_type_name(name)}, not a str")
    name = exact(name)
    _utf8(f"the name of header {name!r}", name)
    if value is None or type(value) is bytes:
        return name, value
    if isinstance(value, str):
        return name, _utf8(f"the value of header {name!r}", value)
    if isinstance(value, bytes | bytearray | memoryview):
        return name, bytes(value)
    raise _invalid(f"the value of header {name!r} is {_type_name(value)}; only bytes, str or None are allowed")


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode() if type(text) is str else exact(text).encode()
    except UnicodeEncodeError as error:
        raise _invalid(
            f"{what} has an unpaired surrogate at character {error.start}, which is not valid UTF-8"
        ) from error


def _type_name(thing: Any) -> str:
    return "None" if thing is None else type(thing).__name__


# ---- serializers ------------------------------------------------------------------------------------------------

Serialize = Callable[[str, Any, Headers], bytes | None]


def serialize_with(what: str, serializer: Serializer | None) -> Serialize | None:
    """Return one function for all kinds of serializer, or None without one. The first argument is "key" or "value"."""
    if serializer is None:
        return None
    call = call_of(what, serializer)

    def serialize(topic: str, value: Any, headers: Headers) -> bytes | None:
        try:
            made = call(topic, value, headers)
        except Exception as error:
            pass_on_signal(error)
            name = described(what, serializer, topic)
            raise _invalid(f"{name} failed on {type(value).__name__} with {error!r}") from error
        if made is None or isinstance(made, bytes | bytearray | memoryview):
            return encoded(what, made)
        if isawaitable(made):
            raise _asynchronous(what, serializer, made)
        raise _invalid(f"the {what} serializer returned {type(made).__name__}, not bytes or None")

    return serialize


def _asynchronous(what: str, serializer: Serializer, made: Any) -> InvalidRecordError:
    if isinstance(made, Coroutine):
        made.close()  # it will not be awaited, and must not cause a warning
    return _invalid(
        f"the {what} serializer {type(serializer).__name__} is asynchronous: use its blocking form (AvroSerializer for "
        "AsyncAvroSerializer), or await it and send the bytes"
    )


class Serializers:
    """The key serializer and value serializer of one producer."""

    def __init__(self, key_serializer: Serializer | None, value_serializer: Serializer | None) -> None:
        self._key = serialize_with("key", key_serializer)
        self._value = serialize_with("value", value_serializer)
        self.any = self._key is not None or self._value is not None

    def apply(self, topic: str, key: Any, value: Any, headers: Headers) -> tuple[Any, Any]:
        """Return key and value serialized; without a serializer they are returned as they are."""
        key = key if self._key is None else self._key(topic, key, headers)
        value = value if self._value is None else self._value(topic, value, headers)
        if headers:  # a serializer may have added some
            headers[:] = checked_headers(headers)
        return key, value


class PartitionChoice:
    """The setting `partitioner` of one producer. Records without a key fill one batch after the other (KIP-480)."""

    def __init__(self, setting: str | Partitioner) -> None:
        self.by_key, self.by_record, self.empty_key_is_none = partitioning(setting)
        # by topic, the batch that keyless records fill or filled last; for most records `send()` reads only this
        self.filling: Final[dict[str, Batch]] = {}

    def before_lock(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int | None, partitions: int
    ) -> int | None:
        """Return the partition that a custom partitioner chooses, or `partition` as it is.

        A custom partitioner is the application's code, so it must not run under the lock.
        """
        if self.by_record is None or partition is not None or partitions == 0:
            return partition
        return self.by_record(topic, key, value, partitions)

    def choose(self, topic: str, key: bytes | None, partitions: int) -> int:
        """Return the key's partition; without a key, the one after the last batch's, which is full or sent.

        Call it under the producer's lock.
        """
        if key is not None and self.by_key is not None:
            return self.by_key(key, partitions)
        filled = self.filling.get(topic)
        return 0 if filled is None else (filled.partition + 1) % partitions
