"""The emulator's metrics at one moment. Times are in milliseconds, sizes in bytes, counts since the node's start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Durations(NamedTuple):
    """How long things took."""

    times: int
    total_ms: float
    longest_ms: float
    up_to: tuple[tuple[float, int], ...]
    """Upper bounds in milliseconds, each with how many took no longer."""


class ApiMetrics(NamedTuple):
    """The requests of one API at one node."""

    node_id: int
    api: str
    """Kafka's name, such as `EndTxn`."""
    requests: int
    durations: Durations
    """From the decoded request to the answer, with what it had to wait for."""
    errors: Mapping[str, int]
    """How often answers said which error, by Kafka's names (`INVALID_TXN_STATE`)."""
    throttle_ms: int
    """How long clients were told to wait, by quotas."""


class NodeMetrics(NamedTuple):
    """One living node."""

    node_id: int
    bytes_in: int
    bytes_out: int
    connections: int
    """Open now."""
    connections_made: int
    leaders: int
    """Partitions that it leads."""
    verifications: Durations
    """VerificationTimeMs of KIP-890: how long coordinators took to verify or to add partitions."""
    verification_failures: int
    """VerificationFailureRate of KIP-890, as a count: partitions that were not verified."""
    late_transactions: int
    """PartitionsWithLateTransactionsCount of KIP-664: of the partitions that it leads, those with a transaction
    without a new batch for five minutes more than the longest timeout that a client may ask for."""
    active_transaction_open_time_max_ms: int
    """active-transaction-open-time-max of KIP-939: how long the oldest open transaction of its ids has been open."""
    transactions: Mapping[str, int]
    """Transactional ids that it coordinates, by state (`Ongoing`, `CompleteCommit`, ...)."""
    groups: Mapping[tuple[str, str], int]
    """Groups that it coordinates, by type (`classic`, `consumer`) and state (`Stable`, ...)."""


class PartitionMetrics(NamedTuple):
    """One partition."""

    topic: str
    partition: int
    leader_id: int
    """-1 while nobody leads."""
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
    """Everything."""

    now_ms: int
    """By the broker's clock."""
    controller_id: int
    """-1 while no node lives."""
    nodes: tuple[NodeMetrics, ...]
    apis: tuple[ApiMetrics, ...]
    partitions: tuple[PartitionMetrics, ...]
    """Internal topics with them."""

    def api(self, name: str, node_id: int | None = None) -> ApiMetrics:
        """The requests of one API, of one node or (None) of the first that has any. Raises KeyError."""
        for row in self.apis:
            if row.api == name and node_id in (None, row.node_id):
                return row
        raise KeyError(f"no node was asked {name}; there are {', '.join(sorted({row.api for row in self.apis}))}")

    def partition(self, topic: str, index: int = 0) -> PartitionMetrics:
        """One partition. Raises KeyError."""
        for row in self.partitions:
            if (row.topic, row.partition) == (topic, index):
                return row
        raise KeyError(f"{topic}-{index}")
