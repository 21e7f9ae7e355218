"""`Emulator`: a whole cluster in this process, with an event loop in a thread of its own.

Every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dualwrite.broker_emulator.clock import Clock, SystemClock, VirtualClock
from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.cluster.features import TRANSACTION_VERSION
from dualwrite.broker_emulator.cluster.operations import Operations, clear
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.faults.registry import Faults
from dualwrite.broker_emulator.handles import HeldPoint, HeldReplication, LogSnapshot, snapshot
from dualwrite.broker_emulator.log.reading import visible_records
from dualwrite.broker_emulator.log.record import Record
from dualwrite.broker_emulator.monkey_patches import assert_unpatched
from dualwrite.broker_emulator.net.listeners import Listeners, address, listeners_of
from dualwrite.broker_emulator.pause_points import Match, PausePoint
from dualwrite.broker_emulator.quotas.client_quotas import CLIENT_ID, IP, USER, entity
from dualwrite.broker_emulator.running_cluster import RunningCluster
from dualwrite.broker_emulator.security.acl import ALL_ACLS, Acl, AclFilter
from dualwrite.broker_emulator.security.authorizer import check_settings, with_access_control
from dualwrite.broker_emulator.security.listener import Listener
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions.inspection import TransactionDescription

if TYPE_CHECKING:
    from dualwrite.broker_emulator.groups.consumer.group import AnyGroup
    from dualwrite.broker_emulator.metrics.snapshot import MetricsSnapshot

_START_TIMEOUT_S = 600.0  # enough to recover a large data directory
_STOP_TIMEOUT_S = 120.0
_CALL_TIMEOUT_S = 30.0

T = TypeVar("T")


class Emulator:
    """A Kafka cluster of `nodes` brokers; `with Emulator() as emulator:` starts and stops it.

    `listen` is host:port of the first node (by default the setting `listeners`, or else 127.0.0.1 and a free port); the
    other nodes use the following ports, or free ones if the port is 0. `listeners` defines several listeners instead,
    secured or not; every node has all of them. `scram_users` are passwords by user name, for both SCRAM mechanisms.
    `topics` maps names to numbers of partitions; missing topics are created before the first client can connect.
    Everything is stored in memory, or in `data_dir`, from where a later emulator restores it. `acls`, or `super_users`
    such as "User:admin", turn access control on: any other user may do only what an ACL allows. `control` is host:port
    of control over HTTP, and `schema_registry` of a schema registry; both are off by default.
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
        schema_registry: str | None = None,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster needs at least one node, not {nodes}")
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
        self._control_address = None if control is None else address("control", control)
        self.control_url = ""
        """The URL of control over HTTP, such as http://127.0.0.1:8080; empty if it is off."""
        self._registry_address = None if schema_registry is None else address("schema_registry", schema_registry)
        self.schema_registry_url = ""
        """The URL of the schema registry, such as http://127.0.0.1:8081; empty if it is off."""
        self._run: RunningCluster | None = None
        self.cluster: Cluster
        """Exists from `start` on. Use it only in the emulator's loop (`call_in_loop`)."""
        self.operations: Operations
        """The operations behind the methods of this class, for the emulator's loop; exists from `start` on."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # start and stop

    def start(self) -> Self:
        """Start serving.

        Raises OSError if an address is in use; StorageError, with a sentence for the user, if the data directory is in
        use, not writable, or damaged; RuntimeError in a process that gevent or eventlet has patched.
        """
        if self._thread is not None:
            raise RuntimeError("the emulator is already running")
        assert_unpatched()
        self._loop = _new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker-emulator", daemon=True)
        self._thread.start()
        try:
            self._await(self._start(), _START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop serving and close all connections; without a data directory, all data is lost.

        No effect if the emulator is not running. Raises StorageError if the last writes to the disk fail.
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

    async def _start(self) -> None:
        run = self._run = RunningCluster(self.config, self.clock, self.faults, self._listeners, self._data_dir)
        self.cluster, self.operations = run.cluster, run.operations
        await run.start(self._node_count, self._topics, self._acls, self._scram_users)
        self.bootstrap_servers = self.bootstrap()
        if self._control_address is not None:
            self.control_url = await run.open_control(*self._control_address)
        if self._registry_address is not None:
            self.schema_registry_url = await run.open_registry(*self._registry_address)

    async def _stop(self) -> None:
        run, self._run = self._run, None
        self.control_url = self.schema_registry_url = ""
        if run is not None:  # else opening the storage failed
            await run.stop()

    @property
    def listeners(self) -> list[str]:
        """The names of all listeners; the first one's addresses are the `bootstrap_servers`."""
        return self._listeners.names

    def bootstrap(self, listener: str | None = None) -> str:
        """Return host:port of every node at the listener of this name (None: the first), as clients get them.

        Raises ValueError for an unknown listener, RuntimeError before the emulator is started.
        """
        return self._listeners.bootstrap(listener)

    def set_scram_user(self, name: str, password: str | None) -> None:
        """Set the password of a user, for both SCRAM mechanisms; None removes the user.

        Existing connections stay logged in. Raises StorageError if storage fails.
        """
        users = self.cluster.scram_users
        self.call_in_loop(lambda: users.remove_user(name) if password is None else users.set_password(name, password))

    # topics, settings and time

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic, with settings by Kafka's names. Raises ValueError for an invalid argument."""
        self.call_in_loop(lambda: self.operations.create_topic(name, partitions, configs or {}))

    def set_config(
        self,
        changes: Mapping[str, str | None],
        *,
        topic: str | None = None,
        group: str | None = None,
        node_id: int | None = None,
    ) -> None:
        """Alter settings of a topic, a group, a node or, if none is given, all brokers.

        Names are Kafka's, values are text; None resets a setting. Changes are in effect when this returns. Raises
        KeyError for an unknown topic, ValueError with Kafka's message for an invalid setting.
        """
        self.call_in_loop(lambda: self.operations.set_config(changes, topic=topic, group=group, node_id=node_id))

    def advance_clock(self, duration_ms: int) -> None:
        """Advance the broker's time; all timers that became due have run when this returns.

        Work started by a timer may still be unfinished: a server-side abort writes its markers afterwards. Raises
        TypeError unless the emulator runs on a VirtualClock.
        """
        clock = self.clock
        if not isinstance(clock, VirtualClock):
            raise TypeError("advance_clock needs Emulator(clock=VirtualClock())")
        self.call_in_loop(lambda: clock.advance(duration_ms))

    # nodes

    def stop_node(self, node_id: int) -> None:
        """Stop a node in order: its partitions get other leaders first. Raises ValueError if it is not running."""
        self._await(self.operations.living_node(node_id).stop())

    def crash_node(self, node_id: int) -> None:
        """End a node as SIGKILL does: requests in progress are never finished, and connections break.

        Other nodes take over its partitions; if the replication of a partition is held, they have only the replicated
        records. Raises ValueError if the node is not running.
        """
        self.call_in_loop(lambda: self.operations.living_node(node_id).crash())

    def start_node(self, node_id: int) -> None:
        """Restart a node on its old port. It leads partitions without a leader. Raises ValueError if it is running."""
        self._await(self._running.start_node(node_id))

    @property
    def living_nodes(self) -> list[int]:
        """The ids of the running nodes."""
        return self.call_in_loop(lambda: [node.node_id for node in self.cluster.living_nodes])

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make another node the leader of a partition, with a new leader epoch; no effect if it is the leader.

        Raises KeyError for an unknown partition, ValueError if the node is not running or has no complete replica.
        """
        self.call_in_loop(lambda: self.operations.move_leader(self.operations.partition(topic, partition), node_id))

    def create_partitions(self, topic: str, count: int) -> None:
        """Extend a topic to `count` partitions, as CreatePartitions does; clients notice with their next Metadata.

        Raises KeyError for an unknown topic, ValueError if it already has as many.
        """
        changes = self.cluster.changes
        self.call_in_loop(lambda: changes.make_at_once(self.operations.partition_creation(topic, count)))

    def reassign(self, topic: str, partition: int, replicas: Sequence[int] | None) -> None:
        """Move the replicas of a partition to these nodes, the preferred leader first, or (None) cancel the move.

        The reassignment completes at once. If a new node is down or the replication of the partition is held, it
        completes as soon as that ends. Raises KeyError for an unknown partition, ValueError for invalid replicas.
        """
        self.call_in_loop(lambda: self.operations.reassign(self.operations.partition(topic, partition), replicas))

    def elect_preferred_leaders(self) -> list[TopicPartition]:
        """Make the first replica of every partition its leader again, if alive; return the partitions that moved."""
        return self.call_in_loop(self.operations.elect_preferred_leaders)

    def move_coordinator(self, node_id: int, *, transactional_id: str | None = None, group: str | None = None) -> None:
        """Move the coordination of a transactional id or a group, with its whole internal partition, to a node."""
        operations = self.operations
        self.call_in_loop(
            lambda: operations.move_leader(operations.coordinator_partition(transactional_id, group), node_id)
        )

    def coordinator(self, *, transactional_id: str | None = None, group: str | None = None) -> int:
        """Return the id of the coordinator of a transactional id or a group; -1 if no node can coordinate it."""
        return self.call_in_loop(lambda: self.operations.coordinator_partition(transactional_id, group).leader_id)

    def hold_replication(self, topic: str, partition: int = 0) -> HeldReplication:
        """Keep the followers of a partition from fetching, so that its high watermark does not advance.

        Raises KeyError for an unknown partition, ValueError if its replication is already held.
        """
        return HeldReplication(
            self.call_in_loop, self.call_in_loop(lambda: self.operations.hold_replication(topic, partition))
        )

    def reset(self) -> None:
        """Reset the cluster to one without records, faults and held points, while its clients stay connected.

        Every node runs again. Open transactions are aborted and their producers fenced; the records of all topics are
        deleted, as DeleteRecords does; groups without members are deleted. Topics, transactional ids and groups with
        members stay, because clients may still use them. Raises TimeoutError if a transaction does not end.
        """
        self.faults.clear()
        self._await(clear(self.cluster, self._running.start_node))

    # clients

    def disconnect_clients(self, *, client_id: str | None = None) -> int:
        """Break the connections of `client_id`, or all connections, abruptly; return their number."""
        return self.call_in_loop(lambda: self.operations.disconnect(client_id))

    def hold(self, point: PausePoint, match: Match | None = None) -> HeldPoint:
        """Hold every task that reaches `point` with a context that `match` accepts, until released."""
        return HeldPoint(self._running_loop, self.call_in_loop(lambda: self.cluster.pause_points.hold(point, match)))

    def set_transaction_version(self, level: int) -> None:
        """Finalize this level of the feature `transaction.version`, up or down, as UpdateFeatures does.

        Clients learn the new level when they reconnect. Raises ValueError for a level that the profile does not
        support.
        """
        cluster = self.cluster
        self.call_in_loop(lambda: cluster.changes.make_at_once(cluster.finalize_features({TRANSACTION_VERSION: level})))

    def set_next_producer_epoch(self, producer_epoch: int, *, transactional_id: str | None = None) -> None:
        """Make the next InitProducerId of an id return this epoch (1 to 32766), stored in Kafka's way.

        Without an id, set the epoch of all producers without one (0 to 32766) until the emulator stops. Raises
        ValueError for any other epoch, and while the id has an open transaction.
        """
        self._await(self.operations.set_next_epoch(producer_epoch, transactional_id))

    def transactions(self) -> list[TransactionDescription]:
        """Describe every transactional id of the cluster as DescribeTransactions does, ordered by id."""
        return self.call_in_loop(self.operations.transactions)

    def groups(self) -> list[AnyGroup]:
        """Return every group, classic or of KIP-848, with members and assignments, ordered by id."""
        return self.call_in_loop(self.operations.groups)

    # access control

    def acls(self, wanted: AclFilter = ALL_ACLS) -> list[Acl]:
        """Return all ACLs, or those that match a filter. Raises RuntimeError while access control is off."""
        return self.call_in_loop(lambda: self.operations.authorizer.acls(wanted))

    def add_acls(self, *acls: Acl) -> None:
        """Add ACLs; they take effect at the next request. Existing ACLs are ignored.

        Raises ValueError for an ACL that Kafka rejects, RuntimeError while access control is off, StorageError.
        """
        self.call_in_loop(lambda: self.operations.add_acls(acls))

    def remove_acls(self, wanted: AclFilter = ALL_ACLS) -> list[Acl]:
        """Remove and return the ACLs that match a filter. Raises RuntimeError while access control is off."""
        return self.call_in_loop(lambda: self.operations.authorizer.remove(wanted))

    # quotas

    def set_quota(
        self,
        quotas: Mapping[str, float | None],
        *,
        user: str | None = "",
        client_id: str | None = "",
        ip: str | None = "",
    ) -> None:
        """Set quotas by Kafka's names (None: remove) of a user, a client id, both together, or an address.

        A name of None is the default entity, whose quotas apply to entities without their own. Raises ValueError for
        quotas that are invalid for the entity.
        """
        named = ((USER, user), (CLIENT_ID, client_id), (IP, ip))
        self.call_in_loop(lambda: self.operations.set_quota(entity(part for part in named if part[1] != ""), quotas))

    # metrics and records

    def metrics(self) -> MetricsSnapshot:
        """Return the current values of all metrics (`metrics.prometheus` writes them as text)."""
        from dualwrite.broker_emulator.metrics.snapshot import collect  # imported only when needed, as control is

        return self.call_in_loop(lambda: collect(self.cluster))

    def log(self, topic: str, partition: int = 0) -> LogSnapshot:
        """Return the current state of a partition. Raises KeyError if it is unknown."""
        return self.call_in_loop(lambda: snapshot(self.operations.partition(topic, partition)))

    def records(self, topic: str, partition: int | None = None, *, read_committed: bool = True) -> list[Record]:
        """Return the records of a topic or of one partition, as a consumer gets them: values, keys, headers, offsets.

        They are ordered by partition and offset, up to the last stable offset or, without `read_committed`, up to the
        high watermark. A topic that was never used has no records. Raises KeyError for an unknown partition,
        UnsupportedCompressionError if the package cramjam is needed and not installed.
        """
        logs = self.call_in_loop(lambda: self._read(topic, partition))
        return [record for log in logs for record in _visible(log, read_committed=read_committed)]

    def _read(self, topic: str, partition: int | None) -> list[LogSnapshot]:
        if topic not in self.cluster.topics:
            return []
        if partition is not None:
            return [snapshot(self.operations.partition(topic, partition))]
        return [snapshot(each) for each in self.operations.topic(topic).partitions]

    # threads

    @property
    def _running(self) -> RunningCluster:
        if self._run is None:
            raise RuntimeError("the emulator is not running")
        return self._run

    @property
    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the emulator is not running")
        return self._loop

    def _await(self, work: Coroutine[Any, Any, T], timeout_s: float = _CALL_TIMEOUT_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running_loop).result(timeout_s)

    def call_in_loop(self, function: Callable[[], T]) -> T:
        """Run `function` in the emulator's loop; return its result or raise its error."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)

        self._running_loop.call_soon_threadsafe(run)
        return outcome.result(_CALL_TIMEOUT_S)


def _visible(log: LogSnapshot, *, read_committed: bool) -> Iterator[Record]:
    end_offset = log.last_stable_offset if read_committed else log.high_watermark
    return visible_records(
        log.batches, start_offset=log.log_start_offset, end_offset=end_offset, read_committed=read_committed
    )


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
