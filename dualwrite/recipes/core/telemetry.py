"""What dual writes tell of themselves through OpenTelemetry; nothing, and at no cost, where its API is not installed.

The steps are those of `pause_points.py`, the states those of `slot.py`: whoever carries out dual writes says where it
is, and all names, units and sums are here. What they mean and when to be woken by them: docs/observability.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import pool_gauges
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.trace import Span, Tracer

SCOPE: Final = "dualwrite"
SPAN: Final = "dualwrite.commit"

_RUNNING: Final = frozenset({SlotState.OPEN, SlotState.DECIDING})
_IN_DOUBT: Final = frozenset({SlotState.IN_DOUBT, SlotState.UNRESOLVED})


class Instruments:
    """One per process: the instruments, and the dual writes of this process that are in doubt."""

    def __init__(self, meter: Meter, tracer: Tracer, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.tracer: Final = tracer
        self.clock_s: Final = clock_s
        self.prepare: Final = meter.create_histogram(
            "dualwrite.prepare.duration", "s", "from the first record to a prepared Kafka transaction"
        )
        self.database_commit: Final = meter.create_histogram(
            "dualwrite.database.commit.duration", "s", "the database's COMMIT, which decides"
        )
        self.kafka_commit: Final = meter.create_histogram(
            "dualwrite.kafka.commit.duration", "s", "from the decision until Kafka has confirmed its commit"
        )
        self.decided: Final = meter.create_counter(
            "dualwrite.decided", "{transaction}", "Kafka transactions that were decided, by outcome"
        )
        self.recovered: Final = meter.create_counter(
            "dualwrite.recovered", "{transaction}", "transactions of a predecessor or of a lost commit, by outcome"
        )
        self.fenced: Final = meter.create_counter(
            "dualwrite.fenced", "{writer}", "writers whose transactional id another process took over"
        )
        self.lost: Final = meter.create_counter(
            "dualwrite.lost", "{transaction}", "prepared transactions that the broker aborted against the decision"
        )
        self.retries: Final = meter.create_counter(
            "dualwrite.database.retries", "{retry}", "repeated questions what became of a lost database commit"
        )
        self.consumed: Final = meter.create_counter(
            "dualwrite.consumed", "{record}", "records that were consumed and became part of a dual write, by outcome"
        )
        self._since_s: dict[str, float] = {}
        self._lock = threading.Lock()
        meter.create_observable_gauge(
            "dualwrite.in_doubt", [self._count], "{transaction}", "dual writes of this process that are in doubt"
        )
        meter.create_observable_gauge("dualwrite.in_doubt.age", [self._ages], "s", "for how long, by transactional id")
        self.pool_wait: Final = meter.create_histogram(
            "dualwrite.pool.wait.duration", "s", "until a block had its slot, or none in time, by prefix"
        )
        self.pool_timeouts: Final = meter.create_counter(
            "dualwrite.pool.timeouts", "{block}", "blocks that got no slot in time, by prefix"
        )
        meter.create_observable_gauge(
            "dualwrite.pool.slots", [pool_gauges.slots], "{slot}", "slots of this process, by prefix and state"
        )
        meter.create_observable_gauge(
            "dualwrite.pool.waiting", [pool_gauges.waiting], "{block}", "blocks that wait for a slot, by prefix"
        )

    def in_doubt(self, transactional_id: str) -> None:
        """From now on, unless it was so before."""
        with self._lock:
            self._since_s.setdefault(transactional_id, self.clock_s())

    def settled(self, transactional_id: str) -> None:
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


class Telemetry:
    """Where the dual writes under one transactional id, which are one at a time, say what they do. Tells nobody."""

    def reach(self, point: PausePoint) -> None:
        """A step is done."""

    def moved(self, state: SlotState) -> None:
        """The transactional id is in another state."""

    def decided(self, state: PreparedTxnState, outcome: Outcome) -> None:
        """The outcome is certain, and Kafka is about to be told."""

    def confirmed(self, outcome: Outcome) -> None:
        """Kafka has done it."""

    def recovered(self, outcome: Outcome) -> None:
        """What a predecessor left, or a commit whose answer was lost, turned out to be this."""

    def lost(self) -> None:
        """The broker has aborted what had been prepared."""

    def retried(self) -> None:
        """The database did not say what became of a commit, and is asked again."""


# Python 3.11 takes longer to read a member from its Enum than to call a function, and there are eight points.
_BEFORE_WHAT_IS_MEASURED: Final = (PausePoint.AFTER_BEGIN, PausePoint.BEFORE_DATABASE_COMMIT)
_AFTER_PREPARE: Final = PausePoint.AFTER_PREPARE
_AFTER_DATABASE_COMMIT: Final = PausePoint.AFTER_DATABASE_COMMIT


class OpenTelemetry(Telemetry):
    """Tells OpenTelemetry."""

    def __init__(self, transactional_id: str, instruments: Instruments) -> None:
        self._transactional_id = transactional_id
        self._to = instruments
        self._began_s: float | None = None
        self._span: Span | None = None

    def reach(self, point: PausePoint) -> None:
        if self._span is not None:
            self._span.add_event(point)
        if point in _BEFORE_WHAT_IS_MEASURED:
            self._began_s = self._to.clock_s()
        elif point is _AFTER_PREPARE:
            self._measured(self._to.prepare)
        elif point is _AFTER_DATABASE_COMMIT:
            self._measured(self._to.database_commit)
            self._began_s = self._to.clock_s()

    def _measured(self, duration: Any) -> None:
        if self._began_s is not None:
            duration.record(self._to.clock_s() - self._began_s)
        self._began_s = None

    def moved(self, state: SlotState) -> None:
        if state is SlotState.OPEN:
            span = self._to.tracer.start_span(SPAN, attributes=_id(self._transactional_id))
            self._span = span if span.is_recording() else None
        if state in _RUNNING:
            return
        if state is SlotState.FENCED:
            self._to.fenced.add(1)
        if state in _IN_DOUBT:
            self._to.in_doubt(self._transactional_id)
        else:
            self._to.settled(self._transactional_id)
        self._end_span(state)

    def _end_span(self, state: SlotState) -> None:
        span, self._span, self._began_s = self._span, None, None
        if span is not None:
            span.set_attribute("dualwrite.state", state)
            span.end()

    def decided(self, state: PreparedTxnState, outcome: Outcome) -> None:
        self._to.decided.add(1, {"outcome": outcome})
        if self._span is not None:
            self._span.set_attribute("dualwrite.outcome", outcome)
            self._span.set_attribute("dualwrite.prepared_state", str(state))

    def confirmed(self, outcome: Outcome) -> None:
        if outcome is Outcome.COMMITTED:
            self._measured(self._to.kafka_commit)

    def recovered(self, outcome: Outcome) -> None:
        self._to.recovered.add(1, {"outcome": outcome})

    def lost(self) -> None:
        self._to.lost.add(1)

    def retried(self) -> None:
        self._to.retries.add(1)


def telemetry_of(transactional_id: str) -> Telemetry:
    """For whatever this process has."""
    found = instruments()
    return Telemetry() if found is None else OpenTelemetry(transactional_id, found)


def count_consumed(outcome: str, records: int) -> None:
    """So many records that a consumer read became part of a dual write that is committed."""
    found = instruments()
    if found is not None:
        found.consumed.add(records, {"outcome": outcome})


class SlotWait:
    """The time from now on that a block of a pool waits for its slot."""

    __slots__ = ("_prefix", "_since_s", "_to")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._to = instruments()
        self._since_s = 0.0 if self._to is None else self._to.clock_s()

    def over(self) -> None:
        """It has its slot, or gave up."""
        if self._to is not None:
            self._to.pool_wait.record(self._to.clock_s() - self._since_s, {"prefix": self._prefix})


def count_timeout(prefix: str) -> None:
    """A block of a pool got no slot in time."""
    found = instruments()
    if found is not None:
        found.pool_timeouts.add(1, {"prefix": prefix})


@cache
def instruments() -> Instruments | None:
    """Of whichever provider the application sets, before or after this; None where the API is not installed."""
    try:
        from opentelemetry.metrics import get_meter
        from opentelemetry.trace import get_tracer
    except ImportError:
        return None
    return Instruments(get_meter(SCOPE), get_tracer(SCOPE))


def _id(transactional_id: str) -> dict[str, str]:
    return {"messaging.kafka.transactional_id": transactional_id}
