"""The records of `__consumer_offsets` that hold a share group, in Kafka's own format, and the records of a change.

| key version | record of | key |
|---|---|---|
| 10 | a member's metadata and subscription | group, member |
| 11 | group epoch, hash of the topics it was made for | group |
| 12 | assignment epoch | group |
| 13 | a member's target | group, member |
| 14 | a member's epoch and partitions | group, member |
| 15 | the topics whose share state is being initialized, initialized, or being deleted | group |

All values are flexible, of version 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from dualwrite.broker_emulator.groups.consumer.group import FIRST_EPOCH, Assignment
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.groups.share.group import ShareGroup, ShareMember, StateTopic
from dualwrite.broker_emulator.log import record_fields as fields
from dualwrite.broker_emulator.log.record import Record
from dualwrite.broker_emulator.log.record_batch import BatchHeader
from dualwrite.broker_emulator.log.record_fields import FlexibleReader

MEMBER, GROUP, TARGET_EPOCH, TARGET, CURRENT, STATE_TOPICS = 10, 11, 12, 13, 14, 15
_WITH_MEMBER = (MEMBER, TARGET, CURRENT)
_VERSION = 0
_TAG = 0
_STABLE = 0
"""The only state of a member."""

KeyValue = tuple[bytes, bytes | None]
"""A record. A value of None is a tombstone."""


class ShareRecordKey(NamedTuple):
    """The key of a record: its kind, and the group and member that it describes."""

    kind: int
    group_id: str
    member_id: str = ""
    """Only for the kinds with a member."""

    def encode(self) -> bytes:
        head = fields.int16(self.kind) + fields.key_string(self.group_id)
        return head + fields.key_string(self.member_id) if self.kind in _WITH_MEMBER else head


def decode_share_group_key(data: bytes) -> ShareRecordKey | None:
    """Decode the record key; None for a key of another kind."""
    reader = FlexibleReader(data)
    kind = reader.int16()
    if not MEMBER <= kind <= STATE_TOPICS:
        return None
    return ShareRecordKey(kind, reader.key_string(), reader.key_string() if kind in _WITH_MEMBER else "")


# values, by key


def encode_member(member: ShareMember) -> bytes:
    """Encode the value of key 10."""
    return b"".join(
        (
            fields.int16(_VERSION),
            fields.string(member.rack_id),
            fields.string(member.client_id),
            fields.string(member.client_host),
            fields.array(fields.string(topic) for topic in sorted(member.subscribed_topics)),
            fields.tags(),
        )
    )


def _apply_member(group: ShareGroup, member_id: str, reader: FlexibleReader) -> ShareGroup:
    member = replace(
        group.members.get(member_id) or ShareMember(member_id=member_id),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        subscribed_topics=frozenset(reader.string() for _ in range(reader.count())),
    )
    return group.with_member(member)


def encode_group(group: ShareGroup) -> bytes:
    """Encode the value of key 11."""
    return fields.int16(_VERSION) + fields.int32(group.group_epoch) + fields.int64(group.metadata_hash) + fields.tags()


def _apply_group(group: ShareGroup, _: str, reader: FlexibleReader) -> ShareGroup:
    return replace(group, group_epoch=reader.int32(), metadata_hash=reader.int64())


def encode_target_epoch(group: ShareGroup) -> bytes:
    """Encode the value of key 12."""
    tagged = {_TAG: fields.int64(group.assignment_timestamp_ms)} if group.assignment_timestamp_ms else {}
    return fields.int16(_VERSION) + fields.int32(group.assignment_epoch) + fields.tags(tagged)


def _apply_target_epoch(group: ShareGroup, _: str, reader: FlexibleReader) -> ShareGroup:
    epoch = reader.int32()
    tagged = reader.tags()
    timestamp_ms = tagged[_TAG].int64() if _TAG in tagged else 0
    return replace(group, assignment_epoch=epoch, assignment_timestamp_ms=timestamp_ms)


def encode_target(target: Assignment) -> bytes:
    """Encode the value of key 13."""
    return fields.int16(_VERSION) + _encode_partitions(target) + fields.tags()


def _apply_target(group: ShareGroup, member_id: str, reader: FlexibleReader) -> ShareGroup:
    return replace(group, targets={**group.targets, member_id: _read_partitions(reader)})


def encode_current(member: ShareMember) -> bytes:
    """Encode the value of key 14."""
    return b"".join(
        (
            fields.int16(_VERSION),
            fields.int32(member.member_epoch),
            fields.int32(member.previous_epoch),
            fields.int8(_STABLE),
            _encode_partitions(member.assigned),
            fields.tags(),
        )
    )


def _apply_current(group: ShareGroup, member_id: str, reader: FlexibleReader) -> ShareGroup:
    epoch, previous_epoch = reader.int32(), reader.int32()
    reader.int8()
    member = replace(
        group.members.get(member_id) or ShareMember(member_id=member_id),
        member_epoch=epoch,
        previous_epoch=previous_epoch,
        assigned=_read_partitions(reader),
    )
    return group.with_member(member)


def encode_state_topics(group: ShareGroup) -> bytes:
    """Encode the value of key 15."""
    deleting = (topic_id.bytes + fields.string(name) + fields.tags() for topic_id, name in group.deleting.items())
    return b"".join(
        (
            fields.int16(_VERSION),
            _encode_state_topics(group.initializing),
            _encode_state_topics(group.initialized),
            fields.array(deleting),
            fields.tags(),
        )
    )


def _apply_state_topics(group: ShareGroup, _: str, reader: FlexibleReader) -> ShareGroup:
    initializing, initialized = _read_state_topics(reader), _read_state_topics(reader)
    deleting = {}
    for _place in range(reader.count()):
        topic_id, name = reader.uuid(), reader.string()
        reader.tags()
        deleting[topic_id] = name
    return replace(group, initializing=initializing, initialized=initialized, deleting=deleting)


def _encode_state_topics(topics: Mapping[UUID, StateTopic]) -> bytes:
    return fields.array(
        topic_id.bytes
        + fields.string(topic.name)
        + fields.array(fields.int32(index) for index in sorted(topic.partitions))
        + fields.tags()
        for topic_id, topic in topics.items()
    )


def _read_state_topics(reader: FlexibleReader) -> dict[UUID, StateTopic]:
    found = {}
    for _ in range(reader.count()):
        topic_id, name, indexes = reader.uuid(), reader.string(), reader.int32s()
        reader.tags()
        found[topic_id] = StateTopic(name, frozenset(indexes))
    return found


def _encode_partitions(names: Iterable[TopicIdPartition]) -> bytes:
    return fields.array(
        topic_id.bytes + fields.array(fields.int32(name.partition) for name in of_topic) + fields.tags()
        for topic_id, of_topic in groupby(sorted(names), key=lambda name: name.topic_id)
    )


def _read_partitions(reader: FlexibleReader) -> Assignment:
    found: set[TopicIdPartition] = set()
    for _ in range(reader.count()):
        topic_id = reader.uuid()
        found.update(TopicIdPartition(topic_id, index) for index in reader.int32s())
        reader.tags()
    return frozenset(found)


# replay

_APPLY: Mapping[int, Callable[[ShareGroup, str, FlexibleReader], ShareGroup]] = {
    MEMBER: _apply_member,
    GROUP: _apply_group,
    TARGET_EPOCH: _apply_target_epoch,
    TARGET: _apply_target,
    CURRENT: _apply_current,
    STATE_TOPICS: _apply_state_topics,
}


def apply(group: ShareGroup | None, key: ShareRecordKey, value: bytes | None) -> ShareGroup | None:
    """Apply one record to a group; return None if the group does not exist."""
    if value is None:
        return None if group is None or key.kind == GROUP else _without(group, key)
    reader = FlexibleReader(value)
    version = reader.int16()
    if version != _VERSION:  # later releases add tagged fields only
        raise ValueError(f"unknown value version {version} for key {key.kind}")
    return _APPLY[key.kind](group or ShareGroup(group_id=key.group_id), key.member_id, reader)


def replay_record(groups: dict[str, ShareGroup], header: BatchHeader, record: Record) -> bool:
    """Apply one record of `__consumer_offsets` to the groups; return whether it belongs to a share group."""
    key = None if header.is_control or record.key is None else decode_share_group_key(record.key)
    if key is None:
        return False
    group = apply(groups.get(key.group_id), key, record.value)
    if group is not None:
        groups[key.group_id] = group
    else:
        groups.pop(key.group_id, None)
    return True


def _without(group: ShareGroup, key: ShareRecordKey) -> ShareGroup:
    """Apply a tombstone. The tombstones of a member come one by one, so some of its parts may be gone already."""
    if key.kind == MEMBER:
        return replace(group, members={other: of for other, of in group.members.items() if other != key.member_id})
    if key.kind == TARGET:
        return replace(group, targets={other: of for other, of in group.targets.items() if other != key.member_id})
    if key.kind == TARGET_EPOCH:
        return replace(group, assignment_epoch=FIRST_EPOCH, assignment_timestamp_ms=0)
    if key.kind == STATE_TOPICS:
        return replace(group, initializing={}, initialized={}, deleting={})
    return group


# --- the records of a change -----------------------------------------------------------------------------------------


def records_between(before: ShareGroup | None, after: ShareGroup | None) -> list[KeyValue]:
    """Return the records that turn the group `before` into `after`; None means no group."""
    if after is None:
        return [] if before is None else list(_tombstones(before))
    return list(_changes(before or ShareGroup(group_id=after.group_id), after))


def _tombstones(group: ShareGroup) -> Iterator[KeyValue]:
    for kind in (TARGET_EPOCH, STATE_TOPICS, GROUP):
        yield ShareRecordKey(kind, group.group_id).encode(), None


def _changes(before: ShareGroup, after: ShareGroup) -> Iterator[KeyValue]:
    def key(kind: int, member_id: str = "") -> bytes:
        return ShareRecordKey(kind, after.group_id, member_id).encode()

    for member_id in before.members:
        if member_id not in after.members:
            for kind in (CURRENT, TARGET, MEMBER):
                yield key(kind, member_id), None
    for member in after.members.values():
        known = before.members.get(member.member_id)
        if known is None or known.metadata != member.metadata:
            yield key(MEMBER, member.member_id), encode_member(member)
    if (before.group_epoch, before.metadata_hash) != (after.group_epoch, after.metadata_hash):
        yield key(GROUP), encode_group(after)
    for member_id, target in after.targets.items():
        if before.targets.get(member_id) != target:
            yield key(TARGET, member_id), encode_target(target)
    if before.assignment_epoch != after.assignment_epoch:
        yield key(TARGET_EPOCH), encode_target_epoch(after)
    for member in after.members.values():
        known = before.members.get(member.member_id)
        if known is None or known.current != member.current:
            yield key(CURRENT, member.member_id), encode_current(member)
    if _state_topics(before) != _state_topics(after):
        yield key(STATE_TOPICS), encode_state_topics(after)


def _state_topics(group: ShareGroup) -> tuple[object, ...]:
    return group.initializing, group.initialized, group.deleting
