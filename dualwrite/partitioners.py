"""The setting `partitioner`: the partition of a record for which `send()` gets none.

| name | records with a key | records without |
|---|---|---|
| `murmur2_random`, `default` | Kafka's own hash, as the Java client | one partition per batch (KIP-480) |
| `consistent_random` | CRC-32 of the key, as librdkafka's default; an empty key counts as none | as above |
| `random` | any | any |
| `round_robin` | one after the other, per topic | one after the other, per topic |

Or a callable `(topic, key, value, partition_count) -> partition`, which gets key and value as the bytes that will be
sent. It is called for each record without a partition, in the thread that calls `send()`.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Final, NamedTuple

from dualwrite.errors import InvalidRecordError
from dualwrite.guarded import pass_on_signal

__all__ = ["Partitioner", "consistent_partition", "murmur2", "murmur2_partition"]

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""A function of topic, key, value and the number of partitions that returns a partition, from 0 on."""

KeyPartitioner = Callable[[bytes, int], int]
"""A function of a key and the number of partitions that returns a partition."""

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


@lru_cache(maxsize=8192)
def murmur2(data: bytes) -> int:
    """Return Kafka's hash of a key, as an unsigned 32-bit number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = k * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ (h >> 15)


def murmur2_partition(key: bytes, partitions: int) -> int:
    """Return the partition of a key as the Java client does."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def consistent_partition(key: bytes, partitions: int) -> int:
    """Return the partition of a key as librdkafka's `consistent_random` does."""
    return zlib.crc32(key) % partitions


class Partitioning(NamedTuple):
    """The meaning of a setting: a function of the key, or one of the whole record."""

    by_key: KeyPartitioner | None = None
    by_record: Partitioner | None = None
    empty_key_is_none: bool = False


def _random(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
    return random.randrange(partitions)


def _round_robin() -> Partitioner:
    turns: dict[str, count[int]] = {}
    return lambda topic, key, value, partitions: next(turns.setdefault(topic, count())) % partitions


_MAKERS: Final[dict[str, Callable[[], Partitioning]]] = {
    "default": lambda: Partitioning(by_key=murmur2_partition),
    "murmur2_random": lambda: Partitioning(by_key=murmur2_partition),
    "consistent_random": lambda: Partitioning(by_key=consistent_partition, empty_key_is_none=True),
    "random": lambda: Partitioning(by_record=_random),
    "round_robin": lambda: Partitioning(by_record=_round_robin()),
}

NAMES: Final = tuple(_MAKERS)
"""The values of the setting `partitioner`, besides a callable."""


def partitioning(setting: str | Partitioner) -> Partitioning:
    """Return the partitioning of a new producer; `round_robin` counts per producer."""
    if isinstance(setting, str):
        return _MAKERS[setting]()

    def checked(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return _checked_partition(setting, topic, key, value, partitions)

    return Partitioning(by_record=checked)


_FUNCTION: Final = "function "


def name_of(setting: str | Partitioner) -> str:
    """Return the text that identifies the partitioner of records that wait in a database."""
    if isinstance(setting, str):
        return setting
    named = setting if hasattr(setting, "__qualname__") else type(setting)
    return f"{_FUNCTION}{named.__module__}:{named.__qualname__}"


def partitioning_named(name: str, setting: str | Partitioner) -> Partitioning:
    """Return the partitioning that `name_of` has named, in a process that has `setting`.

    A function cannot be stored: any function of this process stands for it. Raises ValueError if there is none, or if
    this version does not know the name.
    """
    if name in _MAKERS:
        return _MAKERS[name]()
    if not name.startswith(_FUNCTION):
        raise ValueError(f"its partitioner {name!r} is not known to this version of dualwrite")
    if isinstance(setting, str):
        raise ValueError(
            f"the partitions of its records are chosen by the {name}, and this process has partitioner={setting!r}: "
            f"publish it from a process that has the function (partitioner={name.removeprefix(_FUNCTION)!r})"
        )
    return partitioning(setting)


def _checked_partition(
    partitioner: Partitioner, topic: str, key: bytes | None, value: bytes | None, partitions: int
) -> int:
    try:
        partition = partitioner(topic, key, value, partitions)
    except Exception as error:
        pass_on_signal(error)
        raise InvalidRecordError(f"the partitioner failed with {error!r}; the record was not sent") from error
    if isinstance(partition, bool) or not hasattr(partition, "__index__") or not 0 <= partition < partitions:
        raise InvalidRecordError(
            f"the partitioner returned {partition!r}, and {topic!r} has the partitions 0 to {partitions - 1}; "
            "the record was not sent"
        )
    return partition.__index__()
