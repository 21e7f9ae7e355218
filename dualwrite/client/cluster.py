"""Who is who among the brokers, and one connection to each: metadata, addresses, connecting with back-off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final

from dualwrite.client.backoff import Backoff
from dualwrite.client.codec import Framer
from dualwrite.client.connection import Connection
from dualwrite.client.messages import Broker, MetadataAnswer
from dualwrite.client.problems import Problems, reason_of
from dualwrite.client.security import Security
from dualwrite.errors import AuthenticationError

NO_LEADER: Final = -1

_REFUSED_PAUSE_MS: Final = 10_000.0
"""After a refused login, unless a caller wants another try: each may count towards locking the account."""

Address = tuple[str, int]

_log = logging.getLogger(__name__)


class Topology:
    """What metadata said last. No I/O."""

    def __init__(self) -> None:
        self.addresses: dict[int, Address] = {}
        self._leaders: dict[str, tuple[int, ...]] = {}

    def learn_broker(self, broker: Broker) -> None:
        """Where a broker is, from any answer that says so."""
        self.addresses[broker.node_id] = (broker.host, broker.port)

    def apply(self, answer: MetadataAnswer) -> None:
        """Take new metadata over; a topic with an error keeps what was known of it."""
        for broker in answer.brokers:
            self.learn_broker(broker)
        for topic in answer.topics:
            if topic.error_code == 0 and topic.leaders:
                self._leaders[topic.name] = topic.leaders

    def partitions(self, topic: str) -> int:
        """How many partitions, 0 when the topic is not known."""
        return len(self._leaders.get(topic, ()))

    def leader(self, topic: str, partition: int) -> int:
        """The node id of the leader, or -1 when there is none or it is not known."""
        leaders = self._leaders.get(topic, ())
        return leaders[partition] if partition < len(leaders) else NO_LEADER

    def forget_leader(self, topic: str, partition: int) -> None:
        """The leader said that it is none."""
        leaders = self._leaders.get(topic)
        if leaders is not None and partition < len(leaders):
            self._leaders[topic] = (*leaders[:partition], NO_LEADER, *leaders[partition + 1 :])

    @property
    def topics(self) -> Iterable[str]:
        """All that are known."""
        return self._leaders.keys()


class NodeState(Enum):
    """How a connection stands."""

    READY = "ready"
    CONNECTING = "connecting"
    FAILED = "failed, waiting to try again"


class _Node:
    """One address."""

    __slots__ = ("address", "backoff", "connection", "refused_in", "retry_at_ms", "task", "unserved")

    def __init__(self, address: Address, backoff: Backoff) -> None:
        self.address = address
        self.backoff = backoff
        self.connection: Connection | None = None
        self.task: asyncio.Task[None] | None = None
        self.retry_at_ms = 0.0
        self.refused_in = -1
        self.unserved = False

    def connectable_at_ms(self, attempt: int) -> float:
        """From when on another connection may be tried. `attempt`: how often callers wanted one after a refusal."""
        return self.retry_at_ms + (_REFUSED_PAUSE_MS if self.refused_in == attempt else 0.0)

    def state(self, now_ms: float, attempt: int) -> NodeState | None:
        """None: not connected, and may be."""
        if self.connection is not None:
            return NodeState.READY
        if self.task is not None:
            return NodeState.CONNECTING
        return NodeState.FAILED if now_ms < self.connectable_at_ms(attempt) else None


class Connections:
    """Lives in one loop. `on_change` is called there after a connection came up, failed to, or was lost.

    `refusal`: why the last connection could not be made, where the settings or the broker's accounts are to blame.
    """

    def __init__(
        self,
        *,
        bootstrap: Sequence[Address],
        topology: Topology,
        framer: Framer,
        security: Security,
        request_timeout_ms: float,
        new_backoff: Callable[[], Backoff],
        clock_ms: Callable[[], float],
        problems: Problems,
        on_change: Callable[[], None],
    ) -> None:
        self.refusal: AuthenticationError | None = None
        self._attempt = 0
        self._bootstrap = list(bootstrap)
        self._topology = topology
        self._framer = framer
        self._security = security
        self._request_timeout_ms = request_timeout_ms
        self._new_backoff = new_backoff
        self._clock_ms = clock_ms
        self._problems = problems
        self._on_change = on_change
        self._nodes: dict[Address, _Node] = {}
        self._closed = False

    def retry_refused(self) -> None:
        """A caller waits anew: what was refused is tried again, after its back-off. From any thread."""
        if self.refusal is not None:
            self.refusal = None
            self._attempt += 1

    def to_node(self, node_id: int, now_ms: float) -> Connection | NodeState:
        """The connection, or why there is none yet; asking starts connecting."""
        address = self._topology.addresses.get(node_id)
        return NodeState.FAILED if address is None else self._to_address(address, now_ms)

    def to_any(self, now_ms: float) -> Connection | NodeState:
        """A connection to whichever broker: one that is up, else the next candidate is tried."""
        for node in self._nodes.values():
            if node.connection is not None:
                return node.connection
        if any(node.task is not None for node in self._nodes.values()):
            return NodeState.CONNECTING
        for address in dict.fromkeys([*self._topology.addresses.values(), *self._bootstrap]):
            found = self._to_address(address, now_ms)
            if found is not NodeState.FAILED:
                return found
        return NodeState.FAILED

    def _to_address(self, address: Address, now_ms: float) -> Connection | NodeState:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(address, self._new_backoff())
        if node.connection is not None:
            return node.connection
        state = node.state(now_ms, self._attempt)
        if state is not None:
            return state
        if self._closed:
            return NodeState.FAILED
        node.task = asyncio.get_running_loop().create_task(self._connect(node))
        return NodeState.CONNECTING

    def wake_at_ms(self, now_ms: float) -> float | None:
        """When a failed address may be tried again."""
        due_ms = [node.connectable_at_ms(self._attempt) for node in self._nodes.values()]
        return min((at_ms for at_ms in due_ms if at_ms > now_ms), default=None)

    async def _connect(self, node: _Node) -> None:
        host, port = node.address
        connection: Connection | None = None
        try:
            connection = await self._security.connect(
                host,
                port,
                lambda: Connection(
                    framer=self._framer,
                    request_timeout_ms=self._request_timeout_ms,
                    on_lost=lambda lost: self._lost(node, lost),
                ),
                timeout_ms=self._request_timeout_ms,
                unserved_before=node.unserved,
            )
        except AuthenticationError as error:
            self._refuse(node, error)
        except (OSError, ValueError, OverflowError) as error:  # the latter two: a host or port that cannot be one
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            self._note(f"cannot connect to {_named(node)}: {reason}")
        node.task = None
        if connection is None or connection.lost:
            node.retry_at_ms = self._clock_ms() + node.backoff.failed()
        else:
            node.backoff.succeeded()
            node.retry_at_ms = 0.0
            node.connection = connection
            node.refused_in = -1
            self.refusal = None
        self._on_change()

    def _refuse(self, node: _Node, error: AuthenticationError) -> None:
        refusal = AuthenticationError(f"cannot connect to {_named(node)}: {error}", error_code=error.error_code)
        refusal.__cause__ = error.__cause__
        self._note(str(refusal))
        node.refused_in = self._attempt
        self.refusal = refusal

    def _note(self, sentence: str) -> None:
        _log.info("%s", sentence)
        self._problems.note(self._clock_ms(), sentence)

    def obstacle(self, since_ms: float) -> str:
        """What a caller is told who has waited in vain since then; from any thread."""
        recent = self._problems.last(since_ms)
        if recent is not None:
            return f"last problem: {recent}"
        older = self._problems.last()
        return self._waited_for() or ("no problem was seen" if older is None else f"last problem: {older}")

    def _waited_for(self) -> str | None:
        for node in tuple(self._nodes.values()):
            if node.task is not None:
                return f"still connecting to {_named(node)}"
            oldest = None if node.connection is None else node.connection.oldest_request
            if oldest is not None:
                return f"{_named(node)} has not answered {oldest.kafka_name} yet"
        return None

    def _lost(self, node: _Node, connection: Connection) -> None:
        if node.connection is connection:
            if not self._closed:
                self._note(f"{_named(node)}: {connection.problem}")
            node.unserved = connection.unserved
            node.connection = None
            node.retry_at_ms = self._clock_ms() + node.backoff.failed()
            self._on_change()

    async def close(self) -> None:
        """Close all of them."""
        self._closed = True
        tasks = [node.task for node in self._nodes.values() if node.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self._nodes.values():
            if node.connection is not None:
                node.connection.close()


def _named(node: _Node) -> str:
    host, port = node.address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
