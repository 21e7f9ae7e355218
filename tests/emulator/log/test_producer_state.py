"""Sequences of an idempotent producer, against a naive model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.producer_state import ProducerEntry, after_batch, check_sequence, find_duplicate
from dualwrite.broker_emulator.log.record_batch import parse_header
from tests.emulator.log.writers import batch

MAX = 2147483647


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
        new = parse_header(batch(*[b"v"] * count, producer_id=9, producer_epoch=5, base_sequence=first % (MAX + 1)))
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
            rejection = check_sequence(known, new, None)
            assert rejection is not None
            assert rejection.error is ErrorCode.out_of_order_sequence_number
