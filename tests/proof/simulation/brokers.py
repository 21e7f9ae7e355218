"""The brokers: the emulator's nodes, unchanged, behind the simulated network and clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from logging import getLogger
from typing import Any, Final

from dualwrite.broker_emulator import Faults
from dualwrite.broker_emulator.clock import Timer
from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.cluster.node import Node
from dualwrite.broker_emulator.cluster.operations import Operations
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.net.client_transport import ClosingLog
from dualwrite.broker_emulator.net.markers import send_marker_with_faults
from dualwrite.broker_emulator.net.server import Connection
from dualwrite.broker_emulator.profiles import Profile
from dualwrite.broker_emulator.security.listener import Endpoint
from dualwrite.broker_emulator.storage.storage import Storage
from dualwrite.broker_emulator.topics.topics import NO_LEADER, Partition, TopicPartition
from dualwrite.guarantee import Tier
from tests.proof.simulation.determinism import EPOCH_S
from tests.proof.simulation.disk import Disk
from tests.proof.simulation.loop import Process, SimulatedHandle, SimulatedLoop
from tests.proof.simulation.network import End, Listener, Network, Transport

TOPIC: Final = "orders"
PARTITIONS: Final = 2
_FIRST_PORT: Final = 9092
_LISTENER: Final = "PLAINTEXT"
_NO_LINES: Final = ClosingLog(getLogger("dualwrite.broker_emulator.net"))

_EVERYWHERE: Final[dict[str, Any]] = {
    "transaction_state_log_num_partitions": 2,
    "offsets_topic_num_partitions": 1,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 5_000,
}
CONFIGS: Final = {
    Tier.KEEP_PREPARED: BrokerConfig(**_EVERYWHERE),
    Tier.STORED_PAIR: BrokerConfig(
        profile=Profile.KAFKA_4_3,
        unstable_api_versions_enable=True,
        transaction_two_phase_commit_enable=True,
        **_EVERYWHERE,
    ),
    Tier.BOUNDED: BrokerConfig(profile=Profile.KAFKA_4_3, **_EVERYWHERE),
    Tier.BOUNDED_V1: BrokerConfig(profile=Profile.KAFKA_3_9, **_EVERYWHERE),
}


class _Timer:
    """A call of the brokers' clock, once or again and again."""

    def __init__(self, loop: SimulatedLoop, process: Process, interval_s: float, repeats: bool) -> None:
        self._loop = loop
        self._process = process
        self._interval_s = interval_s
        self._repeats = repeats
        self._handle: SimulatedHandle | None = None

    def start(self, callback: Callable[[], None]) -> _Timer:
        due_s = self._loop.now_s + self._interval_s
        self._handle = self._loop.call_at_in(self._process, due_s, self._fire, callback)
        return self

    def _fire(self, callback: Callable[[], None]) -> None:
        if self._repeats:
            self.start(callback)
        callback()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class BrokerClock:
    """The wall clock of the brokers, which may jump; intervals are of the virtual time."""

    def __init__(self, loop: SimulatedLoop, process: Process) -> None:
        self._loop = loop
        self._process = process

    def now_ms(self) -> int:
        return int((EPOCH_S + self._loop.now_s + self._process.clock_offset_s) * 1000)

    def call_every(self, interval_ms: int, callback: Callable[[], None]) -> Timer:
        return _Timer(self._loop, self._process, interval_ms / 1000, repeats=True).start(callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return _Timer(self._loop, self._process, delay_ms / 1000, repeats=False).start(callback)


class _Connection(Connection):
    """A connection whose place in a set does not depend on its address."""

    def __init__(self, node: Node, number: int) -> None:
        super().__init__(node, _LISTENER, _NO_LINES)
        self._number = number

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Brokers:
    """All brokers of the cluster. They share one process: there is no simulated network between them."""

    def __init__(self, loop: SimulatedLoop, network: Network, tier: Tier, nodes: int) -> None:
        self.process: Final = Process("kafka")
        self.tier: Final = tier
        self.node_ids: Final = range(nodes)
        self.on_start: Callable[[], None] = _nothing
        """Called when the cluster has started, and again after a power failure."""
        self.cluster: Cluster
        self.operations: Operations
        self.has_power = False
        self._loop = loop
        self._network = network
        self._clock = BrokerClock(loop, self.process)
        self._config = CONFIGS[tier]

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes."""
        return ",".join(f"node{node_id}:{_FIRST_PORT + node_id}" for node_id in self.node_ids)

    def start(self, storage: Storage | None = None) -> None:
        """Start all nodes, on their stored data. To be called in the loop, as the brokers' process."""
        self.has_power = True
        cluster = self.cluster = Cluster(self._config, self._clock, Faults(), storage)
        self.operations = Operations(cluster)
        for node_id in self.node_ids:
            cluster.nodes[node_id] = self._new_node(node_id)
        cluster.restore_topics()
        cluster.create_internal_topics()
        if TOPIC not in cluster.topics:
            cluster.create_topic(TOPIC, PARTITIONS)
        for partition in cluster.partitions():
            cluster.nodes[partition.leader_id].lead(partition)
        for node in cluster.nodes.values():
            assert isinstance(node, Node)
            self._serve(node)
        self.on_start()

    def _new_node(self, node_id: int) -> Node:
        endpoints = {_LISTENER: Endpoint(f"node{node_id}", _FIRST_PORT + node_id)}
        return Node(node_id, self.cluster, endpoints, send_marker_with_faults)

    def _serve(self, node: Node) -> None:
        port = _FIRST_PORT + node.node_id
        self._network.listeners[port] = Listener(self.process, f"node{node.node_id}", partial(_accept, node))
        config, transactions = self._config, node.transactions
        node.timers.append(
            self._clock.call_every(
                config.transaction_abort_timed_out_transaction_cleanup_interval_ms, transactions.abort_timed_out
            )
        )

    def leader_of(self, partition: int) -> int:
        """Return the node that leads a partition of the topic."""
        return self.cluster.topics[TOPIC].partitions[partition].leader_id

    # ---- events ---------------------------------------------------------------------------------------------

    def crash(self, node_id: int) -> None:
        """Let a node die; the others take over."""
        if not self.has_power:
            return
        self._network.listeners.pop(_FIRST_PORT + node_id, None)
        self._as_brokers(self.cluster.nodes[node_id].crash)

    def restart(self, node_id: int) -> None:
        """Start a dead node."""
        if self.cluster.nodes[node_id].is_alive or not self.has_power:
            return

        def start() -> None:
            node = self.cluster.nodes[node_id] = self._new_node(node_id)
            self.cluster.changes.make_at_once(self.cluster.elections.adoption(node))
            self._serve(node)

        self._as_brokers(start)

    def move(self, partition: Partition, node_id: int) -> None:
        """Make another node the leader of a partition, if it can be."""
        if self.cluster.nodes[node_id].is_alive and partition.leader_id not in (node_id, NO_LEADER):
            self._as_brokers(lambda: self.operations.move_leader(partition, node_id))

    def hold_replication(self, partition: Partition, duration_s: float) -> None:
        """Keep the followers of a partition from fetching for a while."""
        if partition.log.is_high_watermark_held:
            return
        self._as_brokers(partition.log.hold_high_watermark)
        self._loop.call_at_in(self.process, self._loop.now_s + duration_s, self._release, partition)

    @staticmethod
    def _release(partition: Partition) -> None:
        if partition.log.is_high_watermark_held:
            partition.log.release_high_watermark()

    def release_all(self) -> None:
        """Let all followers fetch."""
        for partition in self.cluster.partitions():
            self._loop.call_soon_in(self.process, self._release, partition)

    async def fail(self, disk: Disk) -> list[str]:
        """Let the power fail: all nodes end at once. Return the losses. To be called as the brokers' process."""
        self.has_power = False
        for node in self.cluster.nodes.values():
            self._network.listeners.pop(_FIRST_PORT + node.node_id, None)
            node.end()
        return await disk.fail()

    def _as_brokers(self, action: Callable[[], object]) -> None:
        before, self._loop.current = self._loop.current, self.process
        try:
            action()
        finally:
            self._loop.current = before

    def committed_offset(self, group: str) -> int | None:
        """Return the position of a consumer group in the first partition of the application."""
        coordinator = self.cluster.group_coordinator(group)
        assert coordinator is not None, "no node leads __consumer_offsets"
        shard = coordinator.groups.shard(group)
        assert isinstance(shard, GroupShard), shard
        committed = shard.offsets.table.committed(group, TopicPartition(TOPIC, 0))
        return None if committed is None else committed.offset

    def data_partitions(self) -> Iterator[Partition]:
        """Iterate over the partitions that the application writes to."""
        yield from self.cluster.topics[TOPIC].partitions


def _accept(node: Node, end: End) -> None:
    Transport(end, _Connection(node, end.link.number))


def _nothing() -> None:
    pass
