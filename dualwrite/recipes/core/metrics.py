"""The metrics of dual writes through OpenTelemetry; nothing, at no cost, if its API is not installed.

All names, units and sums are here. Their meaning, and the alerts to set: docs/observability.md.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dualwrite.client.records import traces
from dualwrite.guarded import tolerate

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter
    from opentelemetry.trace import Tracer


class Counted(Enum):
    """The counters: the end of the name, the unit, and the description."""

    __hash__ = object.__hash__  # Enum.__hash__ is slower, in Python, and each block looks some members up

    DECIDED = ("decided", "{transaction}", "decided Kafka transactions, by outcome")
    RECOVERED = ("recovered", "{transaction}", "transactions of a predecessor or of a lost commit, by outcome")
    FENCED = ("fenced", "{writer}", "writers whose transactional id another process took over")
    LOST = ("lost", "{transaction}", "decided transactions that the broker aborted and that cannot be repaired")
    PROOFS = ("proofs", "{transaction}", "transactions whose end was read from the log")
    UNPROVEN = ("unproven", "{transaction}", "transactions whose end can no longer be proven")
    NO_MANIFEST = ("no_manifest", "{transaction}", "dual writes whose state row got no manifest, by reason")
    REPAIRED = (
        "repaired",
        "{transaction}",
        "decided transactions that the broker aborted and that were published again",
    )
    REPUBLISHED = ("republished", "{record}", "records that were published again")
    TORN = (
        "torn",
        "{transaction}",
        "decided transactions that readers see aborted, or without an end, in some of their partitions",
    )
    STORED = ("stored", "{block}", "blocks whose records the database stores: in an outbox, or until Kafka is back")
    PUBLISHED = ("published", "{record}", "stored records that were published")
    RETRIES = ("database.retries", "{retry}", "repeated queries for the outcome of a lost database commit")
    CONSUMED = ("consumed", "{record}", "consumed records that became part of a dual write, by outcome")
    POOL_TIMEOUTS = ("pool.timeouts", "{block}", "blocks that got no slot in time, by prefix")


class TornEnd(StrEnum):
    """How a transaction that its coordinator has committed ended in some of its partitions."""

    ABORTED = "aborted"
    HANGING = "hanging"


class NoManifest(StrEnum):
    """Why the state row gets no manifest."""

    NOT_KNOWN = "not known"
    """A broker acknowledged a batch without its offset (DUPLICATE_SEQUENCE_NUMBER)."""
    TOO_LONG = "too long"


_BOUNDARIES_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Of the buckets of durations. The SDK's own, up to 10,000, are for milliseconds."""


def _duration(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(
        f"dualwrite.{name}.duration", "s", description, explicit_bucket_boundaries_advisory=_BOUNDARIES_S
    )


Values = Iterable[tuple[float, dict[str, str]]]
"""The numbers that a gauge shows now, and their attributes."""


class Instruments:
    """The instruments, one set per process, and what the gauges show of the transactional ids of this process."""

    def __init__(self, meter: Meter, tracer: Tracer, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.tracer: Final = tracer
        self.clock_s: Final = clock_s
        self.stored_since_ms: Final[dict[str, int]] = {}
        """When the oldest waiting block of each id was stored."""
        self.refused: Final[dict[str, int]] = {}
        """1 for each id of which Kafka refuses the owed records or the oldest stored block."""
        self.in_doubt_since_s: Final[dict[str, float]] = {}
        self.counters: Final = {
            each: meter.create_counter(f"dualwrite.{name}", unit, description)
            for each in Counted
            for name, unit, description in [each.value]
        }
        self.prepare: Final = _duration(meter, "prepare", "from the first record to a prepared Kafka transaction")
        self.database_commit: Final = _duration(
            meter, "database.commit", "the database's COMMIT, which is the decision"
        )
        self.kafka_commit: Final = _duration(
            meter, "kafka.commit", "from the decision until Kafka has confirmed its commit"
        )
        self.pool_wait: Final = _duration(meter, "pool.wait", "until a block had a slot or timed out, by prefix")
        self._make_gauges(meter)

    def _make_gauges(self, meter: Meter) -> None:
        from opentelemetry.metrics import Observation

        def gauge(name: str, unit: str, values: Callable[[], Values], description: str) -> None:
            observe = [lambda _: [Observation(*each) for each in values()]]
            meter.create_observable_gauge(f"dualwrite.{name}", observe, unit, description)

        gauge(
            "stored.age",
            "s",
            lambda: _by_id(self.stored_since_ms, lambda since_ms: time.time() - since_ms / 1000),
            "how long the oldest stored block that this process knows of has waited, by transactional id",
        )
        gauge(
            "stored.refused",
            "{block}",
            lambda: _by_id(self.refused, int),
            "1 while Kafka permanently refuses a stored block or owed records, by transactional id",
        )
        gauge(
            "in_doubt",
            "{transaction}",
            lambda: [(len(self.in_doubt_since_s), {})],
            "dual writes of this process that are in doubt",
        )
        gauge(
            "in_doubt.age",
            "s",
            lambda: _by_id(self.in_doubt_since_s, lambda since_s: self.clock_s() - since_s),
            "how long each has been in doubt, by transactional id",
        )
        gauge("kafka.away", "s", _kafka_away, "for how long no broker could be reached")
        gauge("pool.slots", "{slot}", _pool_slots, "slots of this process, by prefix and state")
        gauge("pool.unrecovered", "{slot}", _pool_unrecovered, "slots left by dead processes, by prefix")
        gauge("pool.waiting", "{block}", _pool_waiting, "blocks that wait for a slot, by prefix")


def _by_id(numbers: Mapping[str, Any], shown: Callable[[Any], float]) -> Values:
    # a dictionary can be copied while other threads change it
    return [(shown(number), id_attribute(name)) for name, number in dict(numbers).items()]


def id_attribute(transactional_id: str) -> dict[str, str]:
    return {"messaging.kafka.transactional_id": transactional_id}


@cache
def instruments() -> Instruments | None:
    """Return the instruments of the application's provider, even one set later; None without OpenTelemetry's API."""
    try:
        from opentelemetry.metrics import get_meter
        from opentelemetry.trace import get_tracer
    except ImportError:
        return None
    try:
        return Instruments(get_meter(traces.SCOPE), get_tracer(traces.SCOPE))
    except Exception as error:
        tolerate(error, "the provider of the application")
        return None


def count(counted: Counted, number: int = 1, **attributes: str) -> None:
    """Add to a counter. Each block does this, and `guarded` would be another call."""
    try:
        found = instruments()
        if found is not None:
            found.counters[counted].add(number, attributes)
    except Exception as error:
        tolerate(error, "count")


def now_s() -> float:
    found = instruments()
    return 0.0 if found is None else found.clock_s()


def record_wait(prefix: str, waited_s: float) -> None:
    """Record how long a block of a pool has waited until it had its slot, or timed out."""
    try:
        found = instruments()
        if found is not None:
            found.pool_wait.record(waited_s, {"prefix": prefix})
    except Exception as error:
        tolerate(error, "record_wait")


@dataclass(slots=True)
class Tally:
    """Totals since a writer or pool was created, of what an operator has to know."""

    no_manifest: int = 0
    """Dual writes that went on without a manifest."""
    unproven: int = 0
    """Transactions whose end can no longer be proven."""


# ---- pools, and whether Kafka is away ----------------------------------------------------------------------------


class Observed:
    """Objects whose numbers the gauges show, for as long as they live, or until they are forgotten."""

    def __init__(self) -> None:
        # By id(): a dictionary can be copied while other threads and the garbage collector change it.
        self._by_id: dict[int, weakref.ref[Any]] = {}

    def add(self, each: object) -> None:
        key, by_id = id(each), self._by_id
        by_id[key] = weakref.ref(each, lambda _: by_id.pop(key, None))

    def forget(self, each: object) -> None:
        """Stop showing an object that is closed; harmless when repeated."""
        self._by_id.pop(id(each), None)

    def living(self) -> list[Any]:
        return [found for each in list(self._by_id.values()) if (found := each()) is not None]


pools: Final = Observed()
"""The pools (`PoolCoordinator`) of this process."""

availabilities: Final = Observed()
"""Kafka's presence (`Availability`), as each writer or pool of this process knows it."""


def _kafka_away() -> Values:
    away_s = [each.away_for_s for each in availabilities.living()]
    longest_s = max((each for each in away_s if each is not None), default=None)
    return [] if longest_s is None else [(longest_s, {})]


def _pool_slots() -> Values:
    sums: Counter[tuple[str, str]] = Counter()
    for prefix, status in _pool_statuses():
        states = {"in_use": status.in_use, "idle": status.idle, "set_aside": len(status.set_aside)}
        sums.update({(prefix, state): number for state, number in states.items()})
    return [(number, {"prefix": prefix, "state": state}) for (prefix, state), number in sums.items()]


def _pool_unrecovered() -> Values:
    """Return what the pools of each prefix see: all see the same slots, one perhaps before another."""
    most: dict[str, int] = {}
    for prefix, status in _pool_statuses():
        most[prefix] = max(most.get(prefix, 0), len(status.unrecovered))
    return [(number, {"prefix": prefix}) for prefix, number in most.items()]


def _pool_waiting() -> Values:
    sums: Counter[str] = Counter()
    for prefix, status in _pool_statuses():
        sums.update({prefix: status.waiting})
    return [(number, {"prefix": prefix}) for prefix, number in sums.items()]


def _pool_statuses() -> list[tuple[str, Any]]:
    """Return the status of each pool. Several pools may share a prefix; the caller adds their numbers up."""
    return [(pool.prefix, pool.status()) for pool in pools.living() if pool.is_of_this_process]
