"""The table of committed and pending offsets."""

from __future__ import annotations

from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.groups.offsets import OffsetTable
from dualwrite.broker_emulator.groups.records import CommittedOffset, OffsetKey

KEY = OffsetKey("g", "t", 0)
PARTITION = TopicPartition("t", 0)


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", 0)


def committed(table: OffsetTable) -> int | None:
    value = table.committed("g", PARTITION)
    return None if value is None else value.offset


def test_the_later_record_wins_in_any_order_of_completion() -> None:
    table = OffsetTable()
    table.commit_pending(1, KEY, at(5), log_offset=0)
    table.commit_pending(2, KEY, at(9), log_offset=1)
    table.complete_transaction(2, commit=True)
    table.complete_transaction(1, commit=True)
    assert committed(table) == 9


def test_producers_do_not_touch_each_other() -> None:
    table = OffsetTable()
    table.commit_pending(1, KEY, at(5), log_offset=0)
    table.commit_pending(2, KEY, at(9), log_offset=1)
    table.complete_transaction(1, commit=False)
    assert table.is_unstable("g", PARTITION)
    table.complete_transaction(3, commit=True)
    assert committed(table) is None


def test_tombstones() -> None:
    table = OffsetTable()
    table.commit(KEY, at(1), log_offset=0)
    table.commit(KEY, None, log_offset=1)
    assert committed(table) is None
    assert list(table.partitions("g")) == []


def test_the_partitions_of_a_group() -> None:
    table = OffsetTable()
    table.commit(KEY, at(1), log_offset=0)
    table.commit_pending(1, OffsetKey("g", "u", 3), at(1), log_offset=1)
    table.commit_pending(1, OffsetKey("other", "v", 0), at(1), log_offset=2)
    assert list(table.partitions("g")) == [("t", 0), ("u", 3)]


def test_the_offsets_of_a_group_at_one_moment_do_not_change_afterwards() -> None:
    table = OffsetTable()
    table.commit(KEY, at(1), log_offset=0)
    before = table.of_group("g")
    table.commit_pending(1, KEY, at(5), log_offset=1)
    pending = table.of_group("g")
    table.complete_transaction(1, commit=True)
    table.commit(OffsetKey("g", "t", 1), at(7), log_offset=2)
    for moment, is_unstable in ((before, False), (pending, True)):
        assert (moment.committed(PARTITION), moment.is_unstable(PARTITION)) == (at(1), is_unstable)
        assert list(moment.partitions()) == [PARTITION]
    assert table.of_group("g").committed(PARTITION) == at(5)
