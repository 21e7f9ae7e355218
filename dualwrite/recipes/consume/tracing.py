"""A span `process` for each consumed record, with a link to where the record was created (OpenTelemetry).

Its parent is the caller's span, or without one where the record was created: then what the handler sends continues that
trace. Names and attributes are those of OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from dualwrite.client.records import traces
from dualwrite.recipes.consume.consumers import ConsumedRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def processing(record: ConsumedRecord, group_id: str) -> AbstractContextManager[None]:
    """Return a context manager that is the span of one record; it does nothing without OpenTelemetry's API."""
    tracer = traces.tracer()
    return nullcontext() if tracer is None else _span(tracer, record, group_id)


@contextmanager
def _span(tracer: Tracer, record: ConsumedRecord, group_id: str) -> Iterator[None]:
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
    with tracer.start_as_current_span(
        f"process {record.topic}",
        None if is_inside else traces.context_in(record.headers),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=traces.links_to([record.headers]),
    ) as span:
        try:
            yield
        except Exception as error:
            span.set_attribute(traces.ERROR_TYPE, type(error).__qualname__)
            raise
