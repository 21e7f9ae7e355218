"""The records of `__consumer_offsets` that hold a consumer group, in Kafka's own format.

| key | holds | by |
|---|---|---|
| 3 | group epoch, hash of the topics it was made for | group |
| 4 | partitions of the topics, as brokers before 4.1 wrote them; ignored | group |
| 5 | what a member said of itself | group, member |
| 6 | assignment epoch | group |
| 7 | a member's target | group, member |
| 8 | a member's epoch, state and partitions | group, member |
| 16 | the topics that a regular expression matches | group, expression |

All values are of version 0 and flexible; later releases add tagged fields (hash, timestamp, assignment epochs).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple, TypeVar

from dualwrite.broker_emulator.groups.consumer import fields
from dualwrite.broker_emulator.groups.consumer.fields import Reader
from dualwrite.broker_emulator.groups.consumer.group import (
    FIRST_EPOCH,
    Assignment,
    ClassicMetadata,
    ConsumerGroup,
    ConsumerMember,
    RegularExpression,
)
from dualwrite.broker_emulator.groups.consumer.states import MemberState
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.groups.group import Protocol

GROUP, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGULAR_EXPRESSION = 3, 4, 5, 6, 7, 8, 16
_WITH_NAME = (MEMBER, TARGET, CURRENT, REGULAR_EXPRESSION)
_WITHOUT_NAME = (GROUP, PARTITION_METADATA, TARGET_EPOCH)
_VERSION = 0
_TAG = 0
"""Each entity that has a tagged field has this one only."""

_Epochs = Mapping[TopicIdPartition, int]
T = TypeVar("T")


class RecordKey(NamedTuple):
    """What a record is about."""

    kind: int
    group_id: str
    name: str = ""
    """The member or the regular expression, where it is about one."""

    def encode(self) -> bytes:
        head = fields.int16(self.kind) + fields.key_string(self.group_id)
        return head + fields.key_string(self.name) if self.kind in _WITH_NAME else head


def decode_key(data: bytes) -> RecordKey | None:
    """The record key; None for a key of another kind (offsets, classic groups)."""
    reader = Reader(data)
    kind = reader.int16()
    if kind in _WITH_NAME:
        return RecordKey(kind, reader.key_string(), reader.key_string())
    return RecordKey(kind, reader.key_string()) if kind in _WITHOUT_NAME else None


# values, by key


def encode_group(group: ConsumerGroup) -> bytes:
    """Key 3."""
    tagged = {_TAG: fields.int64(group.metadata_hash)} if group.metadata_hash else {}
    return fields.int16(_VERSION) + fields.int32(group.group_epoch) + fields.tags(tagged)


def _apply_group(group: ConsumerGroup, _: str, reader: Reader) -> ConsumerGroup:
    epoch = reader.int32()
    tagged = reader.tags()
    return replace(group, group_epoch=epoch, metadata_hash=tagged[_TAG].int64() if _TAG in tagged else 0)


def encode_member(member: ConsumerMember) -> bytes:
    """Key 5."""
    classic = b"\0" if member.classic is None else b"\1" + _encode_classic(member.classic)  # Kafka writes null too
    return b"".join(
        (
            fields.int16(_VERSION),
            fields.string(member.instance_id),
            fields.string(member.rack_id),
            fields.string(member.client_id),
            fields.string(member.client_host),
            fields.array(fields.string(topic) for topic in sorted(member.subscribed_topics)),
            fields.string(member.subscribed_regex),
            fields.int32(member.rebalance_timeout_ms),
            fields.string(member.server_assignor),
            fields.tags({_TAG: classic}),
        )
    )


def _encode_classic(classic: ClassicMetadata) -> bytes:
    protocols = (
        fields.string(protocol.name) + fields.blob(protocol.metadata) + fields.tags() for protocol in classic.protocols
    )
    return fields.int32(classic.session_timeout_ms) + fields.array(protocols) + fields.tags()


def _apply_member(group: ConsumerGroup, member_id: str, reader: Reader) -> ConsumerGroup:
    member = replace(
        group.members.get(member_id) or ConsumerMember(member_id=member_id),
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        subscribed_topics=frozenset(reader.string() for _ in range(reader.count())),
        subscribed_regex=reader.string(),
        rebalance_timeout_ms=reader.int32(),
        server_assignor=reader.nullable_string(),
    )
    tagged = reader.tags()
    return group.with_member(replace(member, classic=_read_classic(tagged[_TAG]) if _TAG in tagged else None))


def _read_classic(reader: Reader) -> ClassicMetadata | None:
    if reader.uvarint() == 0:
        return None
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.count()):
        protocols.append(Protocol(reader.string(), reader.blob()))
        reader.tags()
    return ClassicMetadata(session_timeout_ms, tuple(protocols))


def encode_target_epoch(group: ConsumerGroup) -> bytes:
    """Key 6."""
    tagged = {_TAG: fields.int64(group.assignment_timestamp_ms)} if group.assignment_timestamp_ms else {}
    return fields.int16(_VERSION) + fields.int32(group.assignment_epoch) + fields.tags(tagged)


def _apply_target_epoch(group: ConsumerGroup, _: str, reader: Reader) -> ConsumerGroup:
    epoch = reader.int32()
    tagged = reader.tags()
    timestamp_ms = tagged[_TAG].int64() if _TAG in tagged else 0
    return replace(group, assignment_epoch=epoch, assignment_timestamp_ms=timestamp_ms)


def encode_target(target: Assignment) -> bytes:
    """Key 7."""
    topics = (_encode_topic(topic_id, names) for topic_id, names in _by_topic(target))
    return fields.int16(_VERSION) + fields.array(topics) + fields.tags()


def _apply_target(group: ConsumerGroup, member_id: str, reader: Reader) -> ConsumerGroup:
    return replace(group, targets={**group.targets, member_id: frozenset(_read_topics(reader))})


def encode_current(member: ConsumerMember) -> bytes:
    """Key 8."""
    return b"".join(
        (
            fields.int16(_VERSION),
            fields.int32(member.member_epoch),
            fields.int32(member.previous_epoch),
            fields.int8(member.state),
            _encode_epochs(member.assigned),
            _encode_epochs(member.revoking),
            fields.tags(),
        )
    )


def _encode_epochs(partitions: _Epochs) -> bytes:
    return fields.array(
        _encode_topic(topic_id, names, [partitions[name] for name in names])
        for topic_id, names in _by_topic(partitions)
    )


def _apply_current(group: ConsumerGroup, member_id: str, reader: Reader) -> ConsumerGroup:
    epoch, previous_epoch = reader.int32(), reader.int32()
    member = replace(
        group.members.get(member_id) or ConsumerMember(member_id=member_id),
        member_epoch=epoch,
        previous_epoch=previous_epoch,
        state=MemberState.from_number(reader.int8()),
        assigned=_read_topics(reader, default_epoch=epoch),
        revoking=_read_topics(reader, default_epoch=epoch),
    )
    return group.with_member(member)


def encode_regular_expression(found: RegularExpression) -> bytes:
    """Key 16."""
    topics = fields.array(fields.string(topic) for topic in sorted(found.topics))
    return (
        fields.int16(_VERSION) + topics + fields.int64(found.version) + fields.int64(found.timestamp_ms) + fields.tags()
    )


def _apply_regular_expression(group: ConsumerGroup, expression: str, reader: Reader) -> ConsumerGroup:
    topics = frozenset(reader.string() for _ in range(reader.count()))
    found = RegularExpression(topics, reader.int64(), reader.int64())
    return replace(group, regular_expressions={**group.regular_expressions, expression: found})


# partitions of topics


def _by_topic(names: Iterable[TopicIdPartition]) -> Iterable[tuple[uuid.UUID, list[TopicIdPartition]]]:
    for topic_id, of_topic in groupby(sorted(names), key=lambda name: name.topic_id):
        yield topic_id, list(of_topic)


def _encode_topic(topic_id: uuid.UUID, names: Iterable[TopicIdPartition], epochs: Iterable[int] | None = None) -> bytes:
    """One topic; the epochs, from which each of its partitions is the member's, are a tag (KIP-1251)."""
    tagged = {} if epochs is None else {_TAG: fields.array(fields.int32(epoch) for epoch in epochs)}
    return topic_id.bytes + fields.array(fields.int32(name.partition) for name in names) + fields.tags(tagged)


def _read_topics(reader: Reader, default_epoch: int = 0) -> dict[TopicIdPartition, int]:
    found: dict[TopicIdPartition, int] = {}
    for _ in range(reader.count()):
        topic_id, indexes = reader.uuid(), reader.int32s()
        tagged = reader.tags()
        epochs = tagged[_TAG].int32s() if _TAG in tagged else []
        for place, index in enumerate(indexes):
            epoch = epochs[place] if len(epochs) == len(indexes) else default_epoch
            found[TopicIdPartition(topic_id, index)] = epoch
    return found


# replay

_APPLY: Mapping[int, Callable[[ConsumerGroup, str, Reader], ConsumerGroup]] = {
    GROUP: _apply_group,
    MEMBER: _apply_member,
    TARGET_EPOCH: _apply_target_epoch,
    TARGET: _apply_target,
    CURRENT: _apply_current,
    REGULAR_EXPRESSION: _apply_regular_expression,
}


def apply(group: ConsumerGroup | None, key: RecordKey, value: bytes | None) -> ConsumerGroup | None:
    """The group after one more of its records; None where there is none (any more)."""
    if value is None:
        return None if group is None or key.kind == GROUP else _without(group, key)
    if key.kind not in _APPLY:
        return group
    reader = Reader(value, 2)  # behind the version: what later versions change, they say in tags
    return _APPLY[key.kind](group or ConsumerGroup(group_id=key.group_id), key.name, reader)


def _without(group: ConsumerGroup, key: RecordKey) -> ConsumerGroup:
    """A tombstone. Those of a member's parts come in an order, so that each may find less than the one before."""
    if key.kind == MEMBER:
        return replace(group, members=_except(group.members, key.name))
    if key.kind == TARGET:
        return replace(group, targets=_except(group.targets, key.name))
    if key.kind == REGULAR_EXPRESSION:
        return replace(group, regular_expressions=_except(group.regular_expressions, key.name))
    if key.kind == TARGET_EPOCH:
        return replace(group, assignment_epoch=FIRST_EPOCH, assignment_timestamp_ms=0)
    if key.kind == CURRENT and key.name in group.members:
        unassigned = ConsumerMember(member_id=key.name)
        member = group.members[key.name]
        return group.with_member(
            replace(
                member,
                member_epoch=unassigned.member_epoch,
                previous_epoch=unassigned.previous_epoch,
                state=unassigned.state,
                assigned={},
                revoking={},
            )
        )
    return group


def _except(mapping: Mapping[str, T], name: str) -> dict[str, T]:
    return {other: value for other, value in mapping.items() if other != name}
