"""Trace context in the headers of records, and spans of creating and sending them, through OpenTelemetry.

Names, kinds and attributes are those of OpenTelemetry's semantic conventions for messaging and for Kafka. A record that
leaves by itself has a span `send`, whose context is in its headers. A record that waits in a dual write has a span
`create`, and the span `send` of the whole dual write has links to those (`recipes/core/telemetry.py`).

Values that the global propagator injects become headers: `traceparent`, `tracestate` and `baggage` by default. A record
carries a context already keeps it and gets no other, because it was created where that context was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dualwrite.errors import ConfigError
from dualwrite.guarded import guarded, tolerate

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Tracer

    from dualwrite.client.records.batches import Header
    from dualwrite.client.records.delivery import OnDelivery
    from dualwrite.client.records.record import RecordMetadata
    from dualwrite.config import ProducerConfig
    from dualwrite.errors import KafkaError

SCOPE: Final = "dualwrite"

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
CLIENT_ID: Final = "messaging.client.id"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
KEY: Final = "messaging.kafka.message.key"
TOMBSTONE: Final = "messaging.kafka.message.tombstone"
OFFSET: Final = "messaging.kafka.offset"
ERROR_TYPE: Final = "error.type"

_BAGGAGE: Final = "baggage"
_MOST_LINKS: Final = 128
"""The SDK's default limit: it drops links beyond that."""


@cache
def tracer() -> Tracer | None:
    """Return the tracer of the application's provider, even one set later; None without OpenTelemetry's API."""
    try:
        from opentelemetry.trace import get_tracer
    except ImportError:
        return None
    try:
        return get_tracer(SCOPE)
    except Exception as error:
        tolerate(error, "the provider of the application")
        return None


def is_provided(made: Any) -> bool:
    """Return whether a tracer or an instrument is backed by a provider of the application.

    Without one, OpenTelemetry's API gives proxies, each use of which costs several calls and does nothing. It has no
    public way to query them; `tests/unit/test_opentelemetry_internals.py` fails if the private names used here change.
    """
    if hasattr(made, "_real_instrument"):
        return made._real_instrument is not None  # noqa: SLF001
    if hasattr(made, "_real_tracer") and made._real_tracer is None:  # noqa: SLF001
        return sys.modules["opentelemetry.trace"]._TRACER_PROVIDER is not None  # noqa: SLF001
    return True


class RecordTracer:
    """Puts the trace context into the headers of one producer's records."""

    def __init__(self, found: Tracer, client_id: str) -> None:
        from opentelemetry.context import get_current

        self._tracer = found
        self._context: Final = get_current
        self.client_id: Final = client_id

    @guarded
    def create(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int | None, headers: list[Header]
    ) -> None:
        """Trace the creation of a record that is sent later, with others; add its context to `headers`."""
        if not (is_provided(self._tracer) or self._context()) or carries_context(headers):
            return  # there is nothing to trace, or it was traced where the context is from
        span = self._start("create", "create", topic, key, value, partition, headers)
        span.end()

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int | None, headers: list[Header]
    ) -> Span:
        """Begin the span of a record that is sent by itself; add its context to `headers` unless they carry one."""
        from opentelemetry.trace import INVALID_SPAN

        try:
            return self._start("send", "send", topic, key, value, partition, headers)
        except Exception as error:
            tolerate(error, "the span of a record")
            return INVALID_SPAN

    def _start(
        self,
        name: str,
        kind: str,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: list[Header],
    ) -> Span:
        from opentelemetry.trace import SpanKind, set_span_in_context

        attributes = attributes_of(name, kind, topic, key=key, is_tombstone=value is None, partition=partition)
        attributes[CLIENT_ID] = self.client_id
        is_created = carries_context(headers)
        links = links_to([headers]) if is_created else ()
        span_kind = SpanKind.CLIENT if is_created else SpanKind.PRODUCER
        span = self._tracer.start_span(f"{name} {topic}", kind=span_kind, attributes=attributes, links=links)
        if not is_created:
            _inject(set_span_in_context(span), headers)
        return span

    def send_batch(self, topic: str, records: int) -> Span:
        """Begin the span of many records of a topic that are sent together."""
        from opentelemetry.trace import INVALID_SPAN, SpanKind

        attributes = attributes_of("send", "send", topic)
        attributes.update({CLIENT_ID: self.client_id, MESSAGE_COUNT: records})
        try:
            return self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        except Exception as error:
            tolerate(error, "the span of a batch")
            return INVALID_SPAN

    @staticmethod
    @guarded
    def join_batch(span: Span, headers: list[Header]) -> None:
        """Add the context of the batch to the headers of one of its records, unless they carry one."""
        from opentelemetry.trace import set_span_in_context

        if carries_context(headers):
            for link in links_to([headers]):
                span.add_link(link.context)
        else:
            _inject(set_span_in_context(span), headers)


def record_tracer(config: ProducerConfig) -> RecordTracer | None:
    """Return the tracer of a producer's records; None if the settings ask for none.

    Raises ConfigError if they ask for one and OpenTelemetry's API is not installed.
    """
    if not config.trace_records:
        return None
    found = tracer()
    if found is None:
        raise ConfigError(
            "trace.records needs OpenTelemetry's API, which is not installed; nothing was sent: "
            "pip install 'dualwrite[otel]', or leave the setting out"
        )
    return RecordTracer(found, config.client_id)


class SpanEnd:
    """A delivery callback that ends the span of a record, and calls the application's callback, if there is one."""

    __slots__ = ("_callback", "_span")

    def __init__(self, span: Span, callback: OnDelivery | None) -> None:
        self._span = span
        self._callback = callback

    def __call__(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        if error is not None:
            fail(self._span, error)
        elif metadata is not None:
            self._end(metadata)
        if self._callback is not None:
            self._callback(metadata, error)

    @guarded
    def _end(self, metadata: RecordMetadata) -> None:
        self._span.set_attribute(PARTITION, str(metadata.partition))
        if metadata.offset >= 0:
            self._span.set_attribute(OFFSET, metadata.offset)
        self._span.end()

    def not_sent(self, error: BaseException) -> None:
        """End the span of a record that was not accepted, whose callback is never called."""
        fail(self._span, error)


def end_unsent(on_delivery: OnDelivery | None, error: BaseException) -> None:
    """End the span of a record that was not accepted, if it has one."""
    if isinstance(on_delivery, SpanEnd):
        on_delivery.not_sent(error)


@guarded
def end(span: Span) -> None:
    """End a span without an error."""
    span.end()


@guarded
def fail(span: Span, error: BaseException) -> None:
    """End a span with an error."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute(ERROR_TYPE, type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def attributes_of(
    name: str,
    kind: str,
    topic: str,
    *,
    key: bytes | None = None,
    is_tombstone: bool = False,
    partition: int | None = None,
) -> dict[str, str | int | bool]:
    """Return the attributes that every span about one record or one topic has."""
    attributes: dict[str, str | int | bool] = {
        SYSTEM: "kafka",
        OPERATION_NAME: name,
        OPERATION_TYPE: kind,
        DESTINATION: topic,
    }
    if key is not None and (text := _text(key)) is not None:
        attributes[KEY] = text
    if is_tombstone:
        attributes[TOMBSTONE] = True
    if partition is not None:
        attributes[PARTITION] = str(partition)
    return attributes


def _text(key: bytes) -> str | None:
    """Return a key as text; None for bytes that are not UTF-8, for which the conventions want no attribute."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


# ---- headers --------------------------------------------------------------------------------------------------------


def carries_context(headers: Sequence[Header]) -> bool:
    """Return whether the headers carry a trace context, by the propagator's names; baggage alone does not count."""
    if not headers:
        return False
    from opentelemetry.propagate import get_global_textmap

    fields = get_global_textmap().fields
    return any(name in fields and name != _BAGGAGE for name, _ in headers)


def _inject(context: Context, headers: list[Header]) -> None:
    from opentelemetry.propagate import inject

    carrier: dict[str, str] = {}
    inject(carrier, context)
    if carrier:
        names = {name for name, _ in headers}  # the application's own baggage
        headers += [(name, value.encode()) for name, value in carrier.items() if name not in names]


def context_in(headers: Sequence[Header]) -> Context:
    """Return the context, with its baggage, that the headers carry; an empty one if they carry none."""
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract

    return extract(_texts(headers), Context())


def _texts(headers: Sequence[Header]) -> dict[str, Any]:
    """Return headers as the propagators read them; a name that occurs twice has all its values."""
    found: dict[str, Any] = {}
    for name, value in headers:
        if value is not None:
            found.setdefault(name, []).append(value.decode(errors="replace"))
    return found


def links_to(headers_of_records: Iterable[Sequence[Header]]) -> list[Link]:
    """Return links to where records were created, by their headers, of as many as a span keeps."""
    from opentelemetry.trace import Link

    contexts = map(_span_context, islice(headers_of_records, _MOST_LINKS))
    return [Link(context) for context in contexts if context.is_valid]


def _span_context(headers: Sequence[Header]) -> SpanContext:
    from opentelemetry.trace import get_current_span

    return get_current_span(context_in(headers)).get_span_context()
