"""The connection pool of one cluster: addresses, connecting with back-off, and which connection to use.

A broker reads the next request of a connection only after it has responded to the previous one, so many busy producers
on one connection would wait for one another. A node therefore gets another connection whenever all its connections are
busy, up to `connections.max.per.node` and never more than there are users; idle producers cost none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Final

from dualwrite.client.error_texts import LastError, reason_of
from dualwrite.client.late_log import log_guarded
from dualwrite.client.messages import Metadata, MetadataResponse
from dualwrite.client.pacing import Backoff
from dualwrite.client.wire import codec
from dualwrite.client.wire.connection import Connection, Connector
from dualwrite.client.wire.frames import Framer
from dualwrite.client.wire.topology import Address, Topology
from dualwrite.client.wire.versions import common_version, versions_wanted
from dualwrite.errors import Api, AuthenticationError, FatalError

_PATIENCE_MS: Final = 100.0
"""How long to wait for another connection if all are busy: the requests queued on those may take much longer."""

_NEXT_CANDIDATE_MS: Final = 1_000.0
"""How long to wait for a broker before trying the next one: a machine that is gone does not even refuse."""

_FRESH_MS: Final = 100.0
"""How long a failed attempt proves that a broker cannot be reached, if the back-off is not longer."""

_REFUSED_PAUSE_MS: Final = 10_000.0
"""The pause after a refused login, unless a caller asks for a retry: each one may count towards locking the account."""

_log = logging.getLogger(__name__)


class NodeState(Enum):
    """Why there is no connection to a node."""

    CONNECTING = "connecting"
    FAILED = "failed, waiting to try again"


class _Node:
    """The connections to one address, and when to try another one."""

    __slots__ = (
        "address",
        "backoff",
        "connecting",
        "connections",
        "failed_until_ms",
        "losses",
        "refused_in",
        "retry_at_ms",
        "tasks",
        "unserved",
    )

    def __init__(self, address: Address, backoff: Backoff) -> None:
        self.address: Final = address
        self.backoff: Final = backoff
        self.connections: list[Connection] = []
        # the users for which a connection is being opened, and until when they wait for it if there are others
        self.connecting: dict[object, float] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.retry_at_ms = 0.0
        # until when the last attempt, which failed, proves that the broker is away; None if it succeeded
        self.failed_until_ms: float | None = None
        self.refused_in = -1
        self.unserved = False
        self.losses = 0

    def connectable_at_ms(self, attempt: int) -> float:
        """Return from when on another connection may be tried. `attempt` counts the retries that callers requested."""
        return self.retry_at_ms + (_REFUSED_PAUSE_MS if self.refused_in == attempt else 0.0)

    def is_away(self, now_ms: float) -> bool:
        """Return whether the last attempt has failed: just now, or earlier and with only silence since."""
        if self.failed_until_ms is None:
            return False
        is_silent = bool(self.connecting) and now_ms >= _next_candidate_at_ms(min(self.connecting.values()))
        return is_silent or now_ms < self.failed_until_ms

    def attempt_failed(self, now_ms: float) -> None:
        """Note that the broker cannot be reached, and wait before the next attempt."""
        self.retry_at_ms = now_ms + self.backoff.failed()
        self.failed_until_ms = max(self.retry_at_ms, now_ms + _FRESH_MS)

    def __str__(self) -> str:
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ConnectionPool:
    """The connections to all brokers, in one loop, which calls `on_change` when one came up, failed, or was lost.

    `users`: how many users share the pool; may be set from any thread. `refusal`: why the last connection could not be
    opened, if a setting or an account of the broker is to blame; a `FatalError`, for good, if an address of the known
    cluster leads to another one, where producer ids are those of other producers. `failing_since_ms`: when the first
    attempt to connect failed since there was a connection; None if there is one, or if no attempt has failed.
    """

    def __init__(
        self,
        *,
        bootstrap: Sequence[Address],
        topology: Topology,
        framer: Framer,
        connector: Connector,
        request_timeout_ms: float,
        max_per_node: int,
        new_backoff: Callable[[], Backoff],
        clock_ms: Callable[[], float],
        last_error: LastError,
        on_change: Callable[[], None],
    ) -> None:
        self.users = 0
        self.refusal: AuthenticationError | FatalError | None = None
        self.failing_since_ms: float | None = None
        self._attempt = 0
        self._bootstrap = list(bootstrap)
        self._topology = topology
        self._framer = framer
        self._connector = connector
        self._request_timeout_ms = request_timeout_ms
        self._max_per_node = max_per_node
        self._new_backoff = new_backoff
        self._clock_ms = clock_ms
        self._last_error = last_error
        self._on_change = on_change
        self._nodes: dict[Address, _Node] = {}
        self._verifies = False
        """Whether new connections are asked for the id of their cluster: an earlier one was lost, or not opened."""
        self._closed = False

    # ---- which connection to use ----------------------------------------------------------------------------

    def to_node(self, node_id: int, now_ms: float, owner: object) -> Connection | NodeState:
        """Return the least busy connection to a node, or why there is none; opens one if needed."""
        address = self._topology.addresses.get(node_id)
        return NodeState.FAILED if address is None else self._to_address(address, now_ms, owner)

    def losses(self, node_id: int) -> int:
        """Return how many connections to a node have been lost."""
        node = self._nodes.get(self._topology.addresses.get(node_id, ("", 0)))
        return 0 if node is None else node.losses

    def to_any(self, now_ms: float, owner: object) -> Connection | NodeState:
        """Return the least busy connection to any broker; if there is none, try the next broker."""
        up = [connection for node in self._nodes.values() for connection in node.connections]
        if up:
            return _least_busy(up)
        silent = {node.address: max(node.connecting.values()) for node in self._nodes.values() if node.connecting}
        if any(now_ms < _next_candidate_at_ms(at_ms) for at_ms in silent.values()):
            return NodeState.CONNECTING
        for address in self._known:
            if address not in silent and self._to_address(address, now_ms, owner) is NodeState.CONNECTING:
                return NodeState.CONNECTING
        return NodeState.CONNECTING if silent else NodeState.FAILED

    @property
    def _known(self) -> dict[Address, None]:
        """All addresses, those of the brokers first."""
        return dict.fromkeys([*self._topology.addresses.values(), *self._bootstrap])

    def unreachable_since_ms(self, now_ms: float) -> float | None:
        """Return since when no broker can be reached; None if one can, or has not been tried lately."""
        if self.failing_since_ms is None:
            return None
        known = map(self._nodes.get, self._known)
        return self.failing_since_ms if all(node is not None and node.is_away(now_ms) for node in known) else None

    def _to_address(self, address: Address, now_ms: float, owner: object) -> Connection | NodeState:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(address, self._new_backoff())
        if node.connections:
            first = node.connections[0]
            return first if first.in_flight == 0 else self._least_busy_or_another(node, now_ms, owner)
        if not node.connecting:
            self._start_connecting(node, now_ms, owner)
        return NodeState.CONNECTING if node.connecting else NodeState.FAILED

    def _least_busy_or_another(self, node: _Node, now_ms: float, owner: object) -> Connection | NodeState:
        """Return the least busy connection of a node, unless one that is being opened is worth waiting for.

        Each user waits only for a connection opened for it, so that a crowd does not wait for a few.
        """
        found = _least_busy(node.connections)
        if found.in_flight == 0:
            return found
        most = min(self._max_per_node, self.users)
        if owner not in node.connecting and len(node.connections) + len(node.connecting) < most:
            self._start_connecting(node, now_ms, owner)
        return NodeState.CONNECTING if now_ms < node.connecting.get(owner, 0.0) else found

    def wake_at_ms(self, now_ms: float) -> float | None:
        """Return when to look again: a failed address may be retried, the next broker may be tried instead of a silent
        one, or a busy connection has become better than waiting for another one."""
        connecting = [at_ms for node in self._nodes.values() for at_ms in node.connecting.values()]
        due_ms = [node.connectable_at_ms(self._attempt) for node in self._nodes.values()]
        due_ms += connecting
        due_ms += map(_next_candidate_at_ms, connecting)
        return min((at_ms for at_ms in due_ms if at_ms > now_ms), default=None)

    def retry_refused(self) -> None:
        """Try refused logins again, after their back-off, because a new call needs them. From any thread."""
        if isinstance(self.refusal, AuthenticationError):
            self.refusal = None
            self._attempt += 1

    # ---- connecting -----------------------------------------------------------------------------------------

    def _start_connecting(self, node: _Node, now_ms: float, owner: object) -> None:
        if now_ms >= node.connectable_at_ms(self._attempt) and not self._closed and not self.has_moved:
            node.connecting[owner] = now_ms + _PATIENCE_MS
            task = asyncio.get_running_loop().create_task(self._connect(node, owner))
            node.tasks.add(task)
            task.add_done_callback(node.tasks.discard)

    async def _connect(self, node: _Node, owner: object) -> None:
        host, port = node.address
        connection: Connection | None = None
        refused = False
        try:
            connection = await self._connector.connect(
                host,
                port,
                lambda: Connection(
                    framer=self._framer,
                    request_timeout_ms=self._request_timeout_ms,
                    on_lost=lambda lost: self._lost(node, lost),
                ),
                timeout_ms=self._request_timeout_ms,
                unserved_before=node.unserved,
                check=partial(self._verify, node) if self._verifies and self._topology.cluster_id else None,
            )
        except FatalError:
            refused = True
        except AuthenticationError as error:
            refused = True
            self._refuse(node, error)
        except (OSError, ValueError, OverflowError) as error:  # the last two: an invalid host or port
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            self._note(f"cannot connect to {node}: {reason}")
        except Exception as error:
            log_guarded(_log, logging.ERROR, "a bug while connecting to %s; it is tried again", node, exc_info=True)
            self._note(f"a bug while connecting to {node}: {type(error).__name__}: {error}")
        finally:  # else the node would be "connecting" for ever
            del node.connecting[owner]
        if connection is None or connection.lost:
            self._attempt_failed(node, reached=refused or connection is not None)
        else:
            node.backoff.succeeded()
            node.retry_at_ms = 0.0
            node.failed_until_ms = None
            node.refused_in = -1
            node.connections.append(connection)
            if not self.has_moved:
                self.refusal = None
            self.failing_since_ms = None
        self._on_change()

    async def _verify(self, node: _Node, connection: Connection) -> None:
        """Raise `FatalError` if the broker of a new connection belongs to another cluster than the known one."""
        request = Metadata(())
        version = common_version(versions_wanted(request), connection.features.versions.get(Api.METADATA))
        if version is None:
            return
        try:
            body = await connection.request(Api.METADATA, version, codec.encode(request, version))
        except ConnectionError:  # as from a listener that requires a login by now
            node.unserved = True
            raise
        response = codec.decode(request, body, version)
        assert isinstance(response, MetadataResponse)
        if self.leads_elsewhere(response.cluster_id):
            assert self.refusal is not None
            raise self.refusal

    def leads_elsewhere(self, cluster_id: str) -> bool:
        """Return whether a response with this id comes from another cluster; refuse all connections from then on."""
        known = self._topology.cluster_id
        if not known or cluster_id in ("", known):
            return False
        self.refusal = FatalError(
            f"the addresses of Kafka cluster {known!r} lead to another cluster now, {cluster_id!r}, where producer ids "
            "belong to other producers; it gets no more requests: close this client and create a new one, which works "
            "with the cluster that it finds"
        )
        self._note(str(self.refusal))
        return True

    @property
    def has_moved(self) -> bool:
        """Whether an address has led to another cluster."""
        return isinstance(self.refusal, FatalError)

    def _attempt_failed(self, node: _Node, *, reached: bool) -> None:
        """Note a failed attempt. A broker that was `reached`, and refused the login for example, is not away."""
        self._verifies = True
        now_ms = self._clock_ms()
        node.attempt_failed(now_ms)
        if reached:
            node.failed_until_ms = None
            self.failing_since_ms = None
        elif self.failing_since_ms is None and not any(each.connections for each in self._nodes.values()):
            self.failing_since_ms = now_ms

    def _refuse(self, node: _Node, error: AuthenticationError) -> None:
        if self.has_moved:
            return
        refusal = AuthenticationError(f"cannot connect to {node}: {error}", error_code=error.error_code)
        refusal.__cause__ = error.__cause__
        self._note(str(refusal))
        node.refused_in = self._attempt
        self.refusal = refusal

    def _lost(self, node: _Node, connection: Connection) -> None:
        if connection not in node.connections:
            return
        self._verifies = True
        node.unserved = connection.unserved
        node.losses += 1
        node.connections.remove(connection)
        if not node.connections:  # a broker that goes away closes all of them, which is one failure
            node.retry_at_ms = self._clock_ms() + node.backoff.failed()
        if not self._closed:
            self._note(f"{node}: {connection.problem}")
        self._on_change()

    # ---- explanations for timeouts --------------------------------------------------------------------------

    def _note(self, sentence: str) -> None:
        log_guarded(_log, logging.INFO, "%s", sentence)
        self._last_error.note(self._clock_ms(), sentence)

    def waited_for(self, owner: object) -> str | None:
        """Describe the response that this user waits for, or that there is no connection yet; from any thread."""
        nodes = tuple(self._nodes.values())
        for node in nodes:
            for connection in tuple(node.connections):
                waiting = connection.waits_for(owner)
                if waiting is not None:
                    return f"{node} has not responded to {waiting} yet"
        for node in nodes:
            if node.connecting and not node.connections:
                return f"still connecting to {node}"
        return None

    # ---- the end --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all connections at once, and wait until all attempts to connect have ended."""
        self._closed = True
        tasks = [task for node in self._nodes.values() for task in node.tasks]
        for task in tasks:
            task.cancel()
        for node in self._nodes.values():
            for connection in node.connections:
                connection.close()
        await asyncio.gather(*tasks, return_exceptions=True)


def _next_candidate_at_ms(patient_until_ms: float) -> float:
    """Return when to try another broker beside one that is being connected to, from the end of its users' patience."""
    return patient_until_ms - _PATIENCE_MS + _NEXT_CANDIDATE_MS


def _least_busy(connections: list[Connection]) -> Connection:
    first = connections[0]
    return first if first.in_flight == 0 else min(connections, key=Connection.load)
