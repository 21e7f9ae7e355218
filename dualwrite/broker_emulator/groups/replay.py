"""Groups and offsets as the records of a `__consumer_offsets` partition tell them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dualwrite.broker_emulator.groups.group import Group
from dualwrite.broker_emulator.groups.group_records import decode_group_key, decode_group_value
from dualwrite.broker_emulator.groups.offset_records import decode_key, decode_value
from dualwrite.broker_emulator.groups.offsets import OffsetTable
from dualwrite.broker_emulator.log.record_batch import Record, iter_records, parse_end_txn_marker, parse_header


def replay(batches: Iterable[bytes]) -> tuple[dict[str, Group], OffsetTable]:
    """What is left when all records are read in their order. Offsets make a group of their own accord."""
    groups: dict[str, Group] = {}
    offsets = OffsetTable()
    for batch in batches:
        header = parse_header(batch)
        for record in iter_records(batch):
            if header.is_control:
                marker = parse_end_txn_marker(record)
                if marker is not None:
                    offsets.complete_transaction(header.producer_id, commit=marker.commit)
            elif not _replay_group(groups, record):
                _replay_offset(groups, offsets, record, header.producer_id if header.is_transactional else None)
    return groups, offsets


def _replay_group(groups: dict[str, Group], record: Record) -> bool:
    """Whether the record was about a group itself."""
    group_id = None if record.key is None else decode_group_key(record.key)
    if group_id is None:
        return False
    if record.value is None:
        groups.pop(group_id, None)
    else:
        groups[group_id] = decode_group_value(group_id, record.value)
    return True


def _replay_offset(groups: dict[str, Group], offsets: OffsetTable, record: Record, producer_id: int | None) -> None:
    key = None if record.key is None else decode_key(record.key)
    if key is None:
        return
    if record.value is None:
        offsets.commit(key, None, log_offset=record.offset)
        return
    groups.setdefault(key.group_id, Group(group_id=key.group_id))
    value = decode_value(record.value)
    if producer_id is None:
        offsets.commit(key, value, log_offset=record.offset)
    else:
        offsets.commit_pending(producer_id, key, value, log_offset=record.offset)
