"""Values and keys of `__transaction_state`: those that no broker writes, and any that it may write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions.metadata import TransactionMetadata
from dualwrite.broker_emulator.transactions.states import PERSISTED_STATES, TransactionState
from dualwrite.broker_emulator.transactions.transaction_log import (
    TransactionLogError,
    decode_value,
    encode_value,
)

EMPTY_V0 = "0000 000000000000002a 0003 0000ea60 00 ffffffff 00000000000003e8 ffffffffffffffff"
ONGOING = TransactionMetadata(
    transactional_id="txn-1",
    producer_id=42,
    producer_epoch=3,
    timeout_ms=60000,
    state=TransactionState.ONGOING,
    client_transaction_version=2,
    topic_partitions=frozenset({TopicPartition("t", 2), TopicPartition("t", 0)}),
    start_timestamp_ms=900,
    last_update_timestamp_ms=1000,
)
ONGOING_HEAD_V1 = (
    "0001 000000000000002a 0003 0000ea60 01 02 0274 03 00000000 00000002 00 00000000000003e8 0000000000000384"
)


def test_unknown_tags_are_skipped() -> None:
    with_unknown = bytes.fromhex(ONGOING_HEAD_V1 + "02 02 02 0002 09 03 aabbcc")
    assert decode_value("txn-1", with_unknown) == ONGOING


@pytest.mark.parametrize(
    "value",
    [
        "0002" + EMPTY_V0[4:],  # a version from the future
        EMPTY_V0 + "00",  # left-over bytes
        EMPTY_V0[:-2],  # torn
        EMPTY_V0.replace(" 00 ffffffff", " 06 ffffffff"),  # Dead is never written
        ONGOING_HEAD_V1 + "01 02 03 000002",  # a tag of the wrong size
    ],
)
def test_a_value_that_cannot_be_decoded_is_refused(value: str) -> None:
    with pytest.raises(TransactionLogError):
        decode_value("txn-1", bytes.fromhex(value))


def test_states_that_exist_in_memory_only_are_not_written() -> None:
    dead = TransactionMetadata(
        transactional_id="x", producer_id=1, producer_epoch=2, timeout_ms=3, state=TransactionState.DEAD
    )
    with pytest.raises(ValueError, match="Dead"):
        encode_value(dead, 1)


_int16 = st.integers(-1, 32767)
_int64 = st.integers(-1, 2**63 - 1)
_partitions = st.frozensets(st.builds(TopicPartition, st.text(min_size=1, max_size=200), st.integers(0, 2**31 - 1)))


@given(
    st.builds(
        TransactionMetadata,
        transactional_id=st.just("x"),
        producer_id=_int64,
        producer_epoch=_int16,
        timeout_ms=st.integers(0, 2**31 - 1),
        state=st.sampled_from(sorted(PERSISTED_STATES - {TransactionState.EMPTY})),
        last_producer_epoch=_int16,
        previous_producer_id=_int64,
        next_producer_id=_int64,
        next_producer_epoch=_int16,
        client_transaction_version=st.integers(0, 2),
        topic_partitions=_partitions,
        start_timestamp_ms=_int64,
        last_update_timestamp_ms=_int64,
        pending_state=st.none(),  # not written: only memory knows it
        has_failed_epoch_fence=st.just(False),
    )
)
def test_a_value_is_read_as_it_was_written(metadata: TransactionMetadata) -> None:
    assert decode_value("x", encode_value(metadata, 1)) == metadata


@given(st.binary(max_size=80), st.sampled_from([b"", b"\0\0", b"\0\1"]))
def test_garbage_is_refused_and_nothing_worse(garbage: bytes, version: bytes) -> None:
    try:
        decoded = decode_value("x", version + garbage)
    except TransactionLogError:
        return
    assert decoded.transactional_id == "x"
