"""Replay the records of a `__consumer_offsets` partition into groups and offsets. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dualwrite.broker_emulator.groups.consumer.group import AnyGroup, ConsumerGroup
from dualwrite.broker_emulator.groups.consumer.records import RecordKey, apply, decode_consumer_group_key
from dualwrite.broker_emulator.groups.group import Group
from dualwrite.broker_emulator.groups.offsets import OffsetTable
from dualwrite.broker_emulator.groups.records import (
    decode_group_key,
    decode_group_value,
    decode_offset_key,
    decode_offset_value,
    key_version,
)
from dualwrite.broker_emulator.log.reading import UnknownKeyVersionError
from dualwrite.broker_emulator.log.record import Record
from dualwrite.broker_emulator.log.record_batch import BatchHeader, iter_records, parse_end_txn_marker, parse_header


def replay(batches: Iterable[bytes]) -> tuple[dict[str, AnyGroup], OffsetTable]:
    """Return the groups and offsets after the records; an offset of an unknown group creates a group."""
    replayed = ReplayedGroups()
    for batch in batches:
        header = parse_header(batch)
        for record in iter_records(batch):
            replayed.apply(header, record)
    return replayed.groups, replayed.offsets


class ReplayedGroups:
    """The groups and offsets after the records applied so far."""

    __slots__ = ("groups", "offsets")

    def __init__(self) -> None:
        self.groups: dict[str, AnyGroup] = {}
        self.offsets = OffsetTable()

    def apply(self, header: BatchHeader, record: Record) -> None:
        """Apply one record of a batch. Raises UnknownKeyVersionError, and the errors in `UNREADABLE`."""
        if header.is_control:
            marker = parse_end_txn_marker(record)
            if marker is not None:
                self.offsets.complete_transaction(header.producer_id, commit=marker.commit)
        elif record.key is not None:
            producer_id = header.producer_id if header.is_transactional else None
            _replay(self.groups, self.offsets, record, record.key, producer_id)


def _replay(
    groups: dict[str, AnyGroup], offsets: OffsetTable, record: Record, key: bytes, producer_id: int | None
) -> None:
    group_id = decode_group_key(key)
    consumer_key = decode_consumer_group_key(key)
    if group_id is not None:
        _replay_classic_group(groups, group_id, record.value)
    elif consumer_key is not None:
        _replay_consumer_group(groups, consumer_key, record.value)
    else:
        _replay_offset(groups, offsets, record, key, producer_id)


def _replay_classic_group(groups: dict[str, AnyGroup], group_id: str, value: bytes | None) -> None:
    if value is not None:
        groups[group_id] = decode_group_value(group_id, value)
    elif isinstance(groups.get(group_id), Group):
        del groups[group_id]


def _replay_consumer_group(groups: dict[str, AnyGroup], key: RecordKey, value: bytes | None) -> None:
    known = groups.get(key.group_id)
    before = known if isinstance(known, ConsumerGroup) else None
    after = apply(before, key, value)
    if after is not None:
        groups[key.group_id] = after
    elif before is not None:
        del groups[key.group_id]


def _replay_offset(
    groups: dict[str, AnyGroup], offsets: OffsetTable, record: Record, data: bytes, producer_id: int | None
) -> None:
    key = decode_offset_key(data)
    if key is None:
        raise UnknownKeyVersionError(key_version(data))
    if record.value is None:
        offsets.commit(key, None, log_offset=record.offset)
        return
    groups.setdefault(key.group_id, Group(group_id=key.group_id))
    value = decode_offset_value(record.value)
    if producer_id is None:
        offsets.commit(key, value, log_offset=record.offset)
    else:
        offsets.commit_pending(producer_id, key, value, log_offset=record.offset)
