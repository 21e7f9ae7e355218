"""A model of Kafka in memory: epochs and fencing, KIP-939's keep-init, and a `SinkKafka` for one simulated process.

A transaction is identified by the producer id and epoch with which it began. `init` gives the id a new epoch, which
fences its previous owner; with `keep` it leaves an ongoing transaction as it is. Completing a transaction gives the id
another epoch (KIP-890), so no pair is used twice. The log remembers the end of each transaction, and the records of
aborted ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from dualwrite.errors import FencedError, KafkaError, KafkaTimeoutError
from dualwrite.prepared_state import PreparedTxnState
from spark_sink.driver.open_transactions import OpenTransaction, is_of_sink
from spark_sink.errors import AttemptCondemnedError, StoreWentBackError
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.store.attempt_states import Claim, ClaimRows, Ended, Ending, Prepared, Verdict

_NOTHING = PreparedTxnState()


@dataclass
class _Id:
    producer_id: int
    epoch: int = -1
    ongoing: PreparedTxnState = _NOTHING
    records: list[int] = field(default_factory=list)


class FakeBroker:
    """All brokers. `down` makes every call time out."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        """The records that a read_committed consumer sees."""
        self.outcomes: dict[PreparedTxnState, bool] = {}
        self.aborted: dict[PreparedTxnState, list[int]] = {}
        """The records of the transactions that were aborted."""
        self.down = False
        self.down_ids: set[str] = set()
        """The ids whose coordinators are unreachable."""
        self._ids: dict[str, _Id] = {}

    @property
    def open_ids(self) -> list[str]:
        return [name for name, held in self._ids.items() if held.ongoing]

    @property
    def known_ids(self) -> list[str]:
        return sorted(self._ids)

    def init(self, name: str, *, keep: bool) -> int:
        """Do InitProducerId; return the epoch that is now the only valid one."""
        held = self._held(name)
        held.epoch += 1
        if not keep and held.ongoing:
            self._end(held, commit=False)
        return held.epoch

    def ongoing(self, name: str) -> PreparedTxnState:
        return self._held(name).ongoing

    def send(self, name: str, epoch: int, values: Iterable[int]) -> PreparedTxnState:
        held = self._checked(name, epoch)
        held.ongoing = held.ongoing or PreparedTxnState.of(producer_id=held.producer_id, producer_epoch=epoch)
        held.records.extend(values)
        return held.ongoing

    def end(self, name: str, epoch: int, *, commit: bool) -> int:
        """Do EndTxn; return the epoch of the next transaction."""
        held = self._checked(name, epoch)
        if held.ongoing:
            self._end(held, commit=commit)
        return held.epoch

    def drop(self, name: str) -> None:
        """Abort the ongoing transaction, as a broker does after its timeout, or an operator by force."""
        self._end(self._held(name), commit=False)

    def end_pair(self, name: str, pair: PreparedTxnState, *, commit: bool) -> bool:
        """Do EndTxn by the pair of the open transaction; return whether it was that one."""
        held = self._held(name)
        if held.ongoing != pair or held.epoch != pair.producer_epoch:
            return False
        self._end(held, commit=commit)
        return True

    def _held(self, name: str) -> _Id:
        if self.down or name in self.down_ids:
            raise KafkaTimeoutError("the brokers are away")
        return self._ids.setdefault(name, _Id(producer_id=len(self._ids) + 1))

    def _checked(self, name: str, epoch: int) -> _Id:
        held = self._held(name)
        if epoch != held.epoch:
            raise FencedError(f"{name} is at epoch {held.epoch}, not {epoch}")
        return held

    def _end(self, held: _Id, *, commit: bool) -> None:
        assert held.ongoing not in self.outcomes, "no transaction ends twice"
        self.outcomes[held.ongoing] = commit
        if commit:
            self.committed += held.records
        else:
            self.aborted[held.ongoing] = held.records
        held.records = []
        held.ongoing = _NOTHING
        held.epoch += 1


class FakeTransaction:
    """A `TaskTransaction` whose records are the numbers in the column `value`."""

    is_bounded = False

    def __init__(self, side: FakeKafkaSide, name: str, epoch: int) -> None:
        self._side = side
        self._name = name
        self._epoch = epoch
        self._state = _NOTHING
        self.records = 0
        self.bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        values = [int(value) for value in rows.column("value").to_pylist()]
        self._state = self._side.alive.send(self._name, self._epoch, values)
        self.records += len(values)
        self.bytes += 8 * len(values)

    def prepare(self) -> Prepared:
        # a flush: the broker hears of it only through the records that were not acknowledged yet
        return Prepared(self._side.alive.send(self._name, self._epoch, ()), "manifest")

    def abort(self) -> None:
        if self._side.dead:
            return
        try:
            self._side.alive.end(self._name, self._epoch, commit=False)
        except (FencedError, KafkaTimeoutError):
            return

    def close(self) -> None:
        """Do nothing: there is no connection."""


class FakeOpenTransactions:
    """One process's view of the open transactions; `age_ms` is their age."""

    age_ms = 3_600_000

    def __init__(self, side: FakeKafkaSide) -> None:
        self._side = side

    def cluster_id(self) -> str:
        return "fake"

    def of_sink(self, sink_id: str, unseen: list[str]) -> dict[str, OpenTransaction]:
        return self.described([each for each in self._side.alive.open_ids if is_of_sink(sink_id, each)], unseen)

    def described(self, ids: Collection[str], unseen: list[str]) -> dict[str, OpenTransaction]:
        pairs = {each: self._side.alive.ongoing(each) for each in ids}
        return {
            each: OpenTransaction(each, "Ongoing", str(pair), self.age_ms, ("orders-0",))
            for each, pair in pairs.items()
            if pair
        }

    def end(self, pairs: Mapping[str, str], *, commit: bool) -> set[str]:
        broker = self._side.alive
        return {each for each, pair in pairs.items() if broker.end_pair(each, PreparedTxnState(pair), commit=commit)}


class FakeKafkaSide:
    """The Kafka port of one process. Once it is `dead`, none of its calls reaches a broker.

    The class attributes are the rules of `SinkKafka`; a test disables one and checks that it was necessary.
    """

    keeps_what_is_prepared = True
    asks_after_opening = True
    asks_before_ending = True
    commits_only_what_the_row_names = True

    def __init__(self, broker: FakeBroker, pause: Pause | None = None) -> None:
        self._broker = broker
        self._pause = pause or (lambda point: None)
        self.dead = False

    @property
    def alive(self) -> FakeBroker:
        assert not self.dead, "a dead process uses Kafka"
        return self._broker

    def open(self, transactional_id: str, still_mine: Callable[[], bool]) -> FakeTransaction:
        epoch = self.alive.init(transactional_id, keep=self.keeps_what_is_prepared)
        if self.asks_after_opening and not still_mine():
            raise AttemptCondemnedError(f"{transactional_id} went to another attempt")
        try:
            epoch = self.alive.end(transactional_id, epoch, commit=False)
        except FencedError as error:
            raise AttemptCondemnedError(f"{transactional_id} went to another attempt") from error
        return FakeTransaction(self, transactional_id, epoch)

    def not_open(self, prepared: Mapping[str, PreparedTxnState]) -> list[str]:
        return [name for name, state in prepared.items() if self.alive.ongoing(name) != state]

    def end(self, claims: Sequence[Claim], rows: ClaimRows) -> Mapping[str, Ended]:
        ended: dict[str, Ended] = {}
        epochs: dict[str, int] = {}
        for claim in claims:
            try:
                epochs[claim.attempt_id] = self.alive.init(claim.transactional_id, keep=self.keeps_what_is_prepared)
            except KafkaTimeoutError as error:
                ended[claim.attempt_id] = Ended(Ending.FAILED, error)
        read = {claim.attempt_id: Prepared(claim.prepared_state) for claim in claims if claim.attempt_id in epochs}
        current = rows.still_wanted(list(epochs)) if self.asks_before_ending else read
        for claim in claims:
            if claim.attempt_id not in epochs:
                continue
            if claim.attempt_id not in current:
                ended[claim.attempt_id] = Ended(Ending.LEFT)
                continue
            row = current[claim.attempt_id].state
            try:
                ended[claim.attempt_id] = self._complete(claim, epochs[claim.attempt_id], row, rows)
            except FencedError as error:
                ended[claim.attempt_id] = Ended(Ending.LEFT, error)
            except KafkaTimeoutError as error:
                ended[claim.attempt_id] = Ended(Ending.FAILED, error)
            self._pause(PausePoint.AMONG_COMPLETIONS)
        return ended

    @contextmanager
    def transactions(self) -> Iterator[FakeOpenTransactions]:
        yield FakeOpenTransactions(self)

    def _complete(self, claim: Claim, epoch: int, row: PreparedTxnState, rows: ClaimRows) -> Ended:
        """Commit the transaction that the row names, or publish it again if it was aborted; else abort."""
        name = claim.transactional_id
        if claim.verdict is Verdict.ABORT:
            if self.alive.outcomes.get(row):
                return Ended(Ending.FAILED, StoreWentBackError(f"{row} of {name} is committed"))
            self.alive.end(name, epoch, commit=False)
            return Ended(Ending.ABORTED)
        if row in self.alive.aborted:
            return self._repair(claim, epoch, row, rows)
        self.alive.end(name, epoch, commit=self.alive.ongoing(name) == row)
        if self.alive.outcomes.get(row):
            return Ended(Ending.COMMITTED, judged=row)
        return Ended(Ending.LOST, KafkaError(f"{row} of {name} is gone"), judged=row)

    def _repair(self, claim: Claim, epoch: int, row: PreparedTxnState, rows: ClaimRows) -> Ended:
        name = claim.transactional_id
        self._pause(PausePoint.BEFORE_REPAIR)
        epoch = self.alive.end(name, epoch, commit=False)
        again = rows.still_wanted([claim.attempt_id])
        if claim.attempt_id not in again or again[claim.attempt_id].state != row:
            return Ended(Ending.LEFT)
        anew = self.alive.send(name, epoch, self.alive.aborted[row])
        try:
            replaced = rows.replace(claim.attempt_id, row, Prepared(anew, "manifest"))
        except Exception as error:
            return Ended(Ending.FAILED, error)
        self.alive.end(name, epoch, commit=replaced or not self.commits_only_what_the_row_names)
        if replaced:
            return Ended(Ending.COMMITTED, judged=anew, repaired=True)
        return Ended(Ending.LEFT)

    def close(self) -> None:
        """Do nothing: there is no connection."""
