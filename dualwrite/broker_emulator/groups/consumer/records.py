"""The records of `__consumer_offsets` that hold a consumer group, in Kafka's own format, and the records of a change.

| key version | record of | key |
|---|---|---|
| 3 | group epoch, hash of the topics it was made for | group |
| 4 | partitions of the topics, as brokers before 4.1 wrote them; ignored | group |
| 5 | a member's metadata and subscription | group, member |
| 6 | assignment epoch | group |
| 7 | a member's target | group, member |
| 8 | a member's epoch, state and partitions | group, member |
| 16 | the topics that a regular expression matches | group, expression |

All values are flexible, of version 0; later releases add tagged fields (hash, timestamp, assignment epochs).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple, TypeVar

from dualwrite.broker_emulator.groups.consumer.group import (
    FIRST_EPOCH,
    AnyGroup,
    Assignment,
    ClassicMetadata,
    ConsumerGroup,
    ConsumerMember,
    RegularExpression,
)
from dualwrite.broker_emulator.groups.consumer.states import MemberState
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition, by_id_and_index
from dualwrite.broker_emulator.groups.group import Group, Protocol
from dualwrite.broker_emulator.groups.records import UnknownRecordError, encode_group_key, encode_group_value
from dualwrite.broker_emulator.log import record_fields as fields
from dualwrite.broker_emulator.log.record_fields import FlexibleReader

GROUP, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGULAR_EXPRESSION = 3, 4, 5, 6, 7, 8, 16
_WITH_NAME = (MEMBER, TARGET, CURRENT, REGULAR_EXPRESSION)
_WITHOUT_NAME = (GROUP, PARTITION_METADATA, TARGET_EPOCH)
_VERSION = 0
_TAG = 0
"""The only tag, as no struct has more than one tagged field."""

_Epochs = Mapping[TopicIdPartition, int]
KeyValue = tuple[bytes, bytes | None]
"""A record. A value of None is a tombstone."""
T = TypeVar("T")


class RecordKey(NamedTuple):
    """The key of a record: its kind, group, and name."""

    kind: int
    group_id: str
    name: str = ""
    """The member or the regular expression, only for the kinds with one."""

    def encode(self) -> bytes:
        head = fields.int16(self.kind) + fields.key_string(self.group_id)
        return head + fields.key_string(self.name) if self.kind in _WITH_NAME else head


def decode_consumer_group_key(data: bytes) -> RecordKey | None:
    """Decode the record key; None for a key of another kind (offsets, classic groups)."""
    reader = FlexibleReader(data)
    kind = reader.int16()
    if kind in _WITH_NAME:
        return RecordKey(kind, reader.key_string(), reader.key_string())
    return RecordKey(kind, reader.key_string()) if kind in _WITHOUT_NAME else None


# values, by key


def encode_group(group: ConsumerGroup) -> bytes:
    """Encode the value of key 3."""
    tagged = {_TAG: fields.int64(group.metadata_hash)} if group.metadata_hash else {}
    return fields.int16(_VERSION) + fields.int32(group.group_epoch) + fields.tags(tagged)


def _apply_group(group: ConsumerGroup, _: str, reader: FlexibleReader) -> ConsumerGroup:
    epoch = reader.int32()
    tagged = reader.tags()
    return replace(group, group_epoch=epoch, metadata_hash=tagged[_TAG].int64() if _TAG in tagged else 0)


def encode_member(member: ConsumerMember) -> bytes:
    """Encode the value of key 5."""
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


def _apply_member(group: ConsumerGroup, member_id: str, reader: FlexibleReader) -> ConsumerGroup:
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


def _read_classic(reader: FlexibleReader) -> ClassicMetadata | None:
    if reader.uvarint() == 0:
        return None
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.count()):
        protocols.append(Protocol(reader.string(), reader.blob()))
        reader.tags()
    return ClassicMetadata(session_timeout_ms, tuple(protocols))


def encode_target_epoch(group: ConsumerGroup) -> bytes:
    """Encode the value of key 6."""
    tagged = {_TAG: fields.int64(group.assignment_timestamp_ms)} if group.assignment_timestamp_ms else {}
    return fields.int16(_VERSION) + fields.int32(group.assignment_epoch) + fields.tags(tagged)


def _apply_target_epoch(group: ConsumerGroup, _: str, reader: FlexibleReader) -> ConsumerGroup:
    epoch = reader.int32()
    tagged = reader.tags()
    timestamp_ms = tagged[_TAG].int64() if _TAG in tagged else 0
    return replace(group, assignment_epoch=epoch, assignment_timestamp_ms=timestamp_ms)


def encode_target(target: Assignment) -> bytes:
    """Encode the value of key 7."""
    topics = (_encode_topic(topic_id, names) for topic_id, names in _by_topic(target))
    return fields.int16(_VERSION) + fields.array(topics) + fields.tags()


def _apply_target(group: ConsumerGroup, member_id: str, reader: FlexibleReader) -> ConsumerGroup:
    return replace(group, targets={**group.targets, member_id: frozenset(_read_topics(reader))})


def encode_current(member: ConsumerMember) -> bytes:
    """Encode the value of key 8."""
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


def _apply_current(group: ConsumerGroup, member_id: str, reader: FlexibleReader) -> ConsumerGroup:
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
    """Encode the value of key 16."""
    topics = fields.array(fields.string(topic) for topic in sorted(found.topics))
    return (
        fields.int16(_VERSION) + topics + fields.int64(found.version) + fields.int64(found.timestamp_ms) + fields.tags()
    )


def _apply_regular_expression(group: ConsumerGroup, expression: str, reader: FlexibleReader) -> ConsumerGroup:
    topics = frozenset(reader.string() for _ in range(reader.count()))
    found = RegularExpression(topics, reader.int64(), reader.int64())
    return replace(group, regular_expressions={**group.regular_expressions, expression: found})


# partitions of topics


def _by_topic(names: Iterable[TopicIdPartition]) -> Iterable[tuple[uuid.UUID, list[TopicIdPartition]]]:
    for topic_id, of_topic in groupby(sorted(names, key=by_id_and_index), key=lambda name: name.topic_id):
        yield topic_id, list(of_topic)


def _encode_topic(topic_id: uuid.UUID, names: Iterable[TopicIdPartition], epochs: Iterable[int] | None = None) -> bytes:
    """Encode one topic. A tag has the epoch since which the member has each partition (KIP-1251)."""
    tagged = {} if epochs is None else {_TAG: fields.array(fields.int32(epoch) for epoch in epochs)}
    return topic_id.bytes + fields.array(fields.int32(name.partition) for name in names) + fields.tags(tagged)


def _read_topics(reader: FlexibleReader, default_epoch: int = 0) -> dict[TopicIdPartition, int]:
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

_APPLY: Mapping[int, Callable[[ConsumerGroup, str, FlexibleReader], ConsumerGroup]] = {
    GROUP: _apply_group,
    MEMBER: _apply_member,
    TARGET_EPOCH: _apply_target_epoch,
    TARGET: _apply_target,
    CURRENT: _apply_current,
    REGULAR_EXPRESSION: _apply_regular_expression,
}


def apply(group: ConsumerGroup | None, key: RecordKey, value: bytes | None) -> ConsumerGroup | None:
    """Apply one record to a group; return None if the group does not exist. Raises UnknownRecordError."""
    if value is None:
        return None if group is None or key.kind == GROUP else _without(group, key)
    reader = FlexibleReader(value)
    version = reader.int16()
    if version != _VERSION:  # later releases add tagged fields only
        raise UnknownRecordError(f"unknown value version {version} for key {key.kind}")
    if key.kind not in _APPLY:
        return group
    return _APPLY[key.kind](group or ConsumerGroup(group_id=key.group_id), key.name, reader)


def _without(group: ConsumerGroup, key: RecordKey) -> ConsumerGroup:
    """Apply a tombstone. The tombstones of a member come one by one, so some of its parts may be gone already."""
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


# --- the records of a change -----------------------------------------------------------------------------------------


def records_between(before: AnyGroup | None, after: AnyGroup | None) -> list[KeyValue]:
    """Return the records that turn the group `before`, classic or not, into `after`; None means no group.

    There is a record for each changed part, in the order in which Kafka's coordinator writes them: removed members,
    members' metadata, the group epoch, the target assignment, members' current assignments.
    """
    written: list[KeyValue] = []
    if isinstance(before, Group) and not isinstance(after, Group):
        written.append((encode_group_key(before.group_id), None))
    if isinstance(before, ConsumerGroup) and not isinstance(after, ConsumerGroup):
        written += _tombstones(before)
    if isinstance(after, ConsumerGroup):
        known = before if isinstance(before, ConsumerGroup) else ConsumerGroup(group_id=after.group_id)
        written += _changes(known, after)
    elif after is not None:
        written.append((encode_group_key(after.group_id), encode_group_value(after)))
    return written


def _tombstones(group: ConsumerGroup) -> Iterator[KeyValue]:
    def tombstone(kind: int, name: str = "") -> KeyValue:
        return RecordKey(kind, group.group_id, name).encode(), None

    yield from (tombstone(CURRENT, member_id) for member_id in group.members)
    yield from (tombstone(TARGET, member_id) for member_id in group.members)
    yield tombstone(TARGET_EPOCH)
    yield from (tombstone(MEMBER, member_id) for member_id in group.members)
    yield from (tombstone(REGULAR_EXPRESSION, regex) for regex in group.regular_expressions)
    yield tombstone(PARTITION_METADATA)
    yield tombstone(GROUP)


def _changes(before: ConsumerGroup, after: ConsumerGroup) -> Iterator[KeyValue]:
    group_id = after.group_id

    def key(kind: int, name: str = "") -> bytes:
        return RecordKey(kind, group_id, name).encode()

    for member_id in before.members:
        if member_id not in after.members:
            for kind in (CURRENT, TARGET, MEMBER):
                yield key(kind, member_id), None
    for member in after.members.values():
        known = before.members.get(member.member_id)
        if known is None or (known is not member and known.metadata != member.metadata):
            yield key(MEMBER, member.member_id), encode_member(member)
    for regex in before.regular_expressions:
        if regex not in after.regular_expressions:
            yield key(REGULAR_EXPRESSION, regex), None
    for regex, found in after.regular_expressions.items():
        if before.regular_expressions.get(regex) != found:
            yield key(REGULAR_EXPRESSION, regex), encode_regular_expression(found)
    if (before.group_epoch, before.metadata_hash) != (after.group_epoch, after.metadata_hash):
        yield key(GROUP), encode_group(after)
    for member_id, target in after.targets.items():
        if before.targets.get(member_id) != target:
            yield key(TARGET, member_id), encode_target(target)
    if (before.assignment_epoch, before.assignment_timestamp_ms) != (
        after.assignment_epoch,
        after.assignment_timestamp_ms,
    ):
        yield key(TARGET_EPOCH), encode_target_epoch(after)
    for member in after.members.values():
        known = before.members.get(member.member_id) or ConsumerMember(member_id=member.member_id)
        if known is not member and known.current != member.current:
            yield key(CURRENT, member.member_id), encode_current(member)
