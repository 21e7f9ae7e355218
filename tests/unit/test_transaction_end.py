"""A partition log's proof about a prepared transaction: fetch by fetch, without a broker."""

from __future__ import annotations

from typing import Final

import pytest

from dualwrite.client.log.codec import Fetched
from dualwrite.client.log.transaction_end import (
    EndSearch,
    HeadSearch,
    Next,
    PartitionEnd,
    RecordSearch,
    TransactionEnd,
    first_record_of,
)
from dualwrite.client.records.batch_reading import StoredBatch
from dualwrite.client.transactions.manifest import PartitionManifest
from dualwrite.prepared_state import PreparedTxnState

from .log_batches import batch, marker

STATE: Final = PreparedTxnState("7:5")
PART: Final = PartitionManifest("orders", 0, 10, 12, 3)
COMMITTED, ABORTED, GONE = PartitionEnd

OWN: Final = batch(10, b"a", b"b", b"c")
OTHERS: Final = batch(13, b"x", producer_id=8, epoch=0)


def fetched(
    *batches: StoredBatch,
    stable: int = 100,
    end: int = 100,
    aborted: tuple[tuple[int, int], ...] = (),
    out_of_range: bool = False,
) -> Fetched:
    return Fetched(batches, end, stable, aborted, out_of_range)


def searching() -> EndSearch:
    return EndSearch(PART, STATE)


def looking_for_marker() -> EndSearch:
    search = searching()
    assert search.take(fetched(stable=10)) is Next.FETCH
    assert (search.read_committed, search.offset) == (False, 12)
    return search


def test_reading_begins_at_the_undecided_offset_of_the_last_record() -> None:
    search = searching()
    assert (search.read_committed, search.offset, search.alone) == (True, 12, False)


@pytest.mark.parametrize("stable", [13, 100])
def test_decided_and_not_in_the_list_of_the_aborted_is_committed(stable: int) -> None:
    assert searching().take(fetched(OWN, OTHERS, stable=stable)) is COMMITTED


@pytest.mark.parametrize("first", [10, 11, 12])
def test_in_the_list_of_the_aborted(first: int) -> None:
    assert searching().take(fetched(OWN, aborted=((8, 3), (7, first)))) is ABORTED


@pytest.mark.parametrize("aborted", [((8, 10),), ((7, 13),), ((7, 50), (8, 12))])
def test_later_or_foreign_aborts_prove_nothing(aborted: tuple[tuple[int, int], ...]) -> None:
    assert searching().take(fetched(OWN, aborted=aborted)) is COMMITTED


def test_a_list_that_goes_back_too_far_defers_to_the_marker() -> None:
    search = searching()
    assert search.take(fetched(OWN, aborted=((7, 3),))) is Next.FETCH
    assert search.take(fetched(OWN, marker(13, commits=True))) is COMMITTED


@pytest.mark.parametrize(
    "found",
    [
        batch(10, b"a", b"b", b"c", producer_id=8),
        batch(10, b"a", b"b", b"c", epoch=6),
        batch(10, b"a", b"b", b"c", epoch=4),
        batch(10, b"a", b"b", b"c", transactional=False),
        batch(13, b"later"),
        marker(12, commits=True),
    ],
    ids=["producer", "later epoch", "earlier epoch", "no transaction", "gap", "marker"],
)
def test_another_record_at_the_offset(found: StoredBatch) -> None:
    assert searching().take(fetched(found)) is GONE
    assert looking_for_marker().take(fetched(found)) is GONE


def test_out_of_range() -> None:
    assert searching().take(fetched(out_of_range=True)) is GONE
    assert looking_for_marker().take(fetched(out_of_range=True)) is GONE
    assert searching().without_topic() is GONE


def test_batches_before_the_offset_are_passed_over() -> None:
    assert searching().take(fetched(batch(8, b"x", b"y", producer_id=9), OWN)) is COMMITTED


def test_an_empty_response_is_proof_only_if_it_was_asked_for_alone() -> None:
    search = searching()
    assert search.take(fetched()) is Next.FETCH
    assert search.alone
    assert search.take(fetched()) is GONE
    search = searching()
    assert search.take(fetched()) is Next.FETCH
    assert search.take(fetched(OWN)) is COMMITTED


@pytest.mark.parametrize("stable", [0, 10, 12])
def test_an_end_undecided_so_far_is_searched_by_its_marker(stable: int) -> None:
    search = searching()
    assert search.take(fetched(stable=stable)) is Next.FETCH
    assert search.take(fetched(OWN, OTHERS, marker(14, commits=False, epoch=6), stable=stable)) is ABORTED


def test_the_first_marker_of_the_producer_id_decides() -> None:
    commit, abort = marker(15, commits=True, epoch=9), marker(17, commits=False)
    of_another = marker(14, commits=False, producer_id=8, epoch=0)
    assert looking_for_marker().take(fetched(OWN, OTHERS, of_another, commit, abort)) is COMMITTED
    before = marker(9, commits=False)
    assert looking_for_marker().take(fetched(before, OWN, commit)) is COMMITTED


def test_the_marker_is_looked_for_as_far_as_the_log_goes() -> None:
    search = looking_for_marker()
    assert search.take(fetched(OWN, OTHERS)) is Next.FETCH
    assert search.offset == 14
    assert search.take(fetched()) is Next.FETCH
    assert search.alone
    assert search.take(fetched(batch(14, b"x", producer_id=8), end=16)) is Next.FETCH
    assert (search.offset, search.alone) == (15, False)
    assert search.take(fetched(marker(15, commits=True), end=16)) is COMMITTED


def test_a_missing_marker_is_waited_for() -> None:
    search = looking_for_marker()
    assert search.take(fetched(OWN, end=13)) is Next.WAIT
    assert search.take(fetched(end=13)) is Next.WAIT
    assert search.take(fetched(marker(13, commits=True), end=14)) is COMMITTED


def test_records_that_a_new_leader_does_not_show_yet_are_waited_for() -> None:
    """A fetch from behind them is in range, so they are stored; only the high watermark is not known yet."""
    search = looking_for_marker()
    for end in (9, 12):
        assert search.take(fetched(stable=9, end=end)) is Next.FETCH
        assert search.offset == 13
        assert search.take(fetched(stable=9, end=end)) is Next.WAIT
        assert (search.offset, search.read_committed) == (12, True)
        assert search.take(fetched(stable=9, end=end)) is Next.FETCH
        assert search.read_committed is False
    assert search.take(fetched(OWN, marker(13, commits=True))) is COMMITTED


def test_a_log_that_ends_right_before_the_last_record_has_lost_it() -> None:
    """Or its topic is another one. A fetch from its very end is in range, and one from behind the record is not."""
    search = looking_for_marker()
    assert search.take(fetched(stable=12, end=12)) is Next.FETCH
    assert search.offset == 13
    assert search.take(fetched(out_of_range=True)) is GONE


def test_an_empty_end_of_the_log_is_waited_for_but_missing_records_are_gone() -> None:
    search = looking_for_marker()
    assert search.take(fetched()) is Next.FETCH
    assert search.take(fetched()) is GONE
    search = looking_for_marker()
    assert search.take(fetched(OWN)) is Next.FETCH
    assert search.take(fetched()) is Next.FETCH
    assert search.take(fetched()) is Next.WAIT


def test_a_truncated_log_is_read_again() -> None:
    search = looking_for_marker()
    assert search.take(fetched(OWN, OTHERS)) is Next.FETCH
    assert search.take(fetched(out_of_range=True)) is Next.WAIT
    assert (search.read_committed, search.offset, search.alone) == (True, 12, False)
    assert search.take(fetched(out_of_range=True)) is GONE


# ---- records ------------------------------------------------------------------------------------------------------


def values(search: RecordSearch, *responses: Fetched) -> list[bytes | None]:
    for response in responses[:-1]:
        assert search.take(response) is Next.FETCH
    found = search.take(responses[-1])
    assert isinstance(found, list)
    return [record.value for record in found]


def test_the_records_of_the_transaction_between_those_of_others() -> None:
    part = PartitionManifest("orders", 0, 10, 20, 3)
    log = [
        batch(8, b"-", b"-"), batch(10, b"a"), OTHERS, batch(14, b"-", epoch=4), batch(15, b"-", transactional=False),
        marker(16, commits=True, producer_id=8), batch(17, b"-", producer_id=8), batch(19, b"b", b"c"), batch(21, b"-"),
    ]  # fmt: skip
    assert values(RecordSearch(part, STATE), fetched(*log)) == [b"a", b"b", b"c"]
    assert values(RecordSearch(part, STATE), *(fetched(each) for each in log[:-1])) == [b"a", b"b", b"c"]


def test_records_outside_of_the_offsets_are_not_of_the_manifest() -> None:
    part = PartitionManifest("orders", 0, 11, 11, 1)
    assert values(RecordSearch(part, STATE), fetched(OWN)) == [b"b"]


def test_an_absent_transaction_is_not_found() -> None:
    assert values(RecordSearch(PART, STATE), fetched(out_of_range=True)) == []
    assert values(RecordSearch(PART, STATE), fetched(), fetched()) == []
    assert values(RecordSearch(PART, STATE), fetched(batch(12, b"c"))) == [b"c"]
    assert RecordSearch(PART, STATE).without_topic() == []


def test_a_record_that_is_not_shown_yet_is_waited_for() -> None:
    search = RecordSearch(PART, STATE)
    assert search.take(fetched(end=10)) is Next.WAIT
    assert values(search, fetched(OWN)) == [b"a", b"b", b"c"]


# ---- all partitions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "committed", "aborted", "gone"),
    [
        ((), False, 0, 0),
        ((COMMITTED,), True, 0, 0),
        ((COMMITTED, COMMITTED), True, 0, 0),
        ((COMMITTED, ABORTED), False, 1, 0),
        ((ABORTED, ABORTED), False, 2, 0),
        ((COMMITTED, GONE), True, 0, 1),  # the coordinator decides for all partitions alike
        ((GONE, ABORTED), False, 1, 1),
    ],
)
def test_the_end_of_a_transaction_is_that_of_all_its_partitions(
    ends: tuple[PartitionEnd, ...], committed: bool, aborted: int, gone: int
) -> None:
    parts = [PART._replace(partition=partition) for partition in range(len(ends))]
    end = TransactionEnd(dict(zip(parts, ends, strict=True)))
    assert end.committed is committed
    assert end.aborted == tuple(part for part, each in zip(parts, ends, strict=True) if each is ABORTED)
    assert (len(end.aborted), len(end.gone)) == (aborted, gone)


# ---- aborted in part ----------------------------------------------------------------------------------------------

WHOLE: Final = PartitionManifest("orders", 0, 10, 17, 5)
FIRST: Final = batch(10, b"a", b"b")
SECOND: Final = batch(13, b"c")
REST: Final = batch(16, b"d", b"e")
AN_ABORT: Final = marker(12, commits=False)


def test_the_first_record_has_an_end_of_its_own() -> None:
    assert first_record_of(WHOLE) == PartitionManifest("orders", 0, 10, 10, 1)


def test_a_transaction_aborted_before_the_last_record() -> None:
    found = HeadSearch(WHOLE, STATE).take(fetched(FIRST, AN_ABORT, OTHERS, REST))
    assert found == {
        PartitionManifest("orders", 0, 10, 11, 3): ABORTED,  # the log has two of its records: they are not complete
        PartitionManifest("orders", 0, 16, 17, 2): COMMITTED,
    }


def test_reading_continues_until_the_last_record() -> None:
    search = HeadSearch(WHOLE, STATE)
    assert (search.read_committed, search.offset) == (False, 10)
    assert search.take(fetched(FIRST, AN_ABORT)) is Next.FETCH
    assert search.take(fetched(SECOND, marker(15, commits=False))) is Next.FETCH
    assert search.take(fetched(REST, marker(18, commits=True))) == {
        PartitionManifest("orders", 0, 10, 13, 3): ABORTED,
        PartitionManifest("orders", 0, 16, 17, 2): COMMITTED,
    }


def test_the_marker_of_another_producer_ends_nothing() -> None:
    others = marker(12, commits=False, producer_id=8)
    assert HeadSearch(WHOLE, STATE).take(fetched(FIRST, others, SECOND, AN_ABORT, REST)) == {
        PartitionManifest("orders", 0, 10, 13, 3): ABORTED,
        PartitionManifest("orders", 0, 16, 17, 2): COMMITTED,
    }


def test_a_log_that_lost_its_records_meanwhile_proves_nothing() -> None:
    search = HeadSearch(WHOLE, STATE)
    assert search.take(fetched(FIRST, AN_ABORT)) is Next.FETCH
    assert search.take(fetched(out_of_range=True)) == {WHOLE: GONE}
