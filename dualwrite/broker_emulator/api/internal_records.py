"""Records that a client produces to an internal topic: accepted only if the next coordinator can read them.

Kafka accepts any records there from its admin client, and its next coordinator stumbles over them. Records of a later
version are accepted, because coordinators ignore them.
"""

from __future__ import annotations

from contextlib import suppress

from dualwrite.broker_emulator.groups.replay import ReplayedGroups
from dualwrite.broker_emulator.groups.share.group import ShareGroup
from dualwrite.broker_emulator.groups.share.records import replay_record
from dualwrite.broker_emulator.log.reading import UNREADABLE, UnknownKeyVersionError
from dualwrite.broker_emulator.log.record import Record
from dualwrite.broker_emulator.log.record_batch import iter_records, parse_header
from dualwrite.broker_emulator.share import state_records
from dualwrite.broker_emulator.topics.topics import SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from dualwrite.broker_emulator.transactions.transaction_log import decode_key, decode_value


def why_unreadable(topic: str, batch: bytes) -> str | None:
    """Return why the coordinator of the internal topic cannot read the batch, or None."""
    groups, share_groups = ReplayedGroups(), dict[str, ShareGroup]()
    try:
        header = parse_header(batch)
        for record in iter_records(batch):
            with suppress(UnknownKeyVersionError):
                if topic == TRANSACTION_STATE_TOPIC:
                    _read_transaction(record)
                elif topic == SHARE_STATE_TOPIC:
                    _read_share_state(record)
                elif not replay_record(share_groups, header, record):
                    groups.apply(header, record)
    except UNREADABLE as error:
        return f"the coordinators of {topic} could not read this: {error}"
    return None


def _read_transaction(record: Record) -> None:
    if record.key is not None:
        transactional_id = decode_key(record.key)
        if record.value is not None:
            decode_value(transactional_id, record.value)


def _read_share_state(record: Record) -> None:
    if record.key is not None:
        kind, _ = state_records.decode_key(record.key)
        if record.value is not None:
            decode = state_records.decode_snapshot if kind == state_records.SNAPSHOT else state_records.decode_update
            decode(record.value)
