"""Record batches of either builder, and the order in which batches are sent."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from dualwrite.client.pacing import Backoff
from dualwrite.client.records import batches
from dualwrite.client.records.accumulator import MAX_SEQUENCE, Accumulator, Batch
from dualwrite.client.records.batches import BuiltBatch, LibraryBuilder, restamp, stamp_and_build
from dualwrite.client.records.value_batch import records_factory
from dualwrite.errors import DeliveryError, FatalError, InvalidRecordError


def build(**identity: int) -> BuiltBatch:
    builder = LibraryBuilder(transactional=True, batch_size=1000)
    builder.append(0, 1_700_000_000_000, b"k", b"v", [("h", b"1")])
    builder.append(1, 1_700_000_000_001, None, None, [])
    return stamp_and_build(builder, identity["producer_id"], identity["epoch"], identity["sequence"])


def test_both_builders_write_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = build(producer_id=42, epoch=7, sequence=9)
    monkeypatch.setattr(batches, "_Builder", KafkaPythonBuilder)
    monkeypatch.setattr(batches, "_STAMP_ARGUMENTS", (True,))
    other = build(producer_id=42, epoch=7, sequence=9)
    other[12:16] = compiled[12:16]  # the leader epoch is the broker's to write
    assert other == compiled


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
    """Append that many batches of one record each, all closed."""
    made = []
    for _ in range(batches):
        batch = acc.append(topic, partition, 0, None, b"x", [], now_ms)
        assert batch is not None
        acc.close_open_batches()
        made.append(batch)
    return made


def drain(acc: Accumulator, now_ms: float = 0, *, pair: tuple[int, int] = (1, 0)) -> list[Batch]:
    """Drain once, with one node that leads all partitions."""
    return [b for batches in acc.drain(now_ms, lambda *_: 7, *pair).values() for b in batches]


def test_records_linger_and_full_batches_do_not() -> None:
    acc = accumulator()
    first = acc.append("t", 0, 0, None, b"x" * 100, [], 0.0)
    assert drain(acc, 4) == []
    assert acc.wake_at_ms(4) == 5
    second = acc.append("t", 0, 0, None, b"x" * 100, [], 4.0)
    assert second is not first
    assert acc.has_full_batches or drain(acc, 4) == [first]
    assert drain(acc, 9) == [second]


def test_sequences_count_records_and_restart_with_another_pair() -> None:
    acc = accumulator()
    for value in (b"a", b"b"):
        acc.append("t", 0, 0, None, value, [], 0.0)
    acc.close_open_batches()
    (two,) = drain(acc)
    fill(acc, 2)
    (third,) = drain(acc)
    assert (two.base_sequence, third.base_sequence) == (0, 2)
    acc.delivered(two, 0, -1)
    acc.delivered(third, 2, -1)
    (next_epoch,) = drain(acc, pair=(1, 1))
    assert (next_epoch.base_sequence, next_epoch.producer_epoch) == (0, 1)


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


def test_what_is_sent_again_goes_first_alone_and_unchanged() -> None:
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


def test_a_retry_under_another_pair_is_restamped() -> None:
    acc = accumulator()
    batches = fill(acc, 2)
    drain(acc)
    drain(acc)
    for batch in batches:
        acc.send_again(batch, 0, None)
    (first,) = drain(acc, 1000, pair=(1, 1))
    assert (first, first.base_sequence, first.producer_epoch) == (batches[0], 0, 1)
    parsed: Any = DefaultRecordBatch(bytes(first.data))
    assert parsed.validate_crc()
    assert parsed.producer_epoch == 1


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


def test_memory_is_bounded_and_given_back() -> None:
    acc = accumulator(buffer_memory=400)
    batches = fill(acc, 2)
    assert acc.append("t", 0, 0, None, b"x", [], 0.0) is None
    drain(acc)
    acc.delivered(batches[0], 0, -1)
    assert acc.append("t", 0, 0, None, b"x", [], 0.0) is not None


def test_a_record_larger_than_a_request_is_refused_and_leaves_nothing() -> None:
    acc = accumulator()
    with pytest.raises(InvalidRecordError, match=r"max\.request\.size"):
        acc.append("t", 0, 0, None, b"x" * 2000, [], 0.0)
    assert acc.incomplete == 0
    assert acc.wake_at_ms(0) is None


def obstacle(since_ms: float) -> str:
    return f"nothing goes since {since_ms:.0f}"


def test_what_waits_too_long_expires_wherever_it_waits() -> None:
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


def test_dropping_spares_what_is_on_its_way() -> None:
    acc = accumulator()
    sent, waiting = fill(acc, 2)
    drain(acc)
    error = DeliveryError("aborted")
    acc.drop_waiting(error)
    assert (sent.done, waiting.error) == (False, error)
    assert (acc.incomplete, acc.in_flight) == (1, 1)
    acc.drop_all(FatalError("closed"))
    assert (acc.incomplete, acc.in_flight) == (0, 0)


def test_listeners_hear_once_and_late_ones_at_once() -> None:
    acc = accumulator()
    (batch,) = fill(acc, 1)
    heard: list[str] = []
    batch.listen(lambda: heard.append("early"))
    drain(acc)
    acc.delivered(batch, 5, -1)
    batch.listen(lambda: heard.append("late"))
    assert heard == ["early", "late"]
    assert batch.base_offset == 5
