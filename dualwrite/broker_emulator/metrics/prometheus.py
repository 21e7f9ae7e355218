"""Metrics in Prometheus' text exposition format, version 0.0.4, written by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dualwrite.broker_emulator.metrics.snapshot import (
    ApiMetrics,
    Durations,
    MetricsSnapshot,
    NodeMetrics,
    PartitionMetrics,
)

if TYPE_CHECKING:  # it takes a tenth of a second to load, for which only readers of the metrics should wait
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_Labels = Mapping[str, str | int]
_Samples = Iterable[tuple[_Labels, float]]


class _Collected:
    """The metrics of one snapshot, as a collector of prometheus-client."""

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for family in (_requests, _nodes, _partitions):
            yield from family(self._snapshot)


def render_prometheus(snapshot: MetricsSnapshot) -> str:
    """Return the text of a snapshot."""
    from prometheus_client import generate_latest

    return generate_latest(_Collected(snapshot)).decode()


_REQUEST_METRICS: Final = (
    ("kafka_requests_total", "Requests that were served.", "requests"),
    (
        "kafka_request_throttle_milliseconds_total",
        "For how long clients were throttled by quotas.",
        "throttle_ms",
    ),
)
_NODE_METRICS: Final = (
    ("kafka_bytes_in_total", "Bytes of requests.", "bytes_in"),
    ("kafka_bytes_out_total", "Bytes of responses.", "bytes_out"),
    ("kafka_connections", "Open connections.", "connections"),
    ("kafka_connections_made_total", "Connections that were accepted.", "connections_made"),
    ("kafka_leader_count", "Partitions that the node leads.", "leaders"),
    (
        "kafka_verification_failures_total",
        "VerificationFailureRate of KIP-890 as a count: partitions that were not verified.",
        "verification_failures",
    ),
    (
        "kafka_active_transaction_open_time_max_milliseconds",
        "active-transaction-open-time-max of KIP-939: how long the oldest open transaction has been open.",
        "active_transaction_open_time_max_ms",
    ),
    (
        "kafka_partitions_with_late_transactions",
        "PartitionsWithLateTransactionsCount of KIP-664: led partitions with a transaction idle for too long.",
        "late_transactions",
    ),
)
_PARTITION_METRICS: Final = (
    ("kafka_log_start_offset", "Offset of the first record kept.", "log_start_offset"),
    ("kafka_log_end_offset", "Offset that the next record gets.", "log_end_offset"),
    ("kafka_high_watermark", "Records below it are replicated.", "high_watermark"),
    ("kafka_last_stable_offset", "Records below it are in no open transaction.", "last_stable_offset"),
    ("kafka_log_size_bytes", "Bytes of all record batches.", "size_bytes"),
    ("kafka_partition_leader", "The leader's node id; -1 for none.", "leader_id"),
    ("kafka_partition_replicas", "Nodes with a replica.", "replicas"),
    ("kafka_partition_in_sync_replicas", "Living nodes with a complete replica.", "in_sync_replicas"),
    ("kafka_messages_in_total", "Records that were appended.", "messages_in"),
    ("kafka_record_bytes_in_total", "Bytes of record batches that were appended.", "bytes_in"),
    ("kafka_record_bytes_out_total", "Bytes of record batches that were fetched.", "bytes_out"),
)
"""Of each: name, help, and the field of `ApiMetrics`, `NodeMetrics` or `PartitionMetrics`."""


def _requests(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    rows: list[tuple[_Labels, ApiMetrics]] = [({"node": row.node_id, "api": row.api}, row) for row in snapshot.apis]
    yield from _of_each(rows, _REQUEST_METRICS)
    yield from _metric(
        "kafka_request_errors_total",
        "Error codes in responses.",
        (({**labels, "error": error}, count) for labels, row in rows for error, count in row.errors.items()),
    )
    yield from _histogram(
        "kafka_request_duration_milliseconds",
        "From the decoded request to its response, waiting times included.",
        ((labels, row.durations) for labels, row in rows),
    )


def _nodes(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    rows: list[tuple[_Labels, NodeMetrics]] = [({"node": row.node_id}, row) for row in snapshot.nodes]
    yield from _of_each(rows, _NODE_METRICS)
    yield from _metric(
        "kafka_active_controller_count",
        "1 at the node that acts as controller.",
        ((labels, int(row.node_id == snapshot.controller_id)) for labels, row in rows),
    )
    yield from _histogram(
        "kafka_verification_time_milliseconds",
        "VerificationTimeMs of KIP-890: how long a transaction coordinator took to verify or to add partitions.",
        ((labels, row.verifications) for labels, row in rows),
    )
    yield from _metric(
        "kafka_transactional_ids",
        "Transactional ids by the state of their transaction.",
        (
            ({**labels, "state": state}, count)
            for labels, row in rows
            for state, count in sorted(row.transactions.items())
        ),
    )
    yield from _metric(
        "kafka_groups",
        "Groups by type and state.",
        (
            ({**labels, "type": kind, "state": state}, count)
            for labels, row in rows
            for (kind, state), count in sorted(row.groups.items())
        ),
    )


def _partitions(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    rows: list[tuple[_Labels, PartitionMetrics]] = [
        ({"topic": row.topic, "partition": row.partition}, row) for row in snapshot.partitions
    ]
    yield from _of_each(rows, _PARTITION_METRICS)


def _of_each(rows: Sequence[tuple[_Labels, object]], metrics: Iterable[tuple[str, str, str]]) -> Iterator[Metric]:
    for name, meaning, field in metrics:
        yield from _metric(name, meaning, ((labels, getattr(row, field)) for labels, row in rows))


def _metric(name: str, meaning: str, samples: _Samples) -> Iterator[Metric]:
    from prometheus_client.metrics_core import Metric

    kind = "counter" if name.endswith("_total") else "gauge"
    metric = Metric(name.removesuffix("_total"), meaning, kind)
    for labels, value in samples:
        metric.add_sample(name, _texts(labels), value)
    yield metric


def _histogram(name: str, meaning: str, samples: Iterable[tuple[_Labels, Durations]]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import Metric

    metric = Metric(name, meaning, "histogram")
    for labels, durations in samples:
        texts = _texts(labels)
        for bound, count in durations.up_to:
            metric.add_sample(f"{name}_bucket", {**texts, "le": str(bound)}, count)
        metric.add_sample(f"{name}_bucket", {**texts, "le": "+Inf"}, durations.times)
        metric.add_sample(f"{name}_sum", texts, durations.total_ms)
        metric.add_sample(f"{name}_count", texts, durations.times)
    yield metric


def _texts(labels: _Labels) -> dict[str, str]:
    return {name: str(value) for name, value in labels.items()}
