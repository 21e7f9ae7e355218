"""Convert the group metadata and offsets of the three Python clients' consumers (KIP-447).

With the group's generation and member id, Kafka refuses a consumer that has lost its partitions without knowing it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dualwrite.client.records.record import ConsumerGroupMetadata, NoMember, OffsetAndMetadata, TopicPartition
from dualwrite.exact import exact

_GENERATION: Final = struct.Struct("=i")  # librdkafka writes it as its machine does
_LIBRDKAFKA_MAGIC: Final = b"CGMDv2:"
_LIBRDKAFKA_NOTHING_READ: Final = -1001


def group_of(given: Any) -> ConsumerGroupMetadata:
    """Return the group metadata from any of: a group id, a `ConsumerGroupMetadata`, kafka-python's `group_metadata()`,
    confluent-kafka's `consumer_group_metadata()`. A consumer that is no member of its group is a `NoMember`.

    Raises `TypeError` or `ValueError` for anything else.
    """
    if isinstance(given, NoMember):
        return given
    if isinstance(given, ConsumerGroupMetadata):
        instance = given.group_instance_id
        return ConsumerGroupMetadata(
            exact(given.group_id),
            given.generation_id,
            exact(given.member_id),
            None if instance is None else exact(instance),
        )
    if isinstance(given, str):
        return ConsumerGroupMetadata(_group_id(given))
    if isinstance(given, bytes):
        return _of_librdkafka(given)
    try:
        return _of_client(given.group_id, given.generation_id, given.member_id, given.group_instance_id)
    except AttributeError:
        raise _unknown(given) from None


def _unknown(given: Any) -> TypeError:
    return TypeError(
        f"the group metadata is {type(given).__name__}; nothing was sent: give a ConsumerGroupMetadata, "
        "kafka-python's consumer.group_metadata(), confluent-kafka's consumer.consumer_group_metadata(), "
        "aiokafka_group_metadata(consumer) as it was when the records were read, or the group id of a consumer that "
        "assigns partitions itself"
    )


def _of_client(group_id: Any, generation_id: int, member_id: str, instance_id: str | None) -> ConsumerGroupMetadata:
    kind = ConsumerGroupMetadata if generation_id >= 0 else NoMember
    return kind(_group_id(group_id), generation_id, member_id, instance_id)


def _group_id(group_id: Any) -> str:
    if not isinstance(group_id, str) or not group_id:
        raise ValueError(f"the consumer's group id is {group_id!r}, and without a group there is nothing to commit to")
    return exact(group_id)


def _of_librdkafka(serialized: bytes) -> ConsumerGroupMetadata:
    """Parse librdkafka's format: magic, generation, zero-terminated strings; the last has a flag for null before it."""
    try:
        magic, rest = serialized[: len(_LIBRDKAFKA_MAGIC)], serialized[len(_LIBRDKAFKA_MAGIC) :]
        if magic != _LIBRDKAFKA_MAGIC:
            raise ValueError(magic)
        (generation_id,) = _GENERATION.unpack_from(rest)
        group_id, member_id, instance = rest[_GENERATION.size :].split(b"\0", 2)
        if instance == b"\1":
            instance_id = None
        elif instance[:1] == b"\0" and instance.index(b"\0", 1) == len(instance) - 1:
            instance_id = instance[1:-1].decode()
        else:
            raise ValueError(instance)
        return _of_client(group_id.decode(), generation_id, member_id.decode(), instance_id)
    except (ValueError, struct.error) as error:
        raise ValueError(
            f"these {len(serialized)} bytes are not group metadata in a known format of librdkafka (2.x): give a "
            "ConsumerGroupMetadata with the group id, generation and member id; nothing was sent"
        ) from error


def aiokafka_group_metadata(consumer: Any) -> ConsumerGroupMetadata:
    """Return the present membership of an aiokafka consumer, for `send_offsets_to_transaction`.

    Call it as soon as `getone()` or `getmany()` has returned, before the next `await`: aiokafka rebalances in the
    background, and Kafka accepts offsets of partitions that have moved from a consumer that is a member again.

    Raises `TypeError` if it has none. It reads private members of the consumer, which has no public ones (0.10 to
    0.14); tests/producer/test_group_metadata.py fails when aiokafka changes them.
    """
    coordinator = getattr(consumer, "_coordinator", None)
    try:
        return _of_client(
            coordinator.group_id,  # type: ignore[union-attr]
            coordinator.generation,  # type: ignore[union-attr]
            coordinator.member_id,  # type: ignore[union-attr]
            coordinator._group_instance_id,  # type: ignore[union-attr]  # noqa: SLF001
        )
    except AttributeError:
        raise TypeError(
            "this aiokafka consumer is not started, has no group, or is of a version that stores its membership "
            "elsewhere: give a ConsumerGroupMetadata; nothing was sent"
        ) from None


def positions_of(given: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets by partition, from a mapping (to kafka-python's or aiokafka's offsets, or to numbers), or from the
    list of `TopicPartition`s that confluent-kafka's `position()` returns.

    Leaves out partitions of which no record was read.
    """
    if isinstance(given, Mapping):
        return {_exact(TopicPartition(*partition)): _position(offset) for partition, offset in given.items()}
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return {
            _exact(TopicPartition(each.topic, each.partition)): _position(each)
            for each in given
            if each.offset != _LIBRDKAFKA_NOTHING_READ
        }
    raise TypeError(f"the offsets are {type(given).__name__}, not a mapping by partition; nothing was sent")


def _exact(partition: TopicPartition) -> TopicPartition:
    return TopicPartition(exact(partition.topic), partition.partition)


def _position(given: Any) -> OffsetAndMetadata:
    if isinstance(given, int):
        given = OffsetAndMetadata(given)
    leader_epoch = getattr(given, "leader_epoch", None)
    position = OffsetAndMetadata(
        given.offset, exact(given.metadata or ""), -1 if leader_epoch is None else leader_epoch
    )
    if not isinstance(position.offset, int) or position.offset < 0:
        raise ValueError(f"the offset {position.offset!r} cannot be that of the next record to read; nothing was sent")
    return position
