"""Gathering the metrics of a cluster. It looks at every partition, transactional id and group once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup
from dualwrite.broker_emulator.metrics.counters import BOUNDS_MS, Histogram
from dualwrite.broker_emulator.metrics.snapshot import (
    ApiMetrics,
    Durations,
    MetricsSnapshot,
    NodeMetrics,
    PartitionMetrics,
)
from dualwrite.broker_emulator.transactions.states import TransactionState

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Cluster, ClusterNode
    from dualwrite.broker_emulator.cluster.topics import Partition

LATE_TRANSACTION_BUFFER_MS = 5 * 60 * 1000
"""How much longer than the longest timeout a transaction may rest before it counts as late, as in Kafka."""

_NS_PER_MS = 1_000_000


def collect(cluster: Cluster) -> MetricsSnapshot:
    """The metrics as they are now. Must run in the emulator's loop."""
    nodes = cluster.living_nodes
    living = {node.node_id for node in nodes}
    partitions = list(cluster.partitions())
    led: dict[int, list[Partition]] = {}
    for partition in partitions:
        led.setdefault(partition.leader_id, []).append(partition)
    return MetricsSnapshot(
        now_ms=cluster.clock.now_ms(),
        controller_id=cluster.controller_id,
        nodes=tuple(_node(cluster, node, led.get(node.node_id, ())) for node in nodes),
        apis=tuple(row for node in nodes for row in _apis(node)),
        partitions=tuple(_partition(partition, living) for partition in partitions),
    )


def _node(cluster: Cluster, node: ClusterNode, led: Sequence[Partition]) -> NodeMetrics:
    now_ms, counters = cluster.clock.now_ms(), node.counters
    late_before_ms = now_ms - cluster.config.transaction_max_timeout_ms - LATE_TRANSACTION_BUFFER_MS
    states: Counter[str] = Counter()
    longest_open_ms = 0
    for metadata in node.transactions.known_ids():
        states[metadata.state.label] += 1
        if metadata.state is TransactionState.ONGOING:
            longest_open_ms = max(longest_open_ms, now_ms - metadata.start_timestamp_ms)
    return NodeMetrics(
        node_id=node.node_id,
        bytes_in=counters.bytes_in,
        bytes_out=counters.bytes_out,
        connections=len(node.connections),
        connections_made=counters.connections_made,
        leaders=len(led),
        verifications=_durations(counters.verifications),
        verification_failures=counters.verification_failures,
        late_transactions=sum(_is_late(partition, late_before_ms) for partition in led),
        active_transaction_open_time_max_ms=longest_open_ms,
        transactions=dict(states),
        groups=dict(_groups(node)),
    )


def _is_late(partition: Partition, late_before_ms: int) -> bool:
    appended_ms = partition.log.oldest_transaction_append_ms
    return appended_ms is not None and appended_ms < late_before_ms


def _groups(node: ClusterNode) -> Counter[tuple[str, str]]:
    return Counter(
        ("consumer" if isinstance(group, ConsumerGroup) else "classic", str(group.state))
        for shard in node.groups.shards()
        for group in shard.groups.values()
    )


def _apis(node: ClusterNode) -> Iterator[ApiMetrics]:
    for key, requests in sorted(node.counters.by_api.items()):
        yield ApiMetrics(
            node_id=node.node_id,
            api=api_key_map[key].title().replace("_", ""),
            requests=sum(requests.duration.buckets),
            durations=_durations(requests.duration),
            errors={_error_name(code): count for code, count in sorted(requests.errors.items())},
            throttle_ms=requests.throttle_ms,
        )


def _error_name(code: int) -> str:
    return ErrorCode(code).name.upper()


def _durations(histogram: Histogram) -> Durations:
    counts = tuple(accumulate(histogram.buckets))
    return Durations(
        times=counts[-1],
        total_ms=histogram.total_ns / _NS_PER_MS,
        longest_ms=histogram.longest_ns / _NS_PER_MS,
        up_to=tuple(zip(BOUNDS_MS, counts, strict=False)),
    )


def _partition(partition: Partition, living: set[int]) -> PartitionMetrics:
    log = partition.log
    return PartitionMetrics(
        topic=partition.topic.name,
        partition=partition.index,
        leader_id=partition.leader_id,
        in_sync_replicas=sum(node_id in living for node_id in partition.complete_replicas),
        replicas=len(partition.replicas),
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        size_bytes=log.size_bytes,
        messages_in=log.traffic.messages_in,
        bytes_in=log.traffic.bytes_in,
        bytes_out=log.traffic.bytes_out,
    )
