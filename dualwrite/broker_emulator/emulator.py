"""`Emulator`: a whole cluster in this process, with its own event loop in a thread of its own.

Every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from dualwrite.broker_emulator.clock import Clock, SystemClock, Timer, VirtualClock
from dualwrite.broker_emulator.cluster import Cluster
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.faults import Faults
from dualwrite.broker_emulator.log.partition_log import ProducerDescription
from dualwrite.broker_emulator.node import Node
from dualwrite.broker_emulator.pause_points import Hold, Match, PausePoint
from dualwrite.broker_emulator.server import Connection
from dualwrite.broker_emulator.transactions.results import TransactionDescription

_START_TIMEOUT_S = 30.0
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
        reached = asyncio.run_coroutine_threadsafe(self._hold.reached.wait(), self._loop)
        try:
            reached.result(timeout_s)
        except TimeoutError:
            reached.cancel()
            raise TimeoutError(f"{self._hold.point} was not reached within {timeout_s} s") from None

    def release(self) -> None:
        """Let everybody go who waits at the point, now and later."""
        self._loop.call_soon_threadsafe(self._hold.release)


class Emulator:
    """A Kafka cluster of `nodes` brokers; `with Emulator() as emulator:` starts and stops it.

    `listen` is host:port of the first node; the others get the following ports, or free ones where the port is 0.
    `topics` maps names to partition counts and is created before the first client can connect.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        listen: str = "127.0.0.1:0",
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
        topics: Mapping[str, int] | None = None,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster needs a node, not {nodes}")
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"listen takes host:port, not {listen!r}")
        self.config = config or BrokerConfig()
        self.clock: Clock = clock or SystemClock()
        self.faults = Faults()
        self.bootstrap_servers = ""
        self._node_count = nodes
        self._host = host
        self._port = int(port)
        self._topics = dict(topics or {})
        self._cluster: Cluster  # from start() on
        self._servers: list[asyncio.AbstractServer] = []
        self._timers: list[Timer] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # life

    def start(self) -> Self:
        """Start serving. Raises what kept it from starting (OSError when an address is taken)."""
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
        """Stop serving: connections are closed, the data is gone. Harmless when it does not run."""
        if self._thread is None or self._loop is None:
            return
        self._await(self._stop())
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
        cluster = self._cluster = Cluster(self.config, self.clock, self.faults)
        for node_id in range(self._node_count):
            await self._add_node(node_id)
        cluster.create_internal_topics()
        for name, partitions in self._topics.items():
            cluster.create_topic(name, partitions)
        for topic in cluster.topics.values():
            for partition in topic.partitions:
                cluster.nodes[partition.leader_id].lead(partition)
        self.bootstrap_servers = ",".join(f"{node.host}:{node.port}" for node in cluster.nodes.values())
        self._schedule()
        for server in self._servers:
            await server.start_serving()  # last: nobody may meet a cluster that is not complete

    async def _add_node(self, node_id: int) -> None:
        port = self._port + node_id if self._port else 0
        node = Node(node_id, self._cluster, self._host, port)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(node), self._host, port, start_serving=False)
        node.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)
        self._cluster.nodes[node_id] = node

    def _schedule(self) -> None:
        """The periodic work of the brokers."""
        config, every = self.config, self.clock.call_every
        for node in self._cluster.nodes.values():
            timed_out_ms = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            expired_ms = config.transaction_remove_expired_transaction_cleanup_interval_ms
            self._timers.append(every(timed_out_ms, node.transactions.abort_timed_out))
            self._timers.append(every(expired_ms, node.transactions.expire_transactional_ids))
        self._timers.append(every(config.producer_id_expiration_check_interval_ms, self._cluster.expire_producers))

    async def _stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for server in self._servers:
            server.close()
        self._timers.clear()
        self._servers.clear()
        for node in self._cluster.nodes.values():
            for connection in list(node.connections):
                connection.abort()
            await node.transactions.shutdown()
        await _cancel_other_tasks()

    # for tests

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic. Raises ValueError when the name is taken or not legal."""
        self._call(lambda: self._cluster.create_topic(name, partitions))

    def advance_clock(self, duration_ms: int) -> None:
        """Move the broker's time forward; every timer that became due has run when this returns.

        What the timers began (a server-side abort writes its markers afterwards) may still be in work. Raises
        TypeError when the emulator does not run on a VirtualClock.
        """
        clock = self.clock
        if not isinstance(clock, VirtualClock):
            raise TypeError("advance_clock needs Emulator(clock=VirtualClock())")
        self._call(lambda: clock.advance(duration_ms))

    def disconnect_clients(self, *, client_id: str | None = None) -> int:
        """Break connections abruptly: those of `client_id`, or all. Returns how many."""
        return self._call(lambda: self._disconnect(client_id))

    def _disconnect(self, client_id: str | None) -> int:
        connections = [
            connection
            for node in self._cluster.nodes.values()
            for connection in node.connections
            if client_id is None or connection.client_id == client_id
        ]
        for connection in connections:
            connection.abort()
        return len(connections)

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
        return self._call(self._describe_transactions)

    def _describe_transactions(self) -> list[TransactionDescription]:
        return sorted(
            (
                node.transactions.describe(listing.transactional_id)
                for node in self._cluster.nodes.values()
                for listing in node.transactions.list().transactions
            ),
            key=lambda description: description.transactional_id,
        )

    def log(self, topic: str, partition: int = 0) -> LogSnapshot:
        """A partition as it is now. Raises KeyError when there is none."""
        return self._call(lambda: self._snapshot(topic, partition))

    def _snapshot(self, topic: str, index: int) -> LogSnapshot:
        partition = self._cluster.partition(topic, index)
        if partition is None:
            raise KeyError(f"{topic}-{index}")
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


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _cancel_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
