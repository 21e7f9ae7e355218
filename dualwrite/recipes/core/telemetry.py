"""Metrics and spans of dual writes through OpenTelemetry; a no-op, at no cost, if its API is not installed.

The coordinator reports steps (`pause_points.py`) and states (`slot.py`), and pools are observed; all names, units and
sums are here. Their meaning, and the alerts to set: docs/observability.md.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from dualwrite.client.records import traces
from dualwrite.errors import DualWriteError
from dualwrite.guarded import guarded, tolerate
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.core.slot import SlotState

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.trace import Span, Tracer

    from dualwrite.recipes.core.buffer import BufferedRecord, RecordBuffer

SCOPE: Final = traces.SCOPE
SPAN: Final = "dualwrite.commit"

_RUNNING: Final = frozenset({SlotState.OPEN, SlotState.DECIDING})
_IN_DOUBT: Final = frozenset({SlotState.IN_DOUBT, SlotState.UNRESOLVED})


class TornEnd(StrEnum):
    """How a transaction that its coordinator has committed ended in some of its partitions."""

    ABORTED = "aborted"
    HANGING = "hanging"


class NoManifest(StrEnum):
    """Why the state row gets no manifest."""

    NOT_KNOWN = "not known"
    """A broker acknowledged a batch without its offset (DUPLICATE_SEQUENCE_NUMBER)."""
    TOO_LONG = "too long"


class Instruments:
    """The instruments, one set per process, and the in-doubt dual writes of this process."""

    def __init__(self, meter: Meter, tracer: Tracer, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.tracer: Final = tracer
        self.clock_s: Final = clock_s
        counter, histogram, gauge = meter.create_counter, meter.create_histogram, meter.create_observable_gauge
        self.prepare: Final = histogram(
            "dualwrite.prepare.duration", "s", "from the first record to a prepared Kafka transaction"
        )
        self.database_commit: Final = histogram(
            "dualwrite.database.commit.duration", "s", "the database's COMMIT, which is the decision"
        )
        self.kafka_commit: Final = histogram(
            "dualwrite.kafka.commit.duration", "s", "from the decision until Kafka has confirmed its commit"
        )
        self.decided: Final = counter("dualwrite.decided", "{transaction}", "decided Kafka transactions, by outcome")
        self.recovered: Final = counter(
            "dualwrite.recovered", "{transaction}", "transactions of a predecessor or of a lost commit, by outcome"
        )
        self.fenced: Final = counter(
            "dualwrite.fenced", "{writer}", "writers whose transactional id another process took over"
        )
        self.lost: Final = counter(
            "dualwrite.lost",
            "{transaction}",
            "decided transactions that the broker aborted and that cannot be repaired",
        )
        self.proofs: Final = counter(
            "dualwrite.proofs", "{transaction}", "transactions whose end was read from the log"
        )
        self.unproven: Final = counter(
            "dualwrite.unproven", "{transaction}", "transactions whose end can no longer be proven"
        )
        self.no_manifest: Final = counter(
            "dualwrite.no_manifest", "{transaction}", "dual writes whose state row got no manifest, by reason"
        )
        self.repaired: Final = counter(
            "dualwrite.repaired",
            "{transaction}",
            "decided transactions that the broker aborted and that were published again",
        )
        self.torn: Final = counter(
            "dualwrite.torn",
            "{transaction}",
            "decided transactions that readers see aborted, or without an end, in some of their partitions",
        )
        self.republished: Final = counter("dualwrite.republished", "{record}", "records that were published again")
        self.stored: Final = counter(
            "dualwrite.stored",
            "{block}",
            "blocks whose records the database stores: in an outbox, or until Kafka is back",
        )
        self.published: Final = counter("dualwrite.published", "{record}", "stored records that were published")
        self._stored_since_ms: dict[str, int] = {}
        gauge(
            "dualwrite.stored.age",
            [self._stored_ages],
            "s",
            "how long the oldest stored block that this process knows of has waited, by transactional id",
        )
        self._refused: dict[str, int] = {}
        gauge(
            "dualwrite.stored.refused",
            [self._refusals],
            "{block}",
            "1 while Kafka permanently refuses a stored block or owed records, by transactional id",
        )
        self.retries: Final = counter(
            "dualwrite.database.retries", "{retry}", "repeated queries for the outcome of a lost database commit"
        )
        self.consumed: Final = counter(
            "dualwrite.consumed", "{record}", "consumed records that became part of a dual write, by outcome"
        )
        gauge("dualwrite.kafka.away", [_kafka_away], "s", "for how long no broker could be reached")
        self._since_s: dict[str, float] = {}
        self._lock = threading.Lock()
        gauge("dualwrite.in_doubt", [self._count], "{transaction}", "dual writes of this process that are in doubt")
        gauge("dualwrite.in_doubt.age", [self._ages], "s", "how long each has been in doubt, by transactional id")
        self.pool_wait: Final = histogram(
            "dualwrite.pool.wait.duration", "s", "until a block had a slot or timed out, by prefix"
        )
        self.pool_timeouts: Final = counter(
            "dualwrite.pool.timeouts", "{block}", "blocks that got no slot in time, by prefix"
        )
        gauge("dualwrite.pool.slots", [_pool_slots], "{slot}", "slots of this process, by prefix and state")
        gauge("dualwrite.pool.waiting", [_pool_waiting], "{block}", "blocks that wait for a slot, by prefix")

    def stores(self, transactional_id: str, since_ms: int) -> None:
        """Note that a block waits, behind others if there are any."""
        if transactional_id not in self._stored_since_ms:  # each block asks
            with self._lock:
                self._stored_since_ms.setdefault(transactional_id, since_ms)

    def waits(self, transactional_id: str, since_ms: int | None) -> None:
        """Note when the oldest waiting block was stored; None: none waits any more."""
        with self._lock:
            if since_ms is None:
                self._stored_since_ms.pop(transactional_id, None)
            else:
                self._stored_since_ms[transactional_id] = since_ms

    def refuses(self, transactional_id: str, *, is_refused: bool) -> None:
        """Note whether Kafka refuses the owed records or the oldest stored block of an id."""
        with self._lock:
            if is_refused:
                self._refused[transactional_id] = 1
            else:
                self._refused.pop(transactional_id, None)

    def _refusals(self, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        with self._lock:
            return [Observation(number, _id(name)) for name, number in self._refused.items()]

    def _stored_ages(self, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        with self._lock:
            now_s = time.time()
            return [Observation(now_s - since / 1000, _id(name)) for name, since in self._stored_since_ms.items()]

    def in_doubt(self, transactional_id: str) -> None:
        """Note that the id is in doubt from now on, unless it already is."""
        with self._lock:
            self._since_s.setdefault(transactional_id, self.clock_s())

    def settled(self, transactional_id: str) -> None:
        if transactional_id in self._since_s:
            with self._lock:
                self._since_s.pop(transactional_id, None)

    def _count(self, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        with self._lock:
            return [Observation(len(self._since_s))]

    def _ages(self, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        with self._lock:
            now_s = self.clock_s()
            return [Observation(now_s - since_s, _id(name)) for name, since_s in self._since_s.items()]


_unheeded: Final = bool  # a built-in function, which costs next to nothing


class Telemetry:
    """The events of the dual writes under one transactional id, one dual write at a time. This one ignores them.

    Only the pause hook, if there is one, is told of the steps.
    """

    def __init__(self, pause: PauseHook | None = None) -> None:
        self.reach: Callable[[PausePoint], object] = _unheeded if pause is None else pause
        """Notes that a step is done."""

    def moved(self, state: SlotState) -> None:
        """Note the new state of the slot."""

    def sends(self, block: RecordBuffer, *ahead: Iterable[BufferedRecord]) -> None:
        """Note which records are sent from now on until the transaction is prepared."""

    def decided(self, state: PreparedTxnState, outcome: Outcome) -> None:
        """Note a decision, before the request to Kafka to complete the transaction."""

    def confirmed(self, outcome: Outcome) -> None:
        """Note that Kafka has completed the transaction."""

    def recovered(self, outcome: Outcome) -> None:
        """Note the outcome of a predecessor's transaction, or of a commit whose response was lost."""

    def lost(self) -> None:
        """Note that the broker has aborted a prepared transaction, and that it cannot be published again."""

    def proved(self) -> None:
        """Note that the log is read to prove how a transaction ended."""

    def torn(self, end: TornEnd) -> None:
        """Note that the row's transaction ended in some partitions otherwise than its coordinator decided."""

    def wrote_no_manifest(self, reason: NoManifest) -> None:
        """Note that the state row of a dual write gets no manifest."""

    def repaired(self, records: int) -> None:
        """Note that the records of an aborted transaction were published again."""

    def stored(self, stored_at_ms: int) -> None:
        """Note that the database stores the records of a block."""

    def waits(self, since_ms: int | None) -> None:
        """Note when the oldest waiting block was stored; None: none waits any more."""

    def published(self, records: int) -> None:
        """Note that stored records were published."""

    def refused(self, *, is_refused: bool) -> None:
        """Note whether Kafka refuses the owed records or the oldest stored block for good."""

    def retried(self) -> None:
        """Note that the database is queried again for the outcome of a commit."""


# Python 3.11 takes longer to read a member of an Enum than to call a function, and there are eight points.
_START_OF_MEASUREMENT: Final = (PausePoint.AFTER_BEGIN, PausePoint.BEFORE_DATABASE_COMMIT)
_AFTER_PREPARE: Final = PausePoint.AFTER_PREPARE
_AFTER_DATABASE_COMMIT: Final = PausePoint.AFTER_DATABASE_COMMIT


class OpenTelemetry(Telemetry):
    """Reports the events to OpenTelemetry, whose failures end here."""

    def __init__(self, transactional_id: str, instruments: Instruments, pause: PauseHook | None = None) -> None:
        super().__init__(pause)
        self._reach_unobserved: Final = self.reach
        self._transactional_id = transactional_id
        self._instruments = instruments
        self._began_s: float | None = None
        self._span: Span | None = None
        self._sending: tuple[Span, list[BufferedRecord]] | None = None
        self._is_measured = False
        """Whether the application had a provider of meters when the latest dual write began."""

    @guarded
    def sends(self, block: RecordBuffer, *ahead: Iterable[BufferedRecord]) -> None:
        if self._span is None:
            return
        records = [*chain(*ahead), *block.records]
        if records:
            client_id = None if block.tracer is None else block.tracer.client_id
            self._sending = _send_span(self._instruments.tracer, self._span, records, client_id), records

    def _end_sending(self) -> None:
        """End the span of sending; it has failed unless every record has been acknowledged."""
        if self._sending is None:
            return
        (span, records), self._sending = self._sending, None
        try:
            partitions = {record.metadata.partition for record in records}
        except DualWriteError as error:
            traces.fail(span, error)
            return
        if len(partitions) == len({record.topic for record in records}) == 1:
            span.set_attribute(traces.PARTITION, str(*partitions))
        span.end()

    def _reach(self, point: PausePoint) -> None:
        self._note(point)
        self._reach_unobserved(point)

    @guarded
    def _note(self, point: PausePoint) -> None:
        if self._span is not None:
            self._note_in_span(self._span, point)
        if not self._is_measured:
            return
        if point in _START_OF_MEASUREMENT:
            self._began_s = self._instruments.clock_s()
        elif point is _AFTER_PREPARE:
            self._record(self._instruments.prepare)
        elif point is _AFTER_DATABASE_COMMIT:
            self._record(self._instruments.database_commit)
            self._began_s = self._instruments.clock_s()

    @guarded
    def _note_in_span(self, span: Span, point: PausePoint) -> None:
        if point is _AFTER_PREPARE:
            self._end_sending()
        span.add_event(point)

    def _record(self, duration: Any) -> None:
        began_s, self._began_s = self._began_s, None
        if began_s is not None:
            duration.record(self._instruments.clock_s() - began_s)

    @guarded
    def moved(self, state: SlotState) -> None:
        if state is SlotState.OPEN:
            self._is_measured = traces.is_provided(self._instruments.prepare)
            self._begin_span()
            self.reach = self._reach if self._is_measured or self._span is not None else self._reach_unobserved
        if state in _RUNNING:
            return
        if state in _IN_DOUBT:
            self._instruments.in_doubt(self._transactional_id)
        else:
            self._instruments.settled(self._transactional_id)
        self._began_s = None
        self._end_span(state)
        if state is SlotState.FENCED:
            self._instruments.fenced.add(1)

    @guarded
    def _begin_span(self) -> None:
        self._span = self._sending = None
        if traces.is_provided(self._instruments.tracer):
            span = self._instruments.tracer.start_span(SPAN, attributes=_id(self._transactional_id))
            self._span = span if span.is_recording() else None

    @guarded
    def _end_span(self, state: SlotState) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        try:
            self._end_sending()
            span.set_attribute("dualwrite.state", state)
        finally:
            span.end()

    @guarded
    def decided(self, state: PreparedTxnState, outcome: Outcome) -> None:
        if self._span is not None:
            self._span.set_attribute("dualwrite.outcome", outcome)
            self._span.set_attribute("dualwrite.prepared_state", str(state))
        self._instruments.decided.add(1, {"outcome": outcome})

    @guarded
    def confirmed(self, outcome: Outcome) -> None:
        if self._is_measured and outcome is Outcome.COMMITTED:
            self._record(self._instruments.kafka_commit)

    @guarded
    def recovered(self, outcome: Outcome) -> None:
        self._instruments.recovered.add(1, {"outcome": outcome})

    @guarded
    def lost(self) -> None:
        self._instruments.lost.add(1)

    @guarded
    def proved(self) -> None:
        self._instruments.proofs.add(1)

    @guarded
    def torn(self, end: TornEnd) -> None:
        self._instruments.torn.add(1, {"outcome": end})

    @guarded
    def wrote_no_manifest(self, reason: NoManifest) -> None:
        self._instruments.no_manifest.add(1, {"reason": reason})

    @guarded
    def repaired(self, records: int) -> None:
        self._instruments.repaired.add(1)
        self._instruments.republished.add(records)

    @guarded
    def stored(self, stored_at_ms: int) -> None:
        self._instruments.stores(self._transactional_id, stored_at_ms)
        self._instruments.stored.add(1)

    @guarded
    def waits(self, since_ms: int | None) -> None:
        self._instruments.waits(self._transactional_id, since_ms)

    @guarded
    def published(self, records: int) -> None:
        self._instruments.published.add(records)

    @guarded
    def refused(self, *, is_refused: bool) -> None:
        self._instruments.refuses(self._transactional_id, is_refused=is_refused)

    @guarded
    def retried(self) -> None:
        self._instruments.retries.add(1)


def _send_span(tracer: Tracer, parent: Span, records: list[BufferedRecord], client_id: str | None) -> Span:
    """Begin the span of sending the records of a dual write, with links to where each was created."""
    from opentelemetry.trace import SpanKind, set_span_in_context

    topics = {record.topic for record in records}
    name = f"send {records[0].topic}" if len(topics) == 1 else "send"
    attributes = traces.attributes_of("send", "send", records[0].topic)
    if len(topics) > 1:
        del attributes[traces.DESTINATION]
    if len(records) > 1:
        attributes[traces.MESSAGE_COUNT] = len(records)
    if client_id is not None:
        attributes[traces.CLIENT_ID] = client_id
    links = traces.links_to(record.headers for record in records)
    context = set_span_in_context(parent)
    return tracer.start_span(name, context, kind=SpanKind.CLIENT, attributes=attributes, links=links)


def telemetry_of(transactional_id: str, pause: PauseHook | None = None) -> Telemetry:
    """Return the telemetry of a transactional id: a no-op if OpenTelemetry is not installed.

    The pause hook, if there is one, is called at each step, after the telemetry.
    """
    found = instruments()
    return Telemetry(pause) if found is None else OpenTelemetry(transactional_id, found, pause)


@guarded
def count_consumed(outcome: str, records: int) -> None:
    """Count consumed records that became part of a committed dual write."""
    found = instruments()
    if found is not None:
        found.consumed.add(records, {"outcome": outcome})


@guarded
def count_unproven() -> None:
    """Count a transaction whose end nothing can prove any more."""
    found = instruments()
    if found is not None:
        found.unproven.add(1)


class SlotWait:
    """Measures, from its creation on, how long a block of a pool waits for its slot."""

    __slots__ = ("_instruments", "_prefix", "_since_s")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._instruments = instruments()
        self._since_s = 0.0 if self._instruments is None else self._instruments.clock_s()

    @guarded
    def over(self) -> None:
        """Record the wait: the block has its slot, or has timed out."""
        if self._instruments is not None:
            self._instruments.pool_wait.record(self._instruments.clock_s() - self._since_s, {"prefix": self._prefix})


@guarded
def note_no_wait(prefix: str) -> None:
    """Record that a block of a pool had its slot at once."""
    found = instruments()
    if found is not None:
        found.pool_wait.record(0.0, {"prefix": prefix})


@guarded
def count_timeout(prefix: str) -> None:
    """Count a block of a pool that got no slot in time."""
    found = instruments()
    if found is not None:
        found.pool_timeouts.add(1, {"prefix": prefix})


@cache
def instruments() -> Instruments | None:
    """Return the instruments of the application's provider, even one set later; None without OpenTelemetry's API."""
    try:
        from opentelemetry.metrics import get_meter
        from opentelemetry.trace import get_tracer
    except ImportError:
        return None
    try:
        return Instruments(get_meter(SCOPE), get_tracer(SCOPE))
    except Exception as error:
        tolerate(error, "the provider of the application")
        return None


def _id(transactional_id: str) -> dict[str, str]:
    return {"messaging.kafka.transactional_id": transactional_id}


class ObservedStatus(Protocol):
    """The numbers that the gauges show of one pool."""

    @property
    def in_use(self) -> int: ...
    @property
    def idle(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def set_aside(self) -> tuple[str, ...]: ...


class ObservedPool(Protocol):
    """A pool of this process."""

    @property
    def prefix(self) -> str: ...

    def status(self) -> ObservedStatus: ...

    @property
    def is_of_this_process(self) -> bool: ...


# By id() of the pool: a dictionary can be copied while other threads and the garbage collector change it.
_pools: dict[int, weakref.ref[ObservedPool]] = {}


def observe_pool(pool: ObservedPool) -> None:
    """Show `pool` in the gauges for as long as it lives, or until `forget_pool`."""
    key = id(pool)
    _pools[key] = weakref.ref(pool, lambda _: _pools.pop(key, None))


def forget_pool(pool: ObservedPool) -> None:
    """Stop showing a pool that is closed."""
    _pools.pop(id(pool), None)


class ObservedAvailability(Protocol):
    """Kafka's presence, as a writer or pool of this process knows it."""

    @property
    def away_for_s(self) -> float | None: ...


_availabilities: dict[int, weakref.ref[ObservedAvailability]] = {}


def observe_availability(availability: ObservedAvailability) -> None:
    """Show in the gauge how long Kafka has been AWAY, while `availability` lives, or until it is forgotten."""
    key = id(availability)
    _availabilities[key] = weakref.ref(availability, lambda _: _availabilities.pop(key, None))


def forget_availability(availability: ObservedAvailability) -> None:
    """Stop showing the availability of a closed writer or pool."""
    _availabilities.pop(id(availability), None)


def _kafka_away(options: CallbackOptions) -> Iterable[Observation]:
    """Return the longest time for which Kafka is AWAY; nothing while it is not."""
    from opentelemetry.metrics import Observation

    living = [found for each in list(_availabilities.values()) if (found := each()) is not None]
    longest_s = max((away_s for each in living if (away_s := each.away_for_s) is not None), default=None)
    return [] if longest_s is None else [Observation(longest_s)]


def _pool_slots(options: CallbackOptions) -> Iterable[Observation]:
    """Return the number of slots by prefix and state."""
    return _pool_sums(
        lambda status: {"in_use": status.in_use, "idle": status.idle, "set_aside": len(status.set_aside)}, "state"
    )


def _pool_waiting(options: CallbackOptions) -> Iterable[Observation]:
    """Return the number of blocks that wait for a slot, by prefix."""
    return _pool_sums(lambda status: {"": status.waiting}, None)


def _pool_sums(numbers: Callable[[ObservedStatus], dict[str, int]], attribute: str | None) -> Iterable[Observation]:
    """Add the pools of this process up by prefix: two observations of one prefix would be one point reported twice."""
    from opentelemetry.metrics import Observation

    sums: Counter[tuple[str, str]] = Counter()
    for pool in [found for each in list(_pools.values()) if (found := each()) is not None]:
        if pool.is_of_this_process:
            sums.update({(pool.prefix, name): number for name, number in numbers(pool.status()).items()})
    return [
        Observation(number, {"prefix": prefix} | ({attribute: name} if attribute else {}))
        for (prefix, name), number in sums.items()
    ]
