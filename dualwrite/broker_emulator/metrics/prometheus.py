"""Metrics in Prometheus' text exposition format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dualwrite.broker_emulator.metrics.snapshot import ApiMetrics, Durations, MetricsSnapshot, PartitionMetrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_Labels = Mapping[str, str | int]
_Samples = Iterable[tuple[_Labels, float]]


def render_prometheus(snapshot: MetricsSnapshot) -> str:
    """Return the text of a snapshot."""
    lines: list[str] = []
    for family in (_requests, _nodes, _verifications, _coordinators, _partitions):
        lines += family(snapshot)
    return "\n".join(lines) + "\n"


def _requests(snapshot: MetricsSnapshot) -> Iterator[str]:
    rows: list[tuple[_Labels, ApiMetrics]] = [({"node": row.node_id, "api": row.api}, row) for row in snapshot.apis]
    yield from _metric(
        "kafka_requests_total",
        "counter",
        "Requests that were served.",
        ((labels, row.requests) for labels, row in rows),
    )
    yield from _metric(
        "kafka_request_errors_total",
        "counter",
        "Error codes in responses.",
        (({**labels, "error": error}, count) for labels, row in rows for error, count in row.errors.items()),
    )
    yield from _histogram(
        "kafka_request_duration_milliseconds",
        "From the decoded request to its response, waiting times included.",
        ((labels, row.durations) for labels, row in rows),
    )
    yield from _metric(
        "kafka_request_throttle_milliseconds_total",
        "counter",
        "For how long clients were throttled by quotas.",
        ((labels, row.throttle_ms) for labels, row in rows),
    )


def _nodes(snapshot: MetricsSnapshot) -> Iterator[str]:
    rows = [({"node": row.node_id}, row) for row in snapshot.nodes]
    yield from _metric(
        "kafka_bytes_in_total", "counter", "Bytes of requests.", ((labels, row.bytes_in) for labels, row in rows)
    )
    yield from _metric(
        "kafka_bytes_out_total", "counter", "Bytes of responses.", ((labels, row.bytes_out) for labels, row in rows)
    )
    yield from _metric(
        "kafka_connections", "gauge", "Open connections.", ((labels, row.connections) for labels, row in rows)
    )
    yield from _metric(
        "kafka_connections_made_total",
        "counter",
        "Connections that were accepted.",
        ((labels, row.connections_made) for labels, row in rows),
    )
    yield from _metric(
        "kafka_leader_count",
        "gauge",
        "Partitions that the node leads.",
        ((labels, row.leaders) for labels, row in rows),
    )
    yield from _metric(
        "kafka_active_controller_count",
        "gauge",
        "1 at the node that acts as controller.",
        ((labels, int(row.node_id == snapshot.controller_id)) for labels, row in rows),
    )


def _verifications(snapshot: MetricsSnapshot) -> Iterator[str]:
    yield from _histogram(
        "kafka_verification_time_milliseconds",
        "VerificationTimeMs of KIP-890: how long a transaction coordinator took to verify or to add partitions.",
        (({"node": row.node_id}, row.verifications) for row in snapshot.nodes),
    )
    yield from _metric(
        "kafka_verification_failures_total",
        "counter",
        "VerificationFailureRate of KIP-890 as a count: partitions that were not verified.",
        (({"node": row.node_id}, row.verification_failures) for row in snapshot.nodes),
    )


def _coordinators(snapshot: MetricsSnapshot) -> Iterator[str]:
    yield from _metric(
        "kafka_active_transaction_open_time_max_milliseconds",
        "gauge",
        "active-transaction-open-time-max of KIP-939: how long the oldest open transaction has been open.",
        (({"node": row.node_id}, row.active_transaction_open_time_max_ms) for row in snapshot.nodes),
    )
    yield from _metric(
        "kafka_partitions_with_late_transactions",
        "gauge",
        "PartitionsWithLateTransactionsCount of KIP-664: led partitions with a transaction idle for too long.",
        (({"node": row.node_id}, row.late_transactions) for row in snapshot.nodes),
    )
    yield from _metric(
        "kafka_transactional_ids",
        "gauge",
        "Transactional ids by the state of their transaction.",
        (
            ({"node": row.node_id, "state": state}, count)
            for row in snapshot.nodes
            for state, count in sorted(row.transactions.items())
        ),
    )
    yield from _metric(
        "kafka_groups",
        "gauge",
        "Groups by type and state.",
        (
            ({"node": row.node_id, "type": kind, "state": state}, count)
            for row in snapshot.nodes
            for (kind, state), count in sorted(row.groups.items())
        ),
    )


_PARTITION_METRICS: Final = (
    ("kafka_log_start_offset", "gauge", "Offset of the first record kept.", "log_start_offset"),
    ("kafka_log_end_offset", "gauge", "Offset that the next record gets.", "log_end_offset"),
    ("kafka_high_watermark", "gauge", "Records below it are replicated.", "high_watermark"),
    ("kafka_last_stable_offset", "gauge", "Records below it are in no open transaction.", "last_stable_offset"),
    ("kafka_log_size_bytes", "gauge", "Bytes of all record batches.", "size_bytes"),
    ("kafka_partition_leader", "gauge", "The leader's node id; -1 for none.", "leader_id"),
    ("kafka_partition_replicas", "gauge", "Nodes with a replica.", "replicas"),
    ("kafka_partition_in_sync_replicas", "gauge", "Living nodes with a complete replica.", "in_sync_replicas"),
    ("kafka_messages_in_total", "counter", "Records that were appended.", "messages_in"),
    ("kafka_record_bytes_in_total", "counter", "Bytes of record batches that were appended.", "bytes_in"),
    ("kafka_record_bytes_out_total", "counter", "Bytes of record batches that were fetched.", "bytes_out"),
)
"""Name, type, help, and the field of `PartitionMetrics`."""


def _partitions(snapshot: MetricsSnapshot) -> Iterator[str]:
    rows = [(_text_of(_name(row)), row) for row in snapshot.partitions]
    for name, kind, meaning, field in _PARTITION_METRICS:
        yield from _head(name, kind, meaning)
        for labels, row in rows:
            yield f"{name}{labels} {getattr(row, field)}"


def _name(row: PartitionMetrics) -> _Labels:
    return {"topic": row.topic, "partition": row.partition}


def _metric(name: str, kind: str, meaning: str, samples: _Samples) -> Iterator[str]:
    yield from _head(name, kind, meaning)
    for labels, value in samples:
        yield f"{name}{_text_of(labels)} {value}"


def _histogram(name: str, meaning: str, samples: Iterable[tuple[_Labels, Durations]]) -> Iterator[str]:
    yield from _head(name, "histogram", meaning)
    for labels, durations in samples:
        for bound, count in durations.up_to:
            yield f"{name}_bucket{_text_of({**labels, 'le': bound})} {count}"
        yield f"{name}_bucket{_text_of({**labels, 'le': '+Inf'})} {durations.times}"
        yield f"{name}_sum{_text_of(labels)} {durations.total_ms}"
        yield f"{name}_count{_text_of(labels)} {durations.times}"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _text_of(labels: Mapping[str, str | int | float]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
