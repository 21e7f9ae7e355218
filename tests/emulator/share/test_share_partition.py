"""Decisions about a share-partition, checked against a model that keeps every record by itself."""

from __future__ import annotations

import random

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.share.share_partition import (
    AcknowledgeError,
    Acknowledgement,
    SharePartition,
    ShareSettings,
    Wish,
)
from dualwrite.broker_emulator.share.state import ShareState, ShareStateUpdate
from dualwrite.broker_emulator.share.state_records import (
    decode_snapshot,
    encode_snapshot,
)
from tests.support.proof_only import examples

SETTINGS = ShareSettings(lock_duration_ms=1000, delivery_count_limit=100, max_record_locks=40)
BATCHES = [(first, first + 4) for first in range(0, 200, 5)]
MEMBERS = ("m1", "m2", "m3")


def fetch(share: SharePartition, member: str, now_ms: int, most: int = 500) -> list[int]:
    """Acquire the available records, and return their offsets."""
    batches = [batch for batch in BATCHES if batch[1] >= share.next_fetch_offset]
    acquired = share.acquire(Wish(member, most, 500), batches[:4], SETTINGS, now_ms)
    return [offset for row in acquired for offset in range(row.first_offset, row.last_offset + 1)]


@pytest.mark.parametrize("seed", range(examples(40)))
def test_no_record_has_two_owners_and_none_is_lost(seed: int) -> None:
    """Random steps; the persisted state, read by another leader, leaves out only acknowledged records."""
    chance = random.Random(seed)
    share, state = SharePartition(ShareState(), 0), ShareState()
    owned: dict[int, tuple[str, int]] = {}
    done: set[int] = set()
    now_ms = 0
    for _ in range(150):
        now_ms += chance.choice((0, 10, 400))
        owned = {offset: (member, due_ms) for offset, (member, due_ms) in owned.items() if due_ms > now_ms}
        change = share.time_out(SETTINGS, now_ms)
        state = state.updated(ShareStateUpdate(0, change.start_offset, change.delivery_complete_count, change.batches))
        share.apply(change)
        member = chance.choice(MEMBERS)
        if chance.random() < 0.5:
            for offset in fetch(share, member, now_ms, chance.choice((1, 3, 20))):
                assert offset not in owned
                assert offset not in done
                owned[offset] = member, now_ms + SETTINGS.lock_duration_ms
            continue
        mine = sorted(offset for offset, (owner, _) in owned.items() if owner == member)
        if not mine:
            continue
        chosen = chance.sample(mine, chance.randint(1, len(mine)))
        kinds = {offset: chance.choice((1, 2, 3)) for offset in sorted(chosen)}
        rows = [Acknowledgement(offset, offset, (kind,)) for offset, kind in kinds.items()]
        change = share.acknowledge(member, rows, SETTINGS, now_ms)
        state = state.updated(ShareStateUpdate(0, change.start_offset, change.delivery_complete_count, change.batches))
        share.apply(change)
        for offset, kind in kinds.items():
            del owned[offset]
            if kind != 2:
                done.add(offset)
    assert share.start_offset == min(set(range(201)) - done)
    again = SharePartition(decode_snapshot(encode_snapshot(state)), 0)
    delivered: set[int] = set()
    while found := fetch(again, "m9", now_ms):
        delivered |= set(found)
        again.apply(again.acknowledge("m9", [Acknowledgement(o, o, (1,)) for o in found], SETTINGS, now_ms))
    assert delivered == set(range(200)) - done


def test_records_deleted_from_the_log_are_forgotten() -> None:
    share = SharePartition(ShareState(), 0)
    fetch(share, "m1", 0, 10)
    share.log_start_moved(7)
    share.apply(share.acknowledge("m1", [Acknowledgement(0, 6, (2,)), Acknowledgement(7, 7, (1,))], SETTINGS, 0))
    assert share.start_offset == 8
    with pytest.raises(AcknowledgeError) as refused:
        share.acknowledge("m2", [Acknowledgement(8, 8, (1,))], SETTINGS, 0)
    assert refused.value.error is ErrorCode.invalid_record_state
