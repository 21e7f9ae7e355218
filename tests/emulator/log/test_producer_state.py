"""The rules for a producer's batches and markers, one at a time and against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.producer_state import (
    AppendedBatch,
    ProducerEntry,
    after_batch,
    after_marker,
    check_epoch,
    check_marker,
    check_same_kind,
    check_sequence,
    check_verified,
    find_duplicate,
    is_open,
    next_sequence,
)
from dualwrite.broker_emulator.log.record_batch import BatchHeader, parse_header
from dualwrite.broker_emulator.log.verification import VerificationEntry, VerificationGuard
from tests.emulator.log.writers import batch

MAX = 2147483647
GUARD = VerificationGuard()


def header(*, epoch: int = 5, sequence: int = 0, records: int = 1, transactional: bool = True) -> BatchHeader:
    values = [b"v"] * records
    return parse_header(
        batch(*values, producer_id=9, producer_epoch=epoch, base_sequence=sequence, transactional=transactional)
    )


def entry(
    *, epoch: int = 5, last_sequence: int | None = None, coordinator_epoch: int = -1, open_since: int = -1
) -> ProducerEntry:
    batches = () if last_sequence is None else (AppendedBatch(last_sequence, last_sequence, 100),)
    return ProducerEntry(epoch, coordinator_epoch, 0, 0, open_since, batches)


def pending(*, lowest: int = 0, bump: bool = False) -> VerificationEntry:
    return VerificationEntry(GUARD, 5, lowest, bump)


def sequence_error(
    known: ProducerEntry | None,
    new: BatchHeader,
    verification: VerificationEntry | None = None,
) -> ErrorCode:
    rejection = check_sequence(known, new, verification)
    return ErrorCode.none if rejection is None else rejection.error


OK = ErrorCode.none
OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number


@pytest.mark.parametrize(
    ("last_sequence", "epoch", "sequence", "expected"),
    [
        (4, 5, 5, OK),
        (4, 5, 6, OUT_OF_ORDER),
        (4, 5, 4, OUT_OF_ORDER),
        (4, 5, 0, OUT_OF_ORDER),
        (MAX, 5, 0, OK),
        (MAX, 5, 1, OUT_OF_ORDER),
        (MAX - 1, 5, 0, OUT_OF_ORDER),
        (MAX - 1, 5, MAX, OK),
        # only a marker was written with this epoch
        (None, 5, 0, OK),
        (None, 5, 1, OUT_OF_ORDER),
        # a new epoch restarts the sequences
        (4, 6, 0, OK),
        (4, 6, 5, OUT_OF_ORDER),
        (None, 6, 5, OUT_OF_ORDER),
    ],
)
def test_sequences_after_a_known_batch(
    last_sequence: int | None, epoch: int, sequence: int, expected: ErrorCode
) -> None:
    known = entry(last_sequence=last_sequence)
    assert sequence_error(known, header(epoch=epoch, sequence=sequence)) is expected


@pytest.mark.parametrize(
    ("verification", "sequence", "expected"),
    [
        (None, 77, OK),
        (pending(lowest=77), 77, OK),  # an old client may go on where its expired state ended
        (pending(lowest=77), 78, OUT_OF_ORDER),  # KAFKA-14920
        (pending(lowest=77, bump=True), 77, OUT_OF_ORDER),
        (pending(lowest=0, bump=True), 0, OK),
    ],
)
def test_first_sequence_of_an_unknown_producer(
    verification: VerificationEntry | None, sequence: int, expected: ErrorCode
) -> None:
    assert sequence_error(None, header(sequence=sequence), verification) is expected


def test_a_later_batch_does_not_overtake_the_first_one_being_verified() -> None:
    known = entry(last_sequence=3)
    assert sequence_error(known, header(sequence=4), pending(lowest=4)) is OK
    assert sequence_error(None, header(sequence=5), pending(lowest=4)) is OUT_OF_ORDER


def test_a_client_that_bumps_its_epoch_starts_at_0_behind_a_marker_too() -> None:
    known = ProducerEntry(-1, -1, 0, 0, -1, ())
    assert sequence_error(known, header(sequence=1), pending(lowest=1, bump=True)) is OUT_OF_ORDER
    assert sequence_error(known, header(sequence=1), pending(lowest=1)) is OK


@pytest.mark.parametrize(("epoch", "expected"), [(4, ErrorCode.invalid_producer_epoch), (5, None), (6, None)])
def test_lower_epochs_are_fenced(epoch: int, expected: ErrorCode | None) -> None:
    rejection = check_epoch(entry(epoch=5), header(epoch=epoch))
    assert (rejection and rejection.error) == expected
    assert check_epoch(None, header(epoch=epoch)) is None


def test_only_the_five_newest_batches_of_the_epoch_are_recognised() -> None:
    known: ProducerEntry | None = None
    for index in range(7):
        known = after_batch(known, header(sequence=index * 2, records=2), base_offset=100 + index * 2, now_ms=0)
    offsets = {}
    for index in range(7):
        duplicate = find_duplicate(known, header(sequence=index * 2, records=2))
        offsets[index] = duplicate and duplicate.base_offset
    assert offsets == {0: None, 1: None, 2: 104, 3: 106, 4: 108, 5: 110, 6: 112}
    assert find_duplicate(known, header(sequence=12, records=1)) is None  # other last sequence
    assert find_duplicate(known, header(sequence=12, records=2, epoch=6)) is None
    known = after_batch(known, header(epoch=6, records=2), base_offset=114, now_ms=0)
    assert [kept.base_offset for kept in known.batches] == [114]


def test_a_transaction_begins_with_its_first_batch_and_ends_with_its_marker() -> None:
    known = after_batch(None, header(transactional=False), base_offset=10, now_ms=0)
    assert not known.has_open_transaction
    known = after_batch(known, header(sequence=1), base_offset=11, now_ms=0)
    known = after_batch(known, header(sequence=2), base_offset=12, now_ms=0)
    assert known.current_txn_first_offset == 11
    assert (is_open(known, 5), is_open(known, 6), is_open(None, 5)) == (True, False, False)
    known = after_marker(known, 6, 3, now_ms=99)
    assert known == ProducerEntry(6, 3, 99, 99, -1, ())
    assert after_marker(entry(last_sequence=7, open_since=3), 5, 1, now_ms=0).last_sequence == 7


def test_the_first_append_of_a_transaction_needs_its_guard() -> None:
    def error(known: ProducerEntry | None, guard: VerificationGuard | None, **fields: bool) -> ErrorCode | None:
        rejection = check_verified(known, header(**fields), pending(), guard)
        return rejection and rejection.error

    unverified = ErrorCode.invalid_txn_state
    assert error(None, GUARD) is None
    assert error(None, None) is unverified
    assert error(None, VerificationGuard()) is unverified
    assert error(None, VerificationGuard.SENTINEL) is unverified
    assert error(entry(open_since=3), None) is None
    assert error(entry(epoch=4, open_since=3), None) is unverified  # open, but not with this epoch: KAFKA-18654
    assert error(None, None, transactional=False) is None
    rejection = check_verified(None, header(), None, GUARD)  # a marker took the entry away
    assert rejection is not None
    assert rejection.error is unverified


def test_no_plain_batch_while_a_transaction_is_open() -> None:
    rejection = check_same_kind(entry(open_since=3), header(transactional=False))
    assert rejection is not None
    assert rejection.error is ErrorCode.invalid_txn_state
    assert check_same_kind(entry(open_since=3), header()) is None
    assert check_same_kind(entry(), header(transactional=False)) is None


STALE = ErrorCode.invalid_producer_epoch
FENCED = ErrorCode.transaction_coordinator_fenced


@pytest.mark.parametrize(
    ("transaction_version", "open_since", "marker_epoch", "coordinator_epoch", "expected"),
    [
        (0, 3, 4, 7, STALE),
        (0, 3, 5, 7, None),
        (1, -1, 5, 7, None),
        (1, 3, 6, 8, None),
        (2, 3, 4, 7, STALE),
        (2, -1, 4, 7, STALE),
        (2, 3, 5, 7, STALE),  # the marker of the transaction before: KAFKA-19446
        (2, -1, 5, 7, None),  # the same marker once more: KAFKA-19999
        (2, 3, 6, 7, None),
        (2, 3, 32767, 7, None),
        (0, 3, 5, 6, FENCED),
        (2, 3, 6, 6, FENCED),
        (2, -1, 5, 6, FENCED),
        (2, 3, 5, 6, STALE),  # both: Kafka looks at the producer epoch first
    ],
)
def test_markers(
    transaction_version: int, open_since: int, marker_epoch: int, coordinator_epoch: int, expected: ErrorCode | None
) -> None:
    known = entry(coordinator_epoch=7, open_since=open_since)
    rejection = check_marker(known, marker_epoch, coordinator_epoch, transaction_version)
    assert (rejection and rejection.error) == expected
    assert check_marker(None, marker_epoch, coordinator_epoch, transaction_version) is None


def test_next_sequence() -> None:
    assert [next_sequence(last) for last in (-1, 0, MAX - 1, MAX)] == [0, 1, MAX, 0]


@given(
    start=st.sampled_from([0, 7, MAX - 5, MAX]),
    attempts=st.lists(st.tuples(st.integers(-14, 3), st.integers(1, 4)), max_size=40),
)
def test_sequences_and_duplicates_against_a_naive_model(start: int, attempts: list[tuple[int, int]]) -> None:
    """The model counts records without ever wrapping; `shift` is how far off the right place a batch is sent."""
    known: ProducerEntry | None = None
    accepted: list[tuple[int, int]] = []  # (unwrapped first sequence, records)
    right_place = start
    for shift, count in attempts:
        first = max(right_place + shift, start)
        new = header(sequence=first % (MAX + 1), records=count, transactional=False)
        duplicate = find_duplicate(known, new)
        if (first, count) in accepted[-5:]:
            assert duplicate is not None
            assert duplicate.base_offset == first
        elif first == right_place or known is None:
            assert duplicate is None
            assert check_sequence(known, new, None) is None
            known = after_batch(known, new, base_offset=first, now_ms=0)
            accepted.append((first, count))
            right_place = first + count
        else:
            assert duplicate is None
            assert sequence_error(known, new) is OUT_OF_ORDER
