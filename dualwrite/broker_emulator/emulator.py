"""`Emulator`: a whole cluster in this process, with its own event loop in a thread of its own.

Every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from dualwrite.broker_emulator.clock import Clock, SystemClock, VirtualClock
from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.cluster.configured_timers import ConfiguredTimers
from dualwrite.broker_emulator.cluster.node import Node
from dualwrite.broker_emulator.cluster.operations import Operations
from dualwrite.broker_emulator.cluster.topic_partition import TopicPartition
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.faults import Faults
from dualwrite.broker_emulator.log.maintenance import LogMaintenance
from dualwrite.broker_emulator.log.partition_log import PartitionLog, ProducerDescription
from dualwrite.broker_emulator.log.record_batch import Record
from dualwrite.broker_emulator.log.visible_records import visible_records
from dualwrite.broker_emulator.net.listeners import Listeners, listeners_of
from dualwrite.broker_emulator.pause_points import Hold, Match, PausePoint
from dualwrite.broker_emulator.quotas.entity import CLIENT_ID, IP, USER, entity
from dualwrite.broker_emulator.security.acl import ALL_ACLS, Acl, AclFilter
from dualwrite.broker_emulator.security.authorizer import check_settings, with_access_control
from dualwrite.broker_emulator.security.listener import MAX_PORT, Listener
from dualwrite.broker_emulator.storage.storage import MemoryOnly, Storage
from dualwrite.broker_emulator.transactions.inspection import TransactionDescription

if TYPE_CHECKING:
    from dualwrite.broker_emulator.control.server import ControlServer
    from dualwrite.broker_emulator.groups.consumer.group import AnyGroup
    from dualwrite.broker_emulator.metrics.snapshot import MetricsSnapshot

_START_TIMEOUT_S = 600.0  # of a large data directory that was not left in order
_STOP_TIMEOUT_S = 120.0
_CALL_TIMEOUT_S = 30.0

T = TypeVar("T")


class LogSnapshot(NamedTuple):
    """One partition at one moment."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    leader_id: int
    producers: list[ProducerDescription]
    batches: list[bytes]


class HeldPoint:
    """A pause point held by a test; any thread may wait for it and release it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hold: Hold) -> None:
        self._loop = loop
        self._hold = hold

    @property
    def hits(self) -> int:
        """How often the point was reached."""
        return self._hold.hits

    def wait_reached(self, timeout_s: float = 10.0) -> None:
        """Block until somebody waits at the point. Raises TimeoutError after `timeout_s`."""
        reached = asyncio.run_coroutine_threadsafe(self._hold.until_hit(), self._loop)
        try:
            reached.result(timeout_s)
        except TimeoutError:
            reached.cancel()
            raise TimeoutError(f"{self._hold.point} was not reached within {timeout_s} s") from None

    def release(self) -> None:
        """Let everybody go who waits at the point, now and later."""
        self._loop.call_soon_threadsafe(self._hold.release)


class HeldReplication:
    """The replication of one partition, held by a test; any thread may release it."""

    def __init__(self, call: Callable[[Callable[[], None]], None], log: PartitionLog) -> None:
        self._call = call
        self._log = log

    def release(self, up_to: int | None = None) -> None:
        """Let the followers fetch what is below offset `up_to`, or everything from now on.

        Raises ValueError where `up_to` is replicated already, beyond the log end, or inside of a batch.
        """
        self._call(lambda: self._log.release_high_watermark(up_to))


class Emulator:
    """A Kafka cluster of `nodes` brokers; `with Emulator() as emulator:` starts and stops it.

    `listen` is host:port of the first node (127.0.0.1 and a free port unless given, or what the setting `listeners`
    says); the others get the following
    ports, or free ones where the port is 0. `listeners` are several of them, secured or not, instead: every node has
    them all. `scram_users` are passwords by name, for both mechanisms of SCRAM.
    `topics` maps names to partition counts and is created before the first client can connect, unless it is there.
    Everything is kept in memory, or in `data_dir`, and then an emulator that is started on it later has it again.
    `acls`, or `super_users` such as "User:admin", turn access control on: who is no super user may do what a rule
    allows, and nothing else. `control` is host:port of control over HTTP, which is off unless that is given.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        listen: str | None = None,
        listeners: Sequence[Listener] | None = None,
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
        topics: Mapping[str, int] | None = None,
        data_dir: str | Path | None = None,
        acls: Iterable[Acl] | None = None,
        super_users: Iterable[str] | None = None,
        scram_users: Mapping[str, str] | None = None,
        control: str | None = None,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster needs a node, not {nodes}")
        self._acls = list(acls or ())
        self.config = config or BrokerConfig()
        if acls is not None or super_users is not None:
            self.config = with_access_control(self.config, super_users or ())
        check_settings(self.config)
        self.clock: Clock = clock or SystemClock()
        self.faults = Faults()
        self.bootstrap_servers = ""
        self._node_count = nodes
        self._listeners = Listeners(listeners_of(listen, listeners, self.config.properties), nodes, self.config.node_id)
        self._scram_users = dict(scram_users or {})
        self._topics = dict(topics or {})
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._control_address = None if control is None else _address(control)
        self._control: ControlServer | None = None
        self.control_url = ""
        """Where control over HTTP is reached, such as http://127.0.0.1:8080; empty where there is none."""
        self._storage: Storage | None = None
        self._is_recovered = False
        self._cluster: Cluster  # from start() on
        self._operations: Operations
        self._timers: ConfiguredTimers | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # life

    def start(self) -> Self:
        """Start serving. Raises what kept it from starting: OSError when an address is taken, StorageError with a
        plain sentence when the data directory is in use, cannot be written, or holds damaged data.
        """
        if self._thread is not None:
            raise RuntimeError("the emulator runs already")
        self._loop = _new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="broker-emulator", daemon=True)
        self._thread.start()
        try:
            self._await(self._start(), _START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop serving: connections are closed; without a data directory the data is gone.

        Harmless when it does not run. Raises StorageError when the disk does not take what is left to write.
        """
        if self._thread is None or self._loop is None:
            return
        try:
            self._await(self._stop(), _STOP_TIMEOUT_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run_loop(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _start(self) -> None:
        self._storage = _open_storage(self._data_dir, self.config)
        cluster = self._cluster = Cluster(self.config, self.clock, self.faults, self._storage)
        self._operations = Operations(cluster)
        self._operations.add_acls(self._acls)
        for name, password in self._scram_users.items():
            cluster.scram_users.set_password(name, password)
        for node_id in range(self.config.node_id, self.config.node_id + self._node_count):
            self._listeners.reserve(node_id)
            await self._add_node(node_id)
        cluster.restore_topics()
        self._is_recovered = True
        cluster.create_internal_topics()
        for name in [name for name in self._topics if name not in cluster.topics]:
            cluster.create_topic(name, self._topics[name])
        for topic in cluster.topics.values():
            for partition in topic.partitions:
                cluster.nodes[partition.leader_id].lead(partition)
        self.bootstrap_servers = self.bootstrap()
        self._begin_maintenance(cluster, self._storage)
        for node in cluster.nodes.values():
            await self._serve(node)  # last: nobody may meet a cluster that is not complete
        if self._control_address is not None:
            self._control, self.control_url = await self._open_control(*self._control_address)

    async def _open_control(self, host: str, port: int) -> tuple[ControlServer, str]:
        # what nobody asks for need not be there, nor take time to load
        from dualwrite.broker_emulator.control.controlled import ControlledEmulator
        from dualwrite.broker_emulator.control.server import ControlServer

        controlled = ControlledEmulator(self._cluster, self._operations, self.bootstrap_servers, self._start_node)
        server = ControlServer(controlled, own_name=host)
        await server.start(host.strip("[]"), port)
        return server, f"http://{host}:{server.port}"

    def _begin_maintenance(self, cluster: Cluster, storage: Storage) -> None:
        """The periodic work on what belongs to no node."""
        logs = LogMaintenance(cluster.clock, lambda: (partition.log for partition in cluster.partitions()))
        timers = self._timers = ConfiguredTimers(cluster)
        timers.every("producer_id_expiration_check_interval_ms", cluster.expire_producers)
        timers.every("log_retention_check_interval_ms", logs.delete_old_segments)
        timers.every("log_cleaner_backoff_ms", logs.compact)
        if self._data_dir is not None:  # a week that a test lets pass has 600,000 of these seconds
            timers.every("log_flush_interval_ms", storage.begin_flush)

    async def _add_node(self, node_id: int) -> Node:
        node = Node(node_id, self._cluster, self._listeners.endpoints(node_id))
        node.servers = await self._listeners.listen(node)
        self._cluster.nodes[node_id] = node
        return node

    async def _serve(self, node: Node) -> None:
        """Let clients in, and begin the node's periodic work."""
        config, every, transactions = self.config, self.clock.call_every, node.transactions
        node.timers += (
            every(
                config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                transactions.abort_timed_out,
            ),
            every(
                config.transaction_remove_expired_transaction_cleanup_interval_ms,
                transactions.expire_transactional_ids,
            ),
            every(config.offsets_retention_check_interval_ms, node.groups.expire),
        )
        for server in node.servers:
            await server.start_serving()

    async def _stop(self) -> None:
        storage, self._storage = self._storage, None
        if storage is None:  # it could not even be opened
            return
        if self._control is not None:
            self._control.close()
            self._control, self.control_url = None, ""
        if self._timers is not None:
            self._timers.cancel()
            self._timers = None
        for node in self._cluster.nodes.values():
            node.end()
            await node.transactions.shutdown()
        self._listeners.release()
        await _cancel_other_tasks()
        await self._close_logs(storage)

    async def _close_logs(self, storage: Storage) -> None:
        is_complete = False
        try:
            for partition in self._cluster.partitions():
                partition.log.close()
            is_complete = self._is_recovered
        finally:
            await storage.close(is_complete=is_complete)

    @property
    def listeners(self) -> list[str]:
        """The names of all listeners; the first one's addresses are the `bootstrap_servers`."""
        return self._listeners.names

    def bootstrap(self, listener: str | None = None) -> str:
        """host:port of every node, of the listener with this name (None: the first), as clients are told them.

        Raises ValueError where there is no such listener, RuntimeError before the emulator was started.
        """
        return self._listeners.bootstrap(listener)

    def set_scram_user(self, name: str, password: str | None) -> None:
        """Let a user log in by both mechanisms of SCRAM with this password from now on; None: never again.

        Whoever has logged in stays so. Raises StorageError where that cannot be kept.
        """
        users = self._cluster.scram_users
        self._call(lambda: users.remove_user(name) if password is None else users.set_password(name, password))

    # for tests

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic, with settings by Kafka's names. Raises ValueError when that cannot be."""
        self._call(lambda: self._operations.create_topic(name, partitions, configs or {}))

    def set_config(
        self,
        changes: Mapping[str, str | None],
        *,
        topic: str | None = None,
        group: str | None = None,
        node_id: int | None = None,
    ) -> None:
        """Alter settings of a topic, a group or a node, or of all brokers where none of them is named.

        By Kafka's names and as text; None forgets what was set. They are in effect when this returns. Raises KeyError
        when there is no such topic, ValueError with Kafka's sentence for what cannot be.
        """
        self._call(lambda: self._operations.set_config(changes, topic=topic, group=group, node_id=node_id))

    def advance_clock(self, duration_ms: int) -> None:
        """Move the broker's time forward; every timer that became due has run when this returns.

        What the timers began (a server-side abort writes its markers afterwards) may still be in work. Raises
        TypeError when the emulator does not run on a VirtualClock.
        """
        clock = self.clock
        if not isinstance(clock, VirtualClock):
            raise TypeError("advance_clock needs Emulator(clock=VirtualClock())")
        self._call(lambda: clock.advance(duration_ms))

    # nodes

    def stop_node(self, node_id: int) -> None:
        """Stop a node in order: its partitions get other leaders first. Raises ValueError when it does not run."""
        self._await(self._operations.living_node(node_id).stop())

    def crash_node(self, node_id: int) -> None:
        """End a node as SIGKILL does: nothing in work there is finished, and connections break.

        Other nodes take over what it led; of a partition whose replication is held they have what was replicated.
        Raises ValueError when it does not run.
        """
        self._call(lambda: self._operations.living_node(node_id).crash())

    def start_node(self, node_id: int) -> None:
        """Start a node again on its old port. It leads what nobody else can. Raises ValueError when it runs."""
        self._await(self._start_node(node_id))

    async def _start_node(self, node_id: int) -> None:
        if self._operations.node(node_id).is_alive:
            raise ValueError(f"node {node_id} runs already")
        node = await self._add_node(node_id)
        self._cluster.lead_orphans(node)
        await self._serve(node)

    @property
    def living_nodes(self) -> list[int]:
        """The ids of the nodes that run."""
        return self._call(lambda: [node.node_id for node in self._cluster.living_nodes])

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Let another node lead a partition, under a new leader epoch; nothing happens when it does already.

        Raises KeyError when there is no such partition, ValueError when the node does not run or has no copy.
        """
        self._call(lambda: self._operations.move_leader(self._operations.partition(topic, partition), node_id))

    def create_partitions(self, topic: str, count: int) -> None:
        """Let a topic have `count` partitions, as CreatePartitions does; clients notice with their next Metadata.

        Raises KeyError when there is no such topic, ValueError when that is not more than it has.
        """
        self._call(lambda: self._operations.create_partitions(topic, count))

    def reassign(self, topic: str, partition: int, replicas: Sequence[int] | None) -> None:
        """Move the copies of a partition to these nodes, the preferred leader first, or (None) give that up.

        It is over at once, unless a new node does not run or the replication of the partition is held: then when that
        is over. Raises KeyError when there is no such partition, ValueError when it cannot be moved there.
        """
        self._call(lambda: self._operations.reassign(self._operations.partition(topic, partition), replicas))

    def elect_preferred_leaders(self) -> list[TopicPartition]:
        """Let the first replica of every partition lead again, where it lives, as ElectLeaders does; who moved."""
        return self._call(self._operations.elect_preferred_leaders)

    def move_coordinator(self, node_id: int, *, transactional_id: str | None = None, group: str | None = None) -> None:
        """Let another node coordinate a transactional id or a group, and all others of the same internal partition."""
        operations = self._operations
        self._call(lambda: operations.move_leader(operations.coordinator_partition(transactional_id, group), node_id))

    def coordinator(self, *, transactional_id: str | None = None, group: str | None = None) -> int:
        """The node that coordinates a transactional id or a group; -1 when none that could is alive."""
        return self._call(lambda: self._operations.coordinator_partition(transactional_id, group).leader_id)

    def hold_replication(self, topic: str, partition: int = 0) -> HeldReplication:
        """Keep the followers of a partition from fetching, so that its high watermark stays where it is.

        Raises KeyError when there is no such partition, ValueError when it is held already.
        """
        return HeldReplication(self._call, self._call(lambda: self._operations.hold_replication(topic, partition)))

    # clients

    def disconnect_clients(self, *, client_id: str | None = None) -> int:
        """Break connections abruptly: those of `client_id`, or all. Returns how many."""
        return self._call(lambda: self._operations.disconnect(client_id))

    def hold(self, point: PausePoint, match: Match | None = None) -> HeldPoint:
        """Hold everybody who reaches `point` with a context that `match` accepts, until released."""
        return HeldPoint(self._running_loop, self._call(lambda: self._cluster.pause_points.hold(point, match)))

    def set_transaction_version(self, level: int) -> None:
        """Finalize this level of the feature `transaction.version`, up or down, as UpdateFeatures does.

        Clients learn of it when they connect anew. Raises ValueError for a level that the profile does not support.
        """
        self._call(lambda: self._cluster.finalize_features(level))

    def transactions(self) -> list[TransactionDescription]:
        """Every transactional id the cluster knows, described as DescribeTransactions would, by id."""
        return self._call(self._operations.transactions)

    def groups(self) -> list[AnyGroup]:
        """Every group the cluster knows, of the classic protocol or of KIP-848, with members and assignments, by id."""
        return self._call(self._operations.groups)

    # access control

    def acls(self, wanted: AclFilter = ALL_ACLS) -> list[Acl]:
        """The rules of access control, or those that a filter means. Raises RuntimeError where it is off."""
        return self._call(lambda: self._operations.authorizer.acls(wanted))

    def add_acls(self, *acls: Acl) -> None:
        """Add rules; they decide from the next request on. One that is there already changes nothing.

        Raises ValueError for one that Kafka would not take, RuntimeError where access control is off, StorageError.
        """
        self._call(lambda: self._operations.add_acls(acls))

    def remove_acls(self, wanted: AclFilter = ALL_ACLS) -> list[Acl]:
        """Remove the rules that a filter means, and name them. Raises RuntimeError where access control is off."""
        return self._call(lambda: self._operations.authorizer.remove(wanted))

    # partitions

    def set_quota(
        self,
        quotas: Mapping[str, float | None],
        *,
        user: str | None = "",
        client_id: str | None = "",
        ip: str | None = "",
    ) -> None:
        """Set quotas by Kafka's names (None: take it away) of a user, a client id, both together, or an address.

        A name of None is the default of its kind, for whoever has none of his own. Raises ValueError where such an
        entity cannot have such a quota.
        """
        named = ((USER, user), (CLIENT_ID, client_id), (IP, ip))
        self._call(lambda: self._operations.set_quota(entity(part for part in named if part[1] != ""), quotas))

    def metrics(self) -> MetricsSnapshot:
        """What the brokers count and measure, as it is now (`metrics.prometheus` writes it as text)."""
        from dualwrite.broker_emulator.metrics.snapshot import collect  # as with control: not before it is asked for

        return self._call(lambda: collect(self._cluster))

    def log(self, topic: str, partition: int = 0) -> LogSnapshot:
        """A partition as it is now. Raises KeyError when there is none."""
        return self._call(lambda: self._snapshot(topic, partition))

    def records(self, topic: str, partition: int | None = None, *, read_committed: bool = True) -> list[Record]:
        """What a consumer would be given of a topic, or of one partition: values, keys, headers, offsets.

        Partition by partition in the order of their offsets, up to the last stable offset, or without `read_committed`
        up to the high watermark. Raises KeyError when there is none, UnsupportedCompressionError where the package
        cramjam is needed and not installed.
        """
        if partition is None:
            partitions = self._call(lambda: len(self._operations.topic(topic).partitions))
            return [record for each in range(partitions) for record in self._records(topic, each, read_committed)]
        return list(self._records(topic, partition, read_committed))

    def _records(self, topic: str, partition: int, read_committed: bool) -> Iterator[Record]:
        log = self.log(topic, partition)
        end_offset = log.last_stable_offset if read_committed else log.high_watermark
        return visible_records(log.batches, end_offset=end_offset, read_committed=read_committed)

    def _snapshot(self, topic: str, index: int) -> LogSnapshot:
        partition = self._operations.partition(topic, index)
        log = partition.log
        return LogSnapshot(
            log.log_start_offset,
            log.log_end_offset,
            log.high_watermark,
            log.last_stable_offset,
            log.leader_epoch,
            partition.leader_id,
            log.producers(),
            list(log.batches()),
        )

    # threads

    @property
    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the emulator does not run")
        return self._loop

    def _await(self, work: Coroutine[Any, Any, T], timeout_s: float = _CALL_TIMEOUT_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running_loop).result(timeout_s)

    def _call(self, function: Callable[[], T]) -> T:
        """Run `function` in the emulator's loop and give back what it gives or raises."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)

        self._running_loop.call_soon_threadsafe(run)
        return outcome.result(_CALL_TIMEOUT_S)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ValueError(f"control takes host:port, not {text!r}")
    return host, int(port)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _open_storage(data_dir: Path | None, config: BrokerConfig) -> Storage:
    if data_dir is None:
        return MemoryOnly(config.memory_limit_bytes)
    # needs a POSIX system, and time to import
    from dualwrite.broker_emulator.storage.data_directory import DataDirectory

    return DataDirectory.open(data_dir, fsync=config.fsync, loop=asyncio.get_running_loop())


async def _cancel_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
