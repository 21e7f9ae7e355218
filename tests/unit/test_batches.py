"""Record batches of either builder, and the order in which batches are sent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch

from dualwrite.client.kafka_python import WholeRecordsBuilder
from dualwrite.client.pacing import Backoff
from dualwrite.client.records import accumulator as accumulator_module
from dualwrite.client.records import batches, partition_queue
from dualwrite.client.records.accumulator import MAX_SEQUENCE, Accumulator
from dualwrite.client.records.batches import (
    HEADER_BYTES,
    BuiltBatch,
    EncodedBatch,
    LibraryBuilder,
    restamp,
    stamp_and_build,
)
from dualwrite.client.records.compression import codec_for
from dualwrite.client.records.delivery import DeliveryCallbacks, metadata_of, stored_records
from dualwrite.client.records.partition_queue import Batch, Part
from dualwrite.client.records.value_batch import records_factory
from dualwrite.errors import DeliveryError, FatalError
from tests.support.strikes import Strike, StruckExit, explained

LOST = DeliveryError("lost")


def build(**identity: int) -> BuiltBatch:
    builder = LibraryBuilder(transactional=True, batch_size=1000)
    builder.append(0, 1_700_000_000_000, b"k", b"v", [("h", b"1")])
    builder.append(1, 1_700_000_000_001, None, None, [])
    return stamp_and_build(builder, identity["producer_id"], identity["epoch"], identity["sequence"])


def test_both_builders_write_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = build(producer_id=42, epoch=7, sequence=9)
    monkeypatch.setattr(batches, "_Builder", WholeRecordsBuilder)
    monkeypatch.setattr(batches, "_STAMP_ARGUMENTS", (True,))
    other = build(producer_id=42, epoch=7, sequence=9)
    other[12:16] = compiled[12:16]  # the leader epoch is the broker's to write
    assert other == compiled


def test_kafka_pythons_builder_counts_no_record_that_an_exception_has_cut_off() -> None:
    class Full(bytearray):
        def extend(self, _: Any) -> None:
            raise KeyboardInterrupt

    untyped: Any = WholeRecordsBuilder
    builder = untyped(2, 0, 0, -1, -1, -1, 1000)
    builder.append(0, 1_700_000_000_000, None, b"a", [])
    before = bytes(builder._buffer)
    builder._buffer = Full(before)
    with pytest.raises(KeyboardInterrupt):
        builder.append(1, 1_700_000_000_000, None, b"b", [])
    assert bytes(builder._buffer) == before
    batch: Any = DefaultRecordBatch(bytes(builder.build()))
    assert (batch.validate_crc(), batch.last_offset_delta, len(list(batch))) == (True, 0, 1)


def test_a_restamped_batch_is_as_if_built_so() -> None:
    data = build(producer_id=42, epoch=7, sequence=9)
    restamp(data, 43, 0, 0)
    assert data == build(producer_id=43, epoch=0, sequence=0)
    batch: Any = DefaultRecordBatch(bytes(data))
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.is_transactional) == (43, 0, 0, True)


# ---- the accumulator --------------------------------------------------------------------------------------------


def accumulator(**settings: Any) -> Accumulator:
    values: dict[str, Any] = {
        "transactional": True,
        "idempotent": True,
        "batch_size": 200,
        "max_request_size": 1000,
        "buffer_memory": 100_000,
        "linger_ms": 5,
        "delivery_timeout_ms": 1000,
        "max_in_flight": 5,
    } | settings
    factory = records_factory(transactional=True, batch_size=values["batch_size"])
    return Accumulator(new_records=factory, new_backoff=lambda: Backoff(100, 1000), **values)


def fill(acc: Accumulator, batches: int, *, partition: int = 0, topic: str = "t", now_ms: float = 0) -> list[Batch]:
    """Append that many closed batches of one record each, for a broker that has stored an earlier one."""
    made = []
    for _ in range(batches):
        batch = acc.append(topic, partition, 0, None, b"x", [], now_ms)
        assert batch is not None
        batch.queue.acknowledged_id = 1
        acc.close_open_batches()
        made.append(batch)
    return made


def drain(acc: Accumulator, now_ms: float = 0, *, pair: tuple[int, int] = (1, 0)) -> list[Batch]:
    """Drain once, with one node that leads all partitions."""
    return [b for batches in acc.drain(now_ms, lambda *_: 7, *pair).values() for b in batches]


def test_sequences_count_records_and_restart_with_another_pair() -> None:
    acc = accumulator()
    for value in (b"a", b"b"):
        batch = acc.append("t", 0, 0, None, value, [], 0.0)
        assert batch is not None
        batch.queue.acknowledged_id = 1
    acc.close_open_batches()
    (two,) = drain(acc)
    fill(acc, 2)
    (third,) = drain(acc)
    assert (two.base_sequence, third.base_sequence) == (0, 2)
    acc.delivered(two, 0, -1)
    acc.delivered(third, 2, -1)
    (next_epoch,) = drain(acc, pair=(1, 1))
    assert (next_epoch.base_sequence, next_epoch.producer_epoch) == (0, 1)


def test_a_batch_that_cannot_be_built_fails_with_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> BuiltBatch:
        raise MemoryError

    acc = accumulator()
    (refused, unbuilt) = fill(acc, 1)[0], fill(acc, 1, partition=1)[0]
    monkeypatch.setattr(accumulator_module, "stamp_and_build", exhausted)
    with pytest.raises(MemoryError):
        drain(acc)
    acc.drop_all(LOST)
    assert [batch.error for batch in (refused, unbuilt)] == [LOST, LOST]
    assert acc.incomplete == 0


@pytest.mark.parametrize(
    "act",
    [
        lambda acc, _: drain(acc, 500),
        lambda acc, sent: acc.delivered(sent, 0, -1),
        lambda acc, sent: acc.failed(sent, LOST),
        lambda acc, sent: acc.send_again(sent, 0, None),
        lambda acc, sent: acc.split(sent),
        lambda acc, _: acc.expire(5000, lambda _: "away"),
    ],
    ids=["drain", "delivered", "failed", "send again", "split", "expire"],
)
def test_an_exception_of_a_signal_leaves_no_batch_without_outcome(act: Callable[[Accumulator, Batch], object]) -> None:
    place, was_struck = 0, True
    while was_struck:
        place += 1
        acc = accumulator(batch_size=1000)
        batches = [large(acc, 4), *fill(acc, 1, now_ms=100), *fill(acc, 1, partition=1)]
        drain(acc, pair=(1, 0))
        with Strike(place, StruckExit, (accumulator_module.__file__, partition_queue.__file__)) as struck:
            with suppress(StruckExit):
                act(acc, batches[0])
        was_struck = bool(struck.where)
        acc.drop_all(LOST)
        with explained(struck.where):
            assert [batch.done for batch in batches] == [True] * 3
            assert (acc.incomplete, acc.buffer_used, acc.incomplete_batches(), drain(acc, 9000)) == (0, 0, [], [])


def test_a_callback_whose_registration_was_interrupted_keeps_none_from_being_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    called: list[int] = []
    callbacks = DeliveryCallbacks(threading.Lock(), lambda call: call())
    (batch,) = fill(accumulator(), 1)
    with monkeypatch.context() as signal:
        signal.setattr(Batch, "listen", interrupted)
        with pytest.raises(KeyboardInterrupt):
            callbacks.add(batch, 0, 0, lambda *_: called.append(0))
    callbacks.add(batch, 0, 0, lambda *_: called.append(1))
    callbacks.add(batch, 0, 0, lambda *_: called.append(2))
    batch.end(None)
    assert called == [1, 2]


def test_a_batch_that_cannot_be_split_fails_with_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> BuiltBatch:
        raise MemoryError

    acc = accumulator()
    batch = large(acc, 2)
    assert drain(acc) == [batch]
    monkeypatch.setattr(accumulator_module, "stamp_and_build", exhausted)
    with pytest.raises(MemoryError):
        acc.split(batch)
    acc.drop_all(LOST)
    assert (batch.done, batch.error, acc.incomplete) == (True, LOST, 0)


def test_a_future_keeps_no_records() -> None:
    acc = accumulator()
    (batch,) = fill(acc, 1)
    assert batch.records.size() > HEADER_BYTES
    drain(acc)
    acc.delivered(batch, 0, -1)
    assert batch.records.size() == HEADER_BYTES
    assert batch.append(1, 0, None, b"x", []) is None


def test_sequences_wrap() -> None:
    acc = accumulator()
    (first,) = fill(acc, 1)
    drain(acc)
    first.queue.next_sequence = MAX_SEQUENCE
    fill(acc, 2)
    assert [drain(acc)[0].base_sequence, drain(acc)[0].base_sequence] == [MAX_SEQUENCE, 0]


def test_at_most_five_batches_of_a_partition_are_on_their_way() -> None:
    acc = accumulator()
    batches = fill(acc, 7)
    assert [drain(acc) for _ in range(6)] == [[b] for b in batches[:5]] + [[]]
    acc.delivered(batches[0], 0, -1)
    assert drain(acc) == [batches[5]]


def test_a_batch_is_not_behind_itself() -> None:
    acc = accumulator()
    (batch,) = fill(acc, 1)
    drain(acc)
    assert not batch.queue.has_unresolved_before(batch)
    acc.send_again(batch, 0, 45)
    assert not batch.queue.has_unresolved_before(batch)


def test_repeated_batches_go_first_alone_and_unchanged() -> None:
    acc = accumulator()
    batches = fill(acc, 4)
    for _ in range(3):
        drain(acc)
    acc.send_again(batches[1], 0, 45)
    acc.send_again(batches[0], 0, 19)
    assert batches[2].queue.has_unresolved_before(batches[2])
    assert drain(acc, 300) == [], "while a later one is on its way, nothing is"
    acc.send_again(batches[2], 0, 45)
    for batch in batches[:2]:
        assert drain(acc, 1000) == [batch]
        assert drain(acc, 1000) == [], "alone"
        acc.delivered(batch, 0, -1)
    assert drain(acc, 1000) == [batches[2]]
    assert drain(acc, 1000) == [batches[3]], "nothing waits to be sent again any more"


def test_a_retry_keeps_its_bytes() -> None:
    acc = accumulator()
    (batch,) = fill(acc, 1)
    drain(acc)
    before = bytes(batch.data)
    acc.send_again(batch, 0, None)
    assert drain(acc, 50) == []
    assert drain(acc, 100) == [batch]
    assert bytes(batch.data) == before


# ---- after a batch was given up, which raised the epoch -----------------------------------------------------------


def identity(batch: Batch) -> tuple[int, int]:
    """Return the epoch and the sequence that a batch was sent with."""
    parsed: Any = DefaultRecordBatch(bytes(batch.data))
    assert parsed.validate_crc()
    assert (parsed.producer_epoch, parsed.base_sequence) == (batch.producer_epoch, batch.base_sequence)
    return batch.producer_epoch, batch.base_sequence


@pytest.mark.parametrize("code", [None, 0, 45])
def test_a_batch_in_doubt_keeps_its_epoch(code: int | None) -> None:
    """Under another one, a broker that has stored it would store it twice."""
    acc = accumulator()
    lost, in_doubt, fresh = fill(acc, 3)
    assert [*drain(acc), *drain(acc)] == [lost, in_doubt]
    acc.send_again(lost, 0, None)
    acc.send_again(in_doubt, 1, None)
    assert drain(acc, 1000) == [lost]
    acc.failed(lost, LOST)
    assert drain(acc, 2000, pair=(1, 1)) == [in_doubt]
    assert identity(in_doubt) == (0, 1)
    assert not drain(acc, 2000, pair=(1, 1)), "nothing of the next epoch before it"
    assert not in_doubt.follows_loss(1), "a late request may still store it"
    if code is None:
        acc.send_again(in_doubt, 2000, None)
        assert drain(acc, 9000, pair=(1, 1)) == [in_doubt]
        assert identity(in_doubt) == (0, 1)
    if code == 45:
        acc.failed(in_doubt, LOST)
    else:
        acc.delivered(in_doubt, 0, -1)
    assert drain(acc, 9000, pair=(1, 2)) == [fresh]
    assert identity(fresh) == (2, 0)


def test_batches_that_are_refused_behind_it_are_sent_under_the_next_epoch() -> None:
    acc = accumulator()
    lost, refused, unanswered = fill(acc, 3)
    assert [*drain(acc), *drain(acc), *drain(acc)] == [lost, refused, unanswered]
    acc.failed(lost, LOST)
    assert (refused.follows_loss(0), refused.follows_loss(1)) == (False, True)
    acc.send_again(refused, 0, 45)
    acc.send_again(unanswered, 0, None)
    assert drain(acc, 1000, pair=(1, 1)) == [refused]
    assert identity(refused) == (1, 0)
    acc.delivered(refused, 0, -1)
    assert drain(acc, 1000, pair=(1, 1)) == [unanswered]
    assert identity(unanswered) == (1, 1), "it cannot have been stored without the one before it"


def test_a_loss_in_another_partition_does_not_hide_one_of_the_broker() -> None:
    """The batch behind the lost one is refused: to send it again under the next epoch would close the gap unseen."""
    acc = accumulator()
    stored, behind, unsent = fill(acc, 3)
    (elsewhere,) = fill(acc, 1, partition=1)
    assert [*drain(acc), *drain(acc)] == [stored, elsewhere, behind]
    acc.delivered(stored, 0, -1)
    acc.failed(elsewhere, LOST)
    assert not behind.follows_loss(1)
    acc.drop_waiting(LOST)
    assert unsent.error is LOST
    assert not behind.follows_loss(1), "the dropped one had no sequence yet"


def test_a_gap_ends_with_its_sequence() -> None:
    acc = accumulator()
    lost, stored, behind = fill(acc, 3)
    assert drain(acc) == [lost]
    acc.failed(lost, LOST)
    assert [*drain(acc, pair=(1, 1)), *drain(acc, pair=(1, 1))] == [stored, behind]
    acc.delivered(stored, 0, -1)
    assert not behind.follows_loss(2)


def test_a_request_holds_one_batch_per_partition_and_a_bounded_number_of_bytes() -> None:
    acc = accumulator(max_request_size=200)
    for partition in range(4):
        fill(acc, 2, partition=partition)
    assert len(drain(acc)) == 2
    assert len({b.partition for b in drain(acc)}) == 2


def test_without_a_leader_nothing_is_sent_and_nothing_is_lost() -> None:
    acc = accumulator()
    (batch,) = fill(acc, 1)
    assert acc.drain(0, lambda *_: -1, 1, 0) == {}
    assert drain(acc) == [batch]


def obstacle(since_ms: float) -> str:
    return f"nothing goes since {since_ms:.0f}"


def test_a_record_that_waits_too_long_expires_wherever_it_waits() -> None:
    acc = accumulator()
    again, closed = fill(acc, 2)
    drain(acc)
    acc.send_again(again, 0, None)
    open_batch = acc.append("t", 0, 0, None, b"x", [], 500.0)
    assert acc.expire(999, obstacle) == []
    assert acc.expire(1000, obstacle) == [again, closed]
    assert isinstance(again.error, DeliveryError)
    assert "nothing goes since 0" in str(again.error)
    assert acc.expire(1500, obstacle) == [open_batch]
    assert acc.incomplete == 0


def test_dropping_spares_batches_in_flight() -> None:
    acc = accumulator()
    sent, waiting = fill(acc, 2)
    drain(acc)
    error = DeliveryError("aborted")
    acc.drop_waiting(error)
    assert (sent.done, waiting.error) == (False, error)
    assert acc.incomplete == 1
    acc.drop_all(FatalError("closed"))
    assert acc.incomplete == 0


# ---- batches that are too large for their topic ------------------------------------------------------------------


def records_in(batch: Batch) -> list[tuple[int, Any, Any, Any]]:
    found: Any = MemoryRecords(bytes(batch.data)).next_batch()
    assert found.validate_crc()
    assert (found.is_transactional, found.base_sequence) == (True, batch.base_sequence)
    return [(record.timestamp, record.key, record.value, record.headers) for record in found]


def encoded_at_once(records: list[tuple[int, Any, Any, Any]]) -> EncodedBatch:
    builder = LibraryBuilder(transactional=True, batch_size=100_000)
    for offset, (ms, key, value, headers) in enumerate(records):
        builder.append(offset, ms, key, value, headers)
    return EncodedBatch(
        memoryview(builder.build())[HEADER_BYTES:],
        record_count=len(records),
        first_timestamp_ms=records[0][0],
        max_timestamp_ms=records[-1][0],
        transactional=True,
    )


def large(acc: Accumulator, count: int) -> Batch:
    """Return a closed batch of `count` records."""
    for number in range(count):
        batch = acc.append("t", 0, number, None, b"%d" % number, [], 0.0)
    acc.close_open_batches()
    assert batch is not None
    assert batch.record_count == count
    return batch


def end_all(acc: Accumulator, most: int) -> list[int]:
    """Send the pending batches to a broker that stores batches of up to `most` records; return the records of each."""
    stored: list[int] = []
    while acc.incomplete:
        for batch in drain(acc, 1000):
            if batch.record_count > most:
                acc.split(batch)
            else:
                acc.delivered(batch, sum(stored), -1)
                stored.append(batch.record_count)
    return stored


@pytest.mark.parametrize("kind", ["records", "values", "encoded"])
@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_the_parts_of_a_batch_have_its_records_and_sequences(kind: str, codec: int) -> None:
    acc = accumulator(batch_size=60_000, max_request_size=100_000, codec=codec_for(codec, None))
    sent: list[tuple[int, Any, Any, Any]]
    sent = [(1_700_000_000_000 + n // 20, None, b"%d" % n * 500, []) for n in range(30)]
    if kind == "records":
        sent = [(ms, b"key", value, [("h", None), ("h", b"x")]) for ms, _, value, _ in sent]
    if kind == "encoded":
        batch = acc.append_full("t", 0, encoded_at_once(sent), len(sent), 0.0)
    else:
        for ms, key, value, headers in sent:
            batch = acc.append("t", 0, ms, key, value, headers, 0.0)
        acc.close_open_batches()
    assert batch is not None
    batch.queue.next_sequence, batch.queue.producer_id, batch.queue.producer_epoch = MAX_SEQUENCE - 9, 1, 0
    assert drain(acc) == [batch]
    assert records_in(batch) == sent
    acc.split(batch)
    (first,) = drain(acc)
    in_first = records_in(first)
    assert drain(acc) == [], "alone"
    acc.delivered(first, 0, -1)
    (second,) = drain(acc)
    assert [first.base_sequence, second.base_sequence] == [MAX_SEQUENCE - 9, 5]
    assert in_first + records_in(second) == sent
    assert not batch.done
    acc.delivered(second, 100, -1)
    assert [metadata_of(batch, index, 0).offset for index in (0, 14, 15, 29)] == [0, 14, 100, 114]
    assert (batch.done, acc.incomplete, acc.buffer_used) == (True, 0, 0)


def test_parts_go_before_later_batches_and_those_of_a_refused_size_are_not_sent() -> None:
    acc = accumulator(batch_size=1000)
    heard: list[str] = []
    batches = [large(acc, 16), *fill(acc, 2)]
    for name, batch in zip("abc", batches, strict=True):
        batch.listen(lambda name=name: heard.append(name))  # type: ignore[misc]
    for _ in range(3):
        drain(acc)
    acc.split(batches[0])
    for later in batches[1:]:
        assert later.queue.has_unresolved_before(later)
        acc.send_again(later, 0, 45)
    waiting = acc.incomplete_batches()
    sizes = end_all(acc, 2)
    assert sizes == [2] * 8 + [1, 1]
    assert heard == ["a", "b", "c"]
    assert [batch.done for batch in waiting] == [True] * 4
    assert acc.metrics.resent_records == 16 + 8 + 4 + 2, "only the first of each size was sent and refused"
    parts = list(stored_records([Part(batches[0], 3, 6), Part(batches[1], 0, 1)]))
    assert [(part.offset, part.record_count) for part in parts] == [(3, 1), (4, 2), (6, 2), (8, 1), (16, 1)]


@pytest.mark.parametrize("may_be_stored", [True, False])
@pytest.mark.parametrize("stored_first", [True, False])
def test_parts_of_a_batch_that_may_be_stored_fail_together(may_be_stored: bool, stored_first: bool) -> None:
    """Otherwise the rest would be sent under a new epoch, and be stored twice."""
    acc = accumulator(batch_size=1000)
    whole = large(acc, 8)
    drain(acc)
    if may_be_stored:
        acc.send_again(whole, 0, None)
        drain(acc, 1000)
    acc.split(whole)
    (part,) = drain(acc, 1000)
    acc.split(part)
    (part,) = drain(acc, 1000)
    if stored_first:
        acc.delivered(part, 7, -1)
        (part,) = drain(acc, 1000)
    error = DeliveryError("refused")
    acc.failed(part, error)
    if may_be_stored and not stored_first:
        assert acc.incomplete == 0
        outcomes: list[Any] = [error] * 8
    else:
        end_all(acc, 8)
        outcomes = [7, 8, error, error, 0, 1, 2, 3] if stored_first else [error, error, 0, 1, 2, 3, 4, 5]
    found = [sent.error or sent.base_offset + at for sent, at in map(whole.part_with, range(8))]
    assert found == outcomes
    assert (whole.done, acc.buffer_used) == (True, 0)


def test_to_a_broker_that_does_not_know_the_producer_a_first_batch_goes_alone() -> None:
    acc = accumulator()
    first = large(acc, 2)
    second = large(acc, 2)
    assert (drain(acc), drain(acc)) == ([first], [])
    acc.delivered(first, 0, -1)
    assert drain(acc) == [second]
    acc.delivered(second, 2, -1)
    assert [len(drain(acc, pair=(2, 0))) for _ in (large(acc, 1), large(acc, 1))] == [1, 0]
