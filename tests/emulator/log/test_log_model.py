"""Random histories of one partition against a model that keeps every record's fate in a list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.record_batch import split_batches
from tests.emulator.log.writers import NOW_MS, WRITERS, batch, read_committed_rule, read_records
from tests.support.proof_only import examples

PRODUCERS = (11, 22, 33)
SENDS = st.tuples(st.just("send"), st.sampled_from(PRODUCERS), st.integers(1, 3))
ENDS = st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.sampled_from([False, False, True]))
NO_HOLDS = st.one_of(
    SENDS,
    ENDS,
    st.tuples(st.just("retry"), st.sampled_from(PRODUCERS), st.just(0)),
    st.tuples(st.just("plain"), st.just(0), st.integers(1, 3)),
)
STEPS = st.one_of(
    NO_HOLDS,
    SENDS,
    ENDS,
    st.tuples(st.just("hold"), st.just(0), st.just(0)),
    st.tuples(st.just("release"), st.just(0), st.just(0)),
)


@dataclass
class Transaction:
    """`marker` is the offset of its end, None while open."""

    producer_id: int
    first: int
    marker: int | None = None
    committed: bool = False


class Row(NamedTuple):
    """One data record; no transaction for plain ones."""

    offset: int
    value: bytes
    transaction: Transaction | None


@dataclass
class Producer:
    epoch: int = 0
    sequence: int = 0
    open: Transaction | None = None
    last: tuple[bytes, int] | None = None  # newest batch of the open transaction, and its offset


@dataclass
class History:
    """Drives a log and records the expected outcome."""

    transaction_version: int
    writer: str
    log: PartitionLog = field(default_factory=lambda: PartitionLog("orders", 0))
    rows: list[Row] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    producers: dict[int, Producer] = field(default_factory=lambda: {pid: Producer() for pid in PRODUCERS})
    end_offset: int = 0
    held_at: int | None = None

    def step(self, name: str, producer_id: int, argument: int) -> None:
        getattr(self, f"_{name}")(producer_id, argument)

    def _values(self, count: int) -> list[bytes]:
        return [b"%d" % (self.end_offset + index) for index in range(count)]

    def _write_down(self, values: list[bytes], transaction: Transaction | None) -> None:
        self.rows += [Row(self.end_offset + index, value, transaction) for index, value in enumerate(values)]
        self.end_offset += len(values)

    def _plain(self, _: int, count: int) -> None:
        values = self._values(count)
        result = self.log.append(batch(*values, writer=self.writer), now_ms=NOW_MS)
        assert (result.error, result.base_offset) == (ErrorCode.none, self.end_offset)
        self._write_down(values, None)

    def _send(self, producer_id: int, count: int) -> None:
        producer = self.producers[producer_id]
        values = self._values(count)
        records = batch(
            *values,
            writer=self.writer,
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            transactional=True,
        )
        guard = None
        assert self.log.has_open_transaction(producer_id, producer.epoch) == (producer.open is not None)
        if producer.open is None:
            bumps = self.transaction_version == 2
            guard = self.log.begin_verification(
                producer_id, producer.epoch, producer.sequence, supports_epoch_bump=bumps
            )
            producer.open = Transaction(producer_id, self.end_offset)
            self.transactions.append(producer.open)
        result = self.log.append(records, now_ms=NOW_MS, guard=guard)
        assert (result.error, result.base_offset) == (ErrorCode.none, self.end_offset)
        producer.sequence += count
        producer.last = records, self.end_offset
        self._write_down(values, producer.open)

    def _retry(self, producer_id: int, _: int) -> None:
        producer = self.producers[producer_id]
        if producer.last is not None:
            records, offset = producer.last
            result = self.log.append(records, now_ms=NOW_MS)
            assert (result.error, result.base_offset) == (ErrorCode.none, offset)

    def _end(self, producer_id: int, commit: int) -> None:
        producer = self.producers[producer_id]
        if self.transaction_version == 2:
            producer.epoch += 1
            producer.sequence = 0
            producer.last = None
        error = self.log.append_marker(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            coordinator_epoch=0,
            commit=bool(commit),
            transaction_version=self.transaction_version,
            now_ms=NOW_MS,
        )
        assert error is ErrorCode.none
        if producer.open is not None:
            producer.open.marker = self.end_offset
            producer.open.committed = bool(commit)
            producer.open = None
        self.end_offset += 1

    def _hold(self, *_: int) -> None:
        self.log.hold_high_watermark()
        if self.held_at is None:
            self.held_at = self.end_offset

    def _release(self, *_: int) -> None:
        self.log.release_high_watermark()
        self.held_at = None

    @property
    def high_watermark(self) -> int:
        return self.end_offset if self.held_at is None else self.held_at

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset, naively: the start of the earliest transaction whose end is not replicated."""
        unstable = [t.first for t in self.transactions if t.marker is None or t.marker >= self.high_watermark]
        return min([*unstable, self.high_watermark])

    def committed_from(self, position: int) -> list[tuple[int, bytes]]:
        return [
            (row.offset, row.value)
            for row in self.rows
            if position <= row.offset < self.last_stable_offset
            and (row.transaction is None or row.transaction.committed)
        ]

    def aborted_in(self, fetch_offset: int, upper_bound: int) -> list[tuple[int, int]]:
        ended = [(t.marker, t) for t in self.transactions if t.marker is not None and not t.committed]
        return [
            (t.producer_id, t.first)
            for marker, t in sorted(ended, key=lambda pair: pair[0])
            if marker >= fetch_offset and t.first < upper_bound
        ]


def consume(log: PartitionLog, position: int, max_bytes: int) -> list[tuple[int, bytes]]:
    """Return all records that a read_committed consumer gets from `position` on, fetch after fetch."""
    delivered: list[tuple[int, bytes]] = []
    while True:
        result = log.read(position, max_bytes=max_bytes, read_committed=True, at_least_one=True)
        assert result.error is ErrorCode.none
        if not result.records:
            assert position >= log.last_stable_offset
            return delivered
        assert result.aborted is not None
        delivered += read_committed_rule(result.records, result.aborted, position)
        position = read_records(result.records)[-1].offset + 1


@given(
    steps=st.lists(STEPS, max_size=8) | st.lists(STEPS, min_size=12, max_size=60),
    transaction_version=st.sampled_from([0, 2]),
    writer=st.sampled_from(sorted(WRITERS)),
    data=st.data(),
)
@settings(max_examples=examples(150), deadline=None)
def test_random_histories(
    steps: list[tuple[str, int, int]], transaction_version: int, writer: str, data: st.DataObject
) -> None:
    history = History(transaction_version, writer)
    log = history.log
    for step in steps:
        history.step(*step)
        assert log.log_end_offset == history.end_offset
        assert log.high_watermark == history.high_watermark
        assert log.last_stable_offset == history.last_stable_offset
    position = data.draw(st.integers(0, history.end_offset), label="position")
    max_bytes = data.draw(st.sampled_from([1, 150, 400, 1 << 20]), label="max_bytes")
    assert consume(log, position, max_bytes) == history.committed_from(position)
    assert consume(log, 0, 1) == history.committed_from(0)  # batch by batch, where the aborted lists are shortest
    check_one_read(history, position, max_bytes)
    check_replay(history)


def check_one_read(history: History, position: int, max_bytes: int) -> None:
    """Check that the aborted list is exact: nothing missing, and nothing beyond the returned batches."""
    result = history.log.read(position, max_bytes=max_bytes, read_committed=True, at_least_one=True)
    upper_bound = read_records(result.records)[-1].offset + 1 if result.records else position
    expected = history.aborted_in(position, upper_bound) if result.records else []
    assert result.aborted == expected
    uncommitted = history.log.read(0, max_bytes=1 << 30, read_committed=False, at_least_one=True)
    visible = [(record.offset, record.value) for record in read_records(uncommitted.records) if not record.is_control]
    assert visible == [(row.offset, row.value) for row in history.rows if row.offset < history.high_watermark]


def check_replay(history: History) -> None:
    """Check that the stored batches are whole, in order and without gaps."""
    expected_offset = 0
    for stored in history.log.batches():
        [(header, _)] = split_batches(stored)
        assert header.base_offset == expected_offset
        expected_offset = header.last_offset + 1
    assert expected_offset == history.end_offset
