"""The metrics of a producer: counted by batch, request and call, never by record, so that they cost next to nothing."""

from __future__ import annotations

from typing import Final

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
