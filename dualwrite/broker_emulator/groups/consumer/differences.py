"""Which records lead from one state of a group to another, classic or not. Pure.

A record for each thing that is another one now, in the order in which Kafka's coordinator writes them: who is gone,
what members said, the group epoch, the target assignment, what members have.
"""

from __future__ import annotations

from collections.abc import Iterator

from dualwrite.broker_emulator.groups.consumer import records
from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup, ConsumerMember
from dualwrite.broker_emulator.groups.consumer.records import RecordKey
from dualwrite.broker_emulator.groups.group import Group
from dualwrite.broker_emulator.groups.group_records import encode_group_key, encode_group_value

AnyGroup = Group | ConsumerGroup
Record = tuple[bytes, bytes | None]


def records_between(before: AnyGroup | None, after: AnyGroup | None) -> list[Record]:
    """What has to be written for a group to be `after` where it was `before`; None: there is none."""
    written: list[Record] = []
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


def _tombstones(group: ConsumerGroup) -> Iterator[Record]:
    def tombstone(kind: int, name: str = "") -> Record:
        return RecordKey(kind, group.group_id, name).encode(), None

    yield from (tombstone(records.CURRENT, member_id) for member_id in group.members)
    yield from (tombstone(records.TARGET, member_id) for member_id in group.members)
    yield tombstone(records.TARGET_EPOCH)
    yield from (tombstone(records.MEMBER, member_id) for member_id in group.members)
    yield from (tombstone(records.REGULAR_EXPRESSION, regex) for regex in group.regular_expressions)
    yield tombstone(records.PARTITION_METADATA)
    yield tombstone(records.GROUP)


def _changes(before: ConsumerGroup, after: ConsumerGroup) -> Iterator[Record]:
    group_id = after.group_id

    def key(kind: int, name: str = "") -> bytes:
        return RecordKey(kind, group_id, name).encode()

    for member_id in before.members:
        if member_id not in after.members:
            for kind in (records.CURRENT, records.TARGET, records.MEMBER):
                yield key(kind, member_id), None
    for member in after.members.values():
        known = before.members.get(member.member_id)
        if known is None or (known is not member and known.metadata != member.metadata):
            yield key(records.MEMBER, member.member_id), records.encode_member(member)
    for regex in before.regular_expressions:
        if regex not in after.regular_expressions:
            yield key(records.REGULAR_EXPRESSION, regex), None
    for regex, found in after.regular_expressions.items():
        if before.regular_expressions.get(regex) != found:
            yield key(records.REGULAR_EXPRESSION, regex), records.encode_regular_expression(found)
    if (before.group_epoch, before.metadata_hash) != (after.group_epoch, after.metadata_hash):
        yield key(records.GROUP), records.encode_group(after)
    for member_id, target in after.targets.items():
        if before.targets.get(member_id) != target:
            yield key(records.TARGET, member_id), records.encode_target(target)
    if (before.assignment_epoch, before.assignment_timestamp_ms) != (
        after.assignment_epoch,
        after.assignment_timestamp_ms,
    ):
        yield key(records.TARGET_EPOCH), records.encode_target_epoch(after)
    for member in after.members.values():
        known = before.members.get(member.member_id) or ConsumerMember(member_id=member.member_id)
        if known is not member and known.current != member.current:
            yield key(records.CURRENT, member.member_id), records.encode_current(member)
