"""The metrics of a producer: counted by batch, request and call, never by record, so that they cost next to nothing."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from dualwrite.client import messages as m
from dualwrite.client.transactions.states import Event
from dualwrite.errors import KafkaError

CALL_METRICS: Final[dict[str, str]] = {
    "init_transactions()": "txn-init-time-ns-total",
    "begin_transaction()": "txn-begin-time-ns-total",
    "send_offsets_to_transaction()": "txn-send-offsets-time-ns-total",
    "prepare_transaction()": "txn-prepare-time-ns-total",
    "commit_transaction()": "txn-commit-time-ns-total",
    "abort_transaction()": "txn-abort-time-ns-total",
    "complete_transaction()": "txn-complete-time-ns-total",
    "flush()": "flush-time-ns-total",
}
"""Metrics of the time that callers waited (KIP-761), by the beginning of the operation's name."""


class Metrics:
    """Totals since the producer was created. Updated under the producer's lock or in its loop; read by any thread."""

    __slots__ = (
        "_calls_ns",
        "batch_bytes",
        "batches",
        "failed_records",
        "latency_max_ms",
        "latency_ms",
        "queued_max_ms",
        "queued_ms",
        "requests",
        "resent_records",
        "responses",
        "sent_records",
    )

    def __init__(self) -> None:
        self.sent_records = 0
        self.failed_records = 0
        self.resent_records = 0
        self.batches = 0
        self.batch_bytes = 0
        self.queued_ms = 0.0
        self.queued_max_ms = 0.0
        self.requests = 0
        self.responses = 0
        self.latency_ms = 0.0
        self.latency_max_ms = 0.0
        self._calls_ns = dict.fromkeys(CALL_METRICS.values(), 0)

    def built(self, size: int, queued_ms: float) -> None:
        """Count a batch that is sent for the first time, after it was queued for `queued_ms`."""
        self.batches += 1
        self.batch_bytes += size
        self.queued_ms += queued_ms
        self.queued_max_ms = max(self.queued_max_ms, queued_ms)

    def answered(self, latency_ms: float) -> None:
        """Count a Produce response."""
        self.responses += 1
        self.latency_ms += latency_ms
        self.latency_max_ms = max(self.latency_max_ms, latency_ms)

    def waited(self, call: str, time_ns: int) -> None:
        """Add the time that a caller waited for a call."""
        name = CALL_METRICS.get(call.partition(")")[0] + ")")
        if name is not None:
            self._calls_ns[name] += time_ns

    def snapshot(self, *, buffer_total: int, buffer_used: int, in_flight: int) -> dict[str, float]:
        """Return all metrics, by Kafka's names."""
        batches, responses = max(self.batches, 1), max(self.responses, 1)
        return {
            "record-send-total": self.sent_records,
            "record-error-total": self.failed_records,
            "record-retry-total": self.resent_records,
            "records-per-request-avg": self.sent_records / max(self.requests, 1),
            "record-queue-time-avg": self.queued_ms / batches,
            "record-queue-time-max": self.queued_max_ms,
            "batch-total": self.batches,
            "batch-size-avg": self.batch_bytes / batches,
            "request-total": self.requests,
            "response-total": self.responses,
            "request-latency-avg": self.latency_ms / responses,
            "request-latency-max": self.latency_max_ms,
            "requests-in-flight": in_flight,
            "buffer-total-bytes": buffer_total,
            "buffer-available-bytes": buffer_total - buffer_used,
            **self._calls_ns,
        }


class Outgoing(NamedTuple):
    """A request and the id of the node to send it to (`messages.ANY_NODE`: any)."""

    request: m.Request
    node_id: int


class ProducerPort(Protocol):
    """The owner of the producer id and epoch, without I/O. Called under the producer's lock; times in milliseconds."""

    producer_id: int
    producer_epoch: int

    @property
    def may_produce(self) -> bool:
        """Whether batches may be sent now."""

    @property
    def drops_unsent(self) -> bool:
        """Whether unsent records are never going to be sent."""

    @property
    def error(self) -> KafkaError | None:
        """Why the transaction or the producer failed, while it is failed."""

    @property
    def retry_at_ms(self) -> float | None:
        """When `poll()` must be called again even if nothing happens; None if it need not be."""

    @property
    def transaction_version(self) -> int:
        """The transaction.version by which batches are sent (KIP-890); without transactions, the newest."""

    @property
    def wants_partitions(self) -> bool:
        """Whether partitions must be added to the transaction before they may be written to."""

    def may_produce_to(self, topic: str, partition: int) -> bool:
        """Return whether the partition is in the transaction. If not, `poll()` returns the request that adds it."""

    def check_send(self) -> None:
        """Raise if no record may be sent now."""

    def accepted(self) -> None:
        """Note that a record was accepted from the application."""

    def produced(self) -> None:
        """Note that a batch is on its way."""

    def stored(self, topic: str, partition: int, base_offset: int, record_count: int) -> None:
        """Note where a batch is stored; -1: no broker knows."""

    def produce_unanswered(self) -> None:
        """Note that a batch got no response, and is sent again."""

    def poll(self, now_ms: float, *, delivered: bool, in_flight: bool) -> Outgoing | None:
        """Return the next request, if there is one to send now."""

    def on_response(self, answer: m.Response, now_ms: float) -> None:
        """Handle the response to the request in flight."""

    def on_no_response(self, now_ms: float, *, sent: bool) -> None:
        """Handle a connection lost with the request in flight, or (not `sent`) the lack of one to send it on."""

    def on_unsupported(self, error: KafkaError) -> None:
        """Fail for good: the broker does not offer the version that the request in flight needs."""

    def consequence(self, event: Event) -> str:
        """Return what a failed batch means for the producer, as the end of a sentence; may be empty."""

    def fail_abortable(self, error: KafkaError) -> None:
        """Handle the loss of a batch."""

    def fail_fatal(self, error: KafkaError) -> None:
        """Fail the producer for good."""
