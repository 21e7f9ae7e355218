"""A span `process` for each consumed record, linked to the span that created the record (OpenTelemetry).

Its parent is the caller's span; without one it is the span that created the record, so that records sent by the handler
continue that trace. Names and attributes are those of OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from dualwrite.client.records import traces
from dualwrite.guarded import guarded, tolerate
from dualwrite.recipes.consume.consumers import ConsumedRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


def processing(record: ConsumedRecord, group_id: str) -> AbstractContextManager[None]:
    """Return a context manager that is the span of one record; it does nothing without OpenTelemetry's API."""
    tracer = traces.tracer()
    return nullcontext() if tracer is None else _span(tracer, record, group_id)


@contextmanager
def _span(tracer: Tracer, record: ConsumedRecord, group_id: str) -> Iterator[None]:
    with ExitStack() as opened:
        span = _begun(opened, tracer, record, group_id)
        try:
            yield
        except BaseException as error:
            if span is not None and isinstance(error, Exception):
                _note_error(span, error)
            _end(opened, error)
            raise
        _end(opened, None)


def _begun(opened: ExitStack, tracer: Tracer, record: ConsumedRecord, group_id: str) -> Span | None:
    """Return the span of a record, the current one until `opened` is closed; None if that fails."""
    try:
        return opened.enter_context(_of(tracer, record, group_id))
    except Exception as error:
        tolerate(error, "the span of a consumed record")
        return None


def _of(tracer: Tracer, record: ConsumedRecord, group_id: str) -> AbstractContextManager[Span]:
    from opentelemetry.trace import SpanKind, get_current_span

    attributes = traces.attributes_of(
        "process",
        "process",
        record.topic,
        key=record.key,
        is_tombstone=record.value is None,
        partition=record.partition,
    )
    attributes.update({traces.OFFSET: record.offset, traces.CONSUMER_GROUP: group_id})
    is_inside = get_current_span().get_span_context().is_valid
    return tracer.start_as_current_span(
        f"process {record.topic}",
        None if is_inside else traces.context_in(record.headers),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=traces.links_to([record.headers]),
    )


@guarded
def _note_error(span: Span, error: Exception) -> None:
    span.set_attribute(traces.ERROR_TYPE, type(error).__qualname__)


@guarded
def _end(opened: ExitStack, error: BaseException | None) -> None:
    """End the span, which may raise the handler's own error once more; that is no failure of telemetry."""
    try:
        opened.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)
    except BaseException as raised:
        if raised is not error:
            raise
