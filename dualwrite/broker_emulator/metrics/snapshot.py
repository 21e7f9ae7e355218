"""The emulator's metrics at one moment, and their collection.

Times are in milliseconds, sizes in bytes, counts since the node's start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from dualwrite.broker_emulator.cluster.counters import BOUNDS_MS, Histogram
from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup
from dualwrite.broker_emulator.slices import Steps, at_once
from dualwrite.broker_emulator.transactions.states import TransactionState

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Cluster, ClusterNode
    from dualwrite.broker_emulator.topics.topics import Partition


class Durations(NamedTuple):
    """Durations of operations."""

    times: int
    total_ms: float
    longest_ms: float
    up_to: tuple[tuple[float, int], ...]
    """Upper bounds in milliseconds, each with the number of operations that took no longer."""


class ApiMetrics(NamedTuple):
    """The requests of one API at one node."""

    node_id: int
    api: str
    """Kafka's name, such as `EndTxn`."""
    requests: int
    durations: Durations
    """From the decoded request to the response, including waiting times."""
    errors: Mapping[str, int]
    """The number of responses with each error, by Kafka's names (`INVALID_TXN_STATE`)."""
    throttle_ms: int
    """The total time for which quotas throttled clients."""


class NodeMetrics(NamedTuple):
    """One living node."""

    node_id: int
    bytes_in: int
    bytes_out: int
    connections: int
    """Connections open now."""
    connections_made: int
    leaders: int
    """The number of partitions that the node leads."""
    verifications: Durations
    """VerificationTimeMs of KIP-890: the time that coordinators took to verify or to add partitions."""
    verification_failures: int
    """VerificationFailureRate of KIP-890, as a count: partitions that were not verified."""
    late_transactions: int
    """PartitionsWithLateTransactionsCount of KIP-664: led partitions with a transaction that has had no new batch for
    five minutes longer than the longest timeout that a client may request."""
    active_transaction_open_time_max_ms: int
    """active-transaction-open-time-max of KIP-939: the age of the oldest open transaction of its ids."""
    transactions: Mapping[str, int]
    """Transactional ids that it coordinates, by state (`Ongoing`, `CompleteCommit`, ...)."""
    groups: Mapping[tuple[str, str], int]
    """Groups that it coordinates, by type (`classic`, `consumer`) and state (`Stable`, ...)."""


class PartitionMetrics(NamedTuple):
    """One partition."""

    topic: str
    partition: int
    leader_id: int
    """-1 while there is no leader."""
    in_sync_replicas: int
    replicas: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    size_bytes: int
    messages_in: int
    bytes_in: int
    bytes_out: int


class MetricsSnapshot(NamedTuple):
    """All metrics at one moment."""

    now_ms: int
    """The current time of the broker's clock."""
    controller_id: int
    """-1 while no node is alive."""
    nodes: tuple[NodeMetrics, ...]
    apis: tuple[ApiMetrics, ...]
    partitions: tuple[PartitionMetrics, ...]
    """Including partitions of internal topics."""

    def api(self, name: str, node_id: int | None = None) -> ApiMetrics:
        """Return the requests of one API at one node, or (None) at the first node with any. Raises KeyError."""
        for row in self.apis:
            if row.api == name and node_id in (None, row.node_id):
                return row
        raise KeyError(f"no node has served {name}, only {', '.join(sorted({row.api for row in self.apis}))}")

    def partition(self, topic: str, index: int = 0) -> PartitionMetrics:
        """Return the metrics of one partition. Raises KeyError."""
        for row in self.partitions:
            if (row.topic, row.partition) == (topic, index):
                return row
        raise KeyError(f"{topic}-{index}")


LATE_TRANSACTION_BUFFER_MS = 5 * 60 * 1000
"""The idle time beyond the longest timeout after which a transaction counts as late, as in Kafka."""

_NS_PER_MS = 1_000_000


def collect(cluster: Cluster) -> MetricsSnapshot:
    """Collect the current metrics. Must run in the emulator's loop."""
    return at_once(collection(cluster))


def collection(cluster: Cluster) -> Steps[MetricsSnapshot]:
    """Collect the metrics, one partition per step. Reads every partition, transactional id and group once."""
    nodes = cluster.living_nodes
    living = {node.node_id for node in nodes}
    partitions = list(cluster.partitions())
    led: dict[int, list[Partition]] = {}
    for partition in partitions:
        led.setdefault(partition.leader_id, []).append(partition)
    yield
    rows = []
    for partition in partitions:
        rows.append(_partition(partition, living))
        yield
    return MetricsSnapshot(
        now_ms=cluster.clock.now_ms(),
        controller_id=cluster.controller_id,
        nodes=tuple(_node(cluster, node, led.get(node.node_id, ())) for node in nodes),
        apis=tuple(row for node in nodes for row in _apis(node)),
        partitions=tuple(rows),
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
