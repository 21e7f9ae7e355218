"""Transactions with one request that is late, lost, carried out twice or overtaken.

Four transactions of one transactional id, A to D. In B one request is caught by a relay; a held request arrives while C
is open. Afterwards the log, the group's offsets and the client's results are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol, runtime_checkable

from dualwrite.errors import PreparedTransactionLost
from tests.interop.foreign_client import ForeignProducer
from tests.interop.wire import GROUP, Code, Wire, wait_for
from tests.support.kafka_proxy import Caught, Fate, KafkaProxy
from tests.support.names import next_name


class Request(Enum):
    """The caught request."""

    INIT = "InitProducerId"
    RAISE = "InitProducerId with the producer's own pair"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    PRODUCE = "Produce"
    ADD_OFFSETS = "AddOffsetsToTxn"
    TXN_OFFSET_COMMIT = "TxnOffsetCommit"
    END = "EndTxn"


_API_KEYS: Final = {
    Request.INIT: 22,
    Request.RAISE: 22,
    Request.ADD_PARTITIONS: 24,
    Request.PRODUCE: 0,
    Request.ADD_OFFSETS: 25,
    Request.TXN_OFFSET_COMMIT: 28,
    Request.END: 26,
}


class How(Enum):
    """The fate of the caught request. Its connection is cut, so its client repeats it on another one."""

    LATE = "late"
    """It arrives while the next transaction is open."""
    BETWEEN = "between"
    """It arrives when its transaction is over and no other is open."""
    OVERTAKEN = "overtaken"
    """It arrives after the responses to its repetition and to another request, in the same transaction."""
    TWICE = "twice"
    """It is carried out, and so is its repetition."""
    LOST = "lost"
    """It never arrives."""


_FATES: Final = {
    How.LATE: Fate.HELD,
    How.BETWEEN: Fate.HELD,
    How.OVERTAKEN: Fate.HELD,
    How.TWICE: Fate.UNHEARD,
    How.LOST: Fate.LOST,
}


class End(Enum):
    """How a transaction ends."""

    COMMIT = "commit"
    ABORT = "abort"
    PREPARE = "prepare"
    """Then complete."""
    RECOVER = "recover"
    """Prepare; the process ends, and another one completes it."""


TWO_PHASE: Final = (End.PREPARE, End.RECOVER)


@runtime_checkable
class Prepares(Protocol):
    """The further calls of a producer with two-phase commit."""

    def prepare(self) -> str: ...
    def complete(self, prepared: str) -> None: ...
    def recover(self, prepared: str) -> None:
        """Take the id over from a producer that is gone, and complete."""


MakeProducer = Callable[[str, str], ForeignProducer]
"""Makes a producer from bootstrap servers and a transactional id; not initialised."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One square of the matrix. `end` is how B ends, `next_end` how C does: by a commit or an abort."""

    request: Request
    how: How
    end: End
    next_end: End = End.COMMIT

    def __str__(self) -> str:
        words = [self.request.name.lower(), self.how.value, self.end.value, "then", self.next_end.value]
        return "-".join(words)


@dataclass(slots=True)
class Outcome:
    """The result of a cell."""

    anomalies: list[str] = field(default_factory=list)
    """Records or offsets beyond the transactions that the client reported as committed, or missing from them."""
    told: list[str] = field(default_factory=list)
    """The errors, each as "C: FencedError"."""
    is_caught: bool = False


class Play:
    """One cell on the broker at `address`."""

    def __init__(self, address: str, make: MakeProducer, cell: Cell) -> None:
        self._cell = cell
        self._make = make
        self._proxy = KafkaProxy(address)
        self._wire = Wire(address)
        self._topic, self._group, self._id = (next_name(f"late-{kind}") for kind in ("topic", "group", "txn"))
        self._committed: list[str] = []
        self._offset = -1
        self._outcome = Outcome()
        self._caught: Caught | None = None
        self._delivered = False
        self._producers: list[ForeignProducer] = []

    def run(self) -> Outcome:
        """All four transactions."""
        try:
            self._wire.create_topic(self._topic)
            self._wire.wait_for_coordinator(self._group, GROUP)
            self._play()
        finally:
            for producer in self._producers:
                with suppress(Exception):
                    producer.close()
            self._wire.close()
            self._proxy.close()
        self._outcome.is_caught = self._caught is not None and self._caught.is_caught
        return self._outcome

    def _play(self) -> None:
        cell = self._cell
        if cell.request is Request.INIT and cell.end is not End.RECOVER:
            self._arm()
        self._producer = self._opened()
        self._producer.init()
        self._deliver_if(How.OVERTAKEN)
        self._transaction("A", 10, End.COMMIT)
        if cell.request is Request.RAISE:
            self._transaction("aborted", 15, End.ABORT)
        if cell.request is not Request.INIT:
            self._arm()
        self._transaction("B", 20, cell.end)
        self._deliver_if(How.BETWEEN)
        self._transaction("C", 30, cell.next_end)
        self._transaction("D", 40, End.COMMIT)

    def _opened(self) -> ForeignProducer:
        producer = self._make(self._proxy.bootstrap_servers, self._id)
        self._producers.append(producer)
        return producer

    def _arm(self) -> None:
        self._caught = self._proxy.catch(_API_KEYS[self._cell.request], self._id, _FATES[self._cell.how])

    def _deliver_if(self, how: How) -> None:
        """Let the held request arrive, if it has been caught by now."""
        caught = self._caught
        if caught is not None and self._cell.how is how and caught.is_caught and not self._delivered:
            self._delivered = True
            caught.deliver()

    # ---- a transaction --------------------------------------------------------------------------------------

    def _transaction(self, name: str, offset: int, end: End) -> None:
        prepared = ""
        try:
            for stored in self._steps(name, offset, end):
                prepared = stored
                self._deliver_if(How.LATE if name == "C" else How.OVERTAKEN)
        except AssertionError:
            raise
        except Exception as error:
            self._outcome.told.append(f"{name}: {type(error).__name__}")
            is_committed = self._go_on_after_failure(name, prepared)
        else:
            is_committed = end is not End.ABORT
        if is_committed:
            self._committed.append(name)
            self._offset = offset
        self._compare(name)

    def _steps(self, name: str, offset: int, end: End) -> Iterator[str]:
        """Send and end; pauses with the prepared state where a held request may arrive."""
        self._producer.begin()
        self._producer.send(self._topic, name.encode())
        self._producer.flush()
        if name != "C":
            yield ""
        self._producer.send_offsets(self._group, self._topic, offset)
        if end is End.ABORT:
            yield ""
            self._producer.abort()
        elif self._cell.end in TWO_PHASE:
            prepared = self._two_phase(self._producer).prepare()
            yield prepared
            if end is End.RECOVER:
                self._recover(prepared)
            else:
                self._two_phase(self._producer).complete(prepared)
        else:
            yield ""
            self._producer.commit()

    def _two_phase(self, producer: ForeignProducer) -> Prepares:
        assert isinstance(producer, Prepares)
        return producer

    def _recover(self, prepared: str) -> None:
        self._producer.close()
        if self._cell.request is Request.INIT and self._caught is None:
            self._arm()
        self._producer = self._opened()
        self._two_phase(self._producer).recover(prepared)

    def _go_on_after_failure(self, name: str, prepared: str) -> bool:
        """As an application does: abort, or a new producer. Whether the transaction is committed."""
        if not prepared:
            try:
                self._producer.abort()
            except Exception:
                self._start_again()
            return False
        try:
            self._recover(prepared)
        except PreparedTransactionLost as error:
            self._outcome.told.append(f"{name}: {type(error).__name__}")
            self._start_again()
            return False
        return True

    def _start_again(self) -> None:
        with suppress(Exception):
            self._producer.close()
        self._producer = self._opened()
        self._producer.init()

    # ---- observations ---------------------------------------------------------------------------------------

    def _compare(self, after: str) -> None:
        self._settle()
        visible = self._visible()
        if visible != self._committed:
            self._outcome.anomalies.append(f"after {after}: committed {self._committed}, visible {visible}")
            self._committed = visible  # told once
        code, offset = self._wire.offset_fetch(self._group, self._topic)
        assert code == Code.NONE
        if offset != self._offset:
            self._outcome.anomalies.append(f"after {after}: committed offset {self._offset}, found {offset}")
            self._offset = offset

    def _settle(self) -> None:
        """Markers are written a moment after the decision."""
        wait_for(
            lambda: self._wire.describe(self._id).state,
            lambda state: not state.startswith("Prepare"),
        )

    def _visible(self) -> list[str]:
        """A read_committed reader's view of the present log: the markers decide."""
        visible: list[str] = []
        open_batches: dict[int, list[str]] = {}
        for batch in self._wire.fetch(self._topic).batches:
            producer_id = batch.identity.producer_id
            if not batch.is_control:
                open_batches.setdefault(producer_id, []).extend((value or b"").decode() for value in batch.values)
                continue
            ended = open_batches.pop(producer_id, [])
            if batch.keys[0] == _COMMIT_MARKER:
                visible += ended
        return visible


_COMMIT_MARKER: Final = b"\x00\x00\x00\x01"
