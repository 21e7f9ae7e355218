"""The events of the dual writes under one transactional id, as metrics and spans of OpenTelemetry.

The coordinator reports steps (`pause_points.py`) and states (`slot.py`). A no-op, at no cost, if OpenTelemetry's API is
not installed. Events that only count are in `metrics.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from dualwrite.client.records import traces
from dualwrite.errors import DualWriteError
from dualwrite.guarded import guarded, tolerate
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import metrics
from dualwrite.recipes.core.metrics import Counted, Instruments, id_attribute
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.core.slot import SlotState

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from dualwrite.recipes.core.buffer import BufferedRecord, RecordBuffer

SPAN: Final = "dualwrite.commit"

_RUNNING: Final = frozenset({SlotState.OPEN, SlotState.DECIDING})
_IN_DOUBT: Final = frozenset({SlotState.IN_DOUBT, SlotState.UNRESOLVED})

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

    def stored(self, stored_at_ms: int) -> None:
        """Note that the database stores the records of a block."""

    def waits(self, since_ms: int | None) -> None:
        """Note when the oldest waiting block was stored; None: no block waits."""

    def refused(self, *, is_refused: bool) -> None:
        """Note whether Kafka refuses the owed records or the oldest stored block for good."""


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

    # Without a provider, as in most processes, each of the next methods costs one call.

    def sends(self, block: RecordBuffer, *ahead: Iterable[BufferedRecord]) -> None:
        if self._span is not None:
            self._begin_sending(self._span, block, ahead)

    @guarded
    def _begin_sending(self, span: Span, block: RecordBuffer, ahead: Iterable[Iterable[BufferedRecord]]) -> None:
        records = [*chain(*ahead), *block.records]
        if records:
            client_id = None if block.tracer is None else block.tracer.client_id
            self._sending = _send_span(self._instruments.tracer, span, records, client_id), records

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

    @guarded
    def _record(self, duration: Any) -> None:
        began_s, self._began_s = self._began_s, None
        if began_s is not None:
            duration.record(self._instruments.clock_s() - began_s)

    def moved(self, state: SlotState) -> None:
        try:
            if state is SlotState.OPEN:
                self._is_measured = traces.is_provided(self._instruments.prepare)
                self._span = self._sending = None
                if traces.is_provided(self._instruments.tracer):
                    self._begin_span()
                self.reach = self._reach if self._is_measured or self._span is not None else self._reach_unobserved
            if state in _RUNNING:
                return
            since_s = self._instruments.in_doubt_since_s
            if state in _IN_DOUBT:
                since_s.setdefault(self._transactional_id, self._instruments.clock_s())
            else:
                since_s.pop(self._transactional_id, None)
            self._began_s = None
            if self._span is not None:
                self._end_span(self._span, state)
            if state is SlotState.FENCED:
                metrics.count(Counted.FENCED)
        except Exception as error:  # `guarded` would be another call, three times in each block
            tolerate(error, "moved")

    @guarded
    def _begin_span(self) -> None:
        span = self._instruments.tracer.start_span(SPAN, attributes=id_attribute(self._transactional_id))
        self._span = span if span.is_recording() else None

    @guarded
    def _end_span(self, span: Span, state: SlotState) -> None:
        self._span = None
        try:
            self._end_sending()
            span.set_attribute("dualwrite.state", state)
        finally:
            span.end()

    def decided(self, state: PreparedTxnState, outcome: Outcome) -> None:
        if self._span is not None:
            self._note_decision(self._span, state, outcome)
        metrics.count(Counted.DECIDED, outcome=outcome)

    @guarded
    def _note_decision(self, span: Span, state: PreparedTxnState, outcome: Outcome) -> None:
        span.set_attribute("dualwrite.outcome", outcome)
        span.set_attribute("dualwrite.prepared_state", str(state))

    def confirmed(self, outcome: Outcome) -> None:
        if self._is_measured and outcome is Outcome.COMMITTED:
            self._record(self._instruments.kafka_commit)

    def stored(self, stored_at_ms: int) -> None:
        self._instruments.stored_since_ms.setdefault(self._transactional_id, stored_at_ms)
        metrics.count(Counted.STORED)

    def waits(self, since_ms: int | None) -> None:
        if since_ms is None:
            self._instruments.stored_since_ms.pop(self._transactional_id, None)
        else:
            self._instruments.stored_since_ms[self._transactional_id] = since_ms

    @guarded
    def refused(self, *, is_refused: bool) -> None:
        if is_refused:
            self._instruments.refused[self._transactional_id] = 1
        else:
            self._instruments.refused.pop(self._transactional_id, None)


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
    """Return the telemetry of an id: without OpenTelemetry only the pause hook is told of each step."""
    found = metrics.instruments()
    return Telemetry(pause) if found is None else OpenTelemetry(transactional_id, found, pause)
