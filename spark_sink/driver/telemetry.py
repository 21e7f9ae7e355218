"""Metrics of batches through OpenTelemetry, from the driver's side; a no-op if its API is not installed.

They are reported where a batch is planned and committed: with `format()` in Python processes that Spark starts beside
the driver, with foreachBatch where its function runs. docs/observability.md explains each metric.
"""

from __future__ import annotations

import logging
import os
import pkgutil
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dualwrite.guarded import guarded, pass_on_signal, tolerate

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from spark_sink.driver.finisher import Tally
    from spark_sink.driver.phases import PhaseTimes
    from spark_sink.store.tables import Decided

_log = logging.getLogger(__name__)


_BOUNDARIES_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Of the buckets of phases. The SDK's own, up to 10,000, are for milliseconds."""


class BatchOutcome(StrEnum):
    """An outcome of a batch; one batch may have several."""

    DECIDED = "decided"
    REPLAYED = "replayed"
    """Spark repeated a batch that was decided before."""
    COMPLETED = "completed"
    REPAIRED = "repaired"
    """Some of its transactions were published again; counted at each completion that does so."""
    LOST = "lost"
    """Kafka aborted a transaction of it that cannot be repaired; counted at each attempt to complete it."""


class Phase(StrEnum):
    """The phases of a batch, one after the other."""

    PLAN = "plan"
    WRITE = "write"
    """From the end of the plan until the driver has the results of all tasks."""
    DECIDE = "decide"
    COMPLETE = "complete"


class TransactionOutcome(StrEnum):
    """How a Kafka transaction of an attempt ended."""

    COMMITTED = "committed"
    REPAIRED = "repaired"
    """Published again, and committed."""
    ABORTED = "aborted"


class Instruments:
    """The instruments of this process."""

    def __init__(self, meter: Meter) -> None:
        self.batches: Final = meter.create_counter("dualwrite.spark.batches", "{batch}", "batches, by sink and outcome")
        self.transactions: Final = meter.create_counter(
            "dualwrite.spark.transactions", "{transaction}", "Kafka transactions that were ended, by sink and outcome"
        )
        self.records: Final = meter.create_counter(
            "dualwrite.spark.records", "{record}", "records of decided batches, by sink"
        )
        self.batch_transactions: Final = meter.create_histogram(
            "dualwrite.spark.batch.transactions", "{transaction}", "Kafka transactions of a decided batch, by sink"
        )
        self.phases: Final = meter.create_histogram(
            "dualwrite.spark.phase.duration",
            "s",
            "how long each phase of a decided batch took, by sink and phase",
            explicit_bucket_boundaries_advisory=_BOUNDARIES_S,
        )


@cache
def _instruments() -> Instruments | None:
    try:
        from opentelemetry.metrics import get_meter
    except ImportError:
        return None
    try:
        return Instruments(get_meter("dualwrite"))
    except Exception as error:
        tolerate(error, "the provider of the application")
        return None


class BatchTelemetry:
    """Reports the outcomes of the batches of one sink. Never raises."""

    def __init__(self, sink_id: str, setup: str | None) -> None:
        """Take the option `telemetry.setup`, whose function is called before the first report of this process."""
        self._attributes: Final = {"sink": sink_id}
        self._setup = setup

    @guarded
    def decided(self, decided: Decided, transactions: int) -> None:
        """Count a batch whose decision is durable, with its records and transactions; or count it as replayed."""
        if (found := self._ready()) is None:
            return
        if not decided.anew:
            self._batch(found, BatchOutcome.REPLAYED)
            return
        self._batch(found, BatchOutcome.DECIDED)
        found.records.add(decided.records, self._attributes)
        found.batch_transactions.record(transactions, self._attributes)

    def completed(self, decided: Decided, tally: Tally, times: PhaseTimes) -> None:
        """Count a batch that is committed in Kafka, and flush: the batch is over."""
        self._completed(decided, tally, times)
        self.flush()

    @guarded
    def _completed(self, decided: Decided, tally: Tally, times: PhaseTimes) -> None:
        if (found := self._ready()) is None:
            return
        if decided.anew or tally.committed:
            self._batch(found, BatchOutcome.COMPLETED)
        if decided.anew:
            for phase, seconds in (
                (Phase.PLAN, times.plan_s),
                (Phase.WRITE, times.write_s),
                (Phase.DECIDE, times.decide_s),
                (Phase.COMPLETE, times.complete_s),
            ):
                found.phases.record(seconds, {**self._attributes, "phase": phase})

    def completed_late(self, batches: int) -> None:
        """Count batches that earlier drivers decided and a plan has completed, and flush."""
        if batches and (found := self._ready()) is not None:
            self._batch(found, BatchOutcome.COMPLETED, batches)
        self.flush()

    def lost(self) -> None:
        """Count a batch that a completion has found lost, and flush: the query ends."""
        if (found := self._ready()) is not None:
            self._batch(found, BatchOutcome.LOST)
            self.flush()

    @guarded
    def ended(self, tally: Tally) -> None:
        """Count the transactions that a completion has ended."""
        if (found := self._ready()) is None:
            return
        if repaired := sum(count > 0 for count in tally.repaired_of.values()):
            self._batch(found, BatchOutcome.REPAIRED, repaired)
        for outcome, count in (
            (TransactionOutcome.COMMITTED, tally.committed - tally.repaired),
            (TransactionOutcome.REPAIRED, tally.repaired),
            (TransactionOutcome.ABORTED, tally.aborted),
        ):
            if count:
                found.transactions.add(count, {**self._attributes, "outcome": outcome})

    def flush(self) -> None:
        """Call the flush function that the setup returned: Spark may end this process before the next export."""
        flush = None if self._setup is None else set_up(self._setup, os.getpid())
        if flush is not None:
            _guarded(flush, "what telemetry.setup returned")

    @guarded
    def _batch(self, found: Instruments, outcome: BatchOutcome, count: int = 1) -> None:
        found.batches.add(count, {**self._attributes, "outcome": outcome})

    def _ready(self) -> Instruments | None:
        if self._setup is not None:
            set_up(self._setup, os.getpid())
        return _instruments()


@cache
def set_up(setup: str, process: int) -> Callable[[], Any] | None:
    """Call the function that `telemetry.setup` names, once per process; return the flush function it returned."""
    flush = _guarded(lambda: pkgutil.resolve_name(setup)(), "telemetry.setup")
    return flush if callable(flush) else None


def _guarded(function: Callable[[], Any], what: str) -> Any:
    """Call a function of the user and log its error. A batch never fails because it cannot be observed."""
    try:
        return function()
    except Exception as error:
        pass_on_signal(error)
        _log.warning("%s has raised; batches go on, and their metrics may be missing", what, exc_info=True)
        return None
