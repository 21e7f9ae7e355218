"""The life of a client's connection: its limits, pauses and end. `server.py` serves its frames."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.messages.call import CloseConnectionError
from dualwrite.broker_emulator.quotas.client_quotas import Quota
from dualwrite.broker_emulator.security.principal import ANONYMOUS
from dualwrite.broker_emulator.slices import Turn
from dualwrite.broker_emulator.text import log_text

if TYPE_CHECKING:
    from dualwrite.broker_emulator.api.registry import Api
    from dualwrite.broker_emulator.clock import Timer
    from dualwrite.broker_emulator.cluster.node import Node
    from dualwrite.broker_emulator.security.login import Login

_MAX_UNREAD = 1 << 20
"""Bytes of responses to buffer for a client that does not read them; beyond this, its requests are not served."""
MAX_UNREAD_OF_ALL = 512 << 20
"""Such bytes of all connections together; beyond this, the connections that have not read for longest are closed."""
LINES_PER_INTERVAL = 50
INTERVAL_S = 10.0


class MalformedFrameError(Exception):
    """Bytes that are not a request that this broker serves; the message has the reason."""


class ConnectionLimitError(Exception):
    """More connections than the broker accepts; the message names the setting."""


class ClosingLog:
    """Logs why connections are closed: at most `LINES_PER_INTERVAL` lines per `INTERVAL_S`, then a count of others."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._interval_began_s = float("-inf")
        self._lines = 0
        self._suppressed = 0

    def log(self, now_s: float, message: str, error: BaseException | None = None) -> None:
        """Log one reason; an unexpected `error` is always logged, with its traceback."""
        if error is not None:
            self._logger.error(message, exc_info=error)
            return
        if now_s - self._interval_began_s >= INTERVAL_S:
            if self._suppressed:
                self._logger.warning("%d more connections were closed for similar reasons", self._suppressed)
            self._interval_began_s, self._lines, self._suppressed = now_s, 0, 0
        self._lines += 1
        if self._lines <= LINES_PER_INTERVAL:
            self._logger.warning(message)
        else:
            self._suppressed += 1


class ClientTransport(asyncio.Protocol):
    """The transport of one client to one node, over the listener of this name."""

    login: Login | None = None
    """Set at a listener with SASL (`sasl.py`)."""

    def __init__(self, node: Node, listener: str, closing_log: ClosingLog) -> None:
        self.node = node
        self.listener = listener
        self._closing_log = closing_log
        self.client_id: str | None = None
        self.peer_host = ""
        self.principal = ANONYMOUS
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._work: asyncio.Task[None] | None = None
        self._work_api: Api | None = None
        self._rest: Turn | None = None
        """Serves further requests of the client in a later turn of the loop."""
        self._silent = False
        self._unread = False
        self.unread_since_s = 0.0
        self._muted: Timer | None = None
        """Runs while the client is muted because it exceeded a quota."""
        self._is_paused = False
        """Whether the connection is unread or muted."""
        self._held_frames: list[bytes] | None = None
        """Responses that are ready but wait for an earlier one."""
        self._loop = asyncio.get_running_loop()
        self._last_active_s = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._max_idle_s = node.cluster.config.connections_max_idle_ms / 1000

    @abstractmethod
    def _resume_serving(self) -> None:
        """Serve the frames that arrived while the connection was paused, or a request was waiting."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's transport is a Transport
        self.peer_host = (transport.get_extra_info("peername") or ("",))[0]
        if not self.node.is_alive:
            self.abort()
            return
        excess = self._excess()
        if excess is not None:
            self._close(ConnectionLimitError(excess))
            return
        self.node.connections.add(self)
        self.node.counters.connections_made += 1
        transport.set_write_buffer_limits(high=_MAX_UNREAD)  # type: ignore[attr-defined]  # as above
        self._last_active_s = self._loop.time()
        self._idle_timer = self._loop.call_later(self._max_idle_s, self._close_if_idle)
        if self.node.cluster.quotas.is_active:
            too_early_ms = self.node.quotas.connected(self.peer_host)
            if too_early_ms:
                self._delay_closing(too_early_ms)

    def _excess(self) -> str | None:
        """Return the limit that another connection would exceed, or None."""
        config, others = self.node.config, self.node.connections
        if len(others) >= config.max_connections:
            return f"max.connections={config.max_connections}"
        per_ip = config.max_connections_per_ip
        if len(others) >= per_ip and sum(other.peer_host == self.peer_host for other in others) >= per_ip:
            return f"max.connections.per.ip={per_ip}"
        return None

    def _close_if_idle(self) -> None:
        """Close the connection if no data came for too long; it is not idle while a request is in progress."""
        now_s = self._loop.time()
        if self._work is not None:
            self._last_active_s = now_s
        left_s = self._last_active_s + self._max_idle_s - now_s
        if left_s > 0:
            self._idle_timer = self._loop.call_later(left_s, self._close_if_idle)
        else:
            self._log_closing(f"idle for connections.max.idle.ms={self._max_idle_s * 1000:.0f}")
            self.abort()  # an orderly close would not reach a client that does not read either

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None  # a request in progress is still finished, as in Kafka
        self._buffer.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._muted is not None:
            self._muted.cancel()
        if self._rest is not None:
            self._rest.cancel()
        if self._work is not None and self._work_api is not None and self._work_api.is_abandonable:
            self._work.cancel()
        self.node.disconnected(self)

    def pause_writing(self) -> None:
        self._unread = self._is_paused = True
        self.unread_since_s = self._loop.time()
        self._limit_unread()

    def _limit_unread(self) -> None:
        """Close the connections that have not read for longest, while all together have too many unread bytes."""
        unread = [
            other
            for node in self.node.cluster.nodes.values()
            for other in node.connections
            if isinstance(other, ClientTransport) and other.unread_bytes
        ]
        too_much = sum(other.unread_bytes for other in unread) - MAX_UNREAD_OF_ALL
        for other in sorted(unread, key=lambda other: other.unread_since_s) if too_much > 0 else ():
            too_much -= other.unread_bytes
            other.stop_waiting_for_reads()
            if too_much <= 0:
                return

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that the client must read before it is served again."""
        return self._transport.get_write_buffer_size() if self._unread and self._transport is not None else 0

    def stop_waiting_for_reads(self) -> None:
        """Close the connection because its client does not read."""
        self._log_closing(
            f"it does not read its responses, and all such clients together have more than {MAX_UNREAD_OF_ALL} bytes "
            "to read"
        )
        self.abort()

    def resume_writing(self) -> None:
        self._unread = False
        self._resume()

    def _resume(self) -> None:
        self._is_paused = self._unread or self._muted is not None
        if self._work is None:
            self._resume_serving()

    def _mute(self, duration_ms: int) -> None:
        """Stop serving for a while, as Kafka does when a client has exceeded a quota (KIP-219)."""
        if self._muted is not None:
            self._muted.cancel()
        self._is_paused = True
        self._muted = self.node.cluster.clock.call_later(duration_ms, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self._resume()

    def _delay_closing(self, duration_ms: int) -> None:
        """Ignore a connection that exceeds the rate of its address, and close it later (KIP-612)."""
        self.silence()
        reason = ConnectionLimitError(f"{Quota.CONNECTION_CREATION_RATE} of {self.peer_host}")
        self._muted = self.node.cluster.clock.call_later(duration_ms, lambda: self._close(reason))

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def write(self, frame: bytes) -> None:
        """Send a frame, or keep it until an earlier delayed response is sent."""
        if self._held_frames is not None:
            self._held_frames.append(frame)
        elif self._transport is not None:
            self._transport.write(frame)

    # used by faults only

    def silence(self) -> None:
        """Stop reading requests and sending responses, but stay open."""
        self._silent = True
        self._buffer.clear()

    def close_orderly(self) -> None:
        """Close once the frames written so far are sent."""
        if self._transport is not None:
            self._transport.close()

    def hold_back_responses(self) -> None:
        """Keep the responses of the following requests until `release_responses`."""
        self._held_frames = []

    def release_responses(self, first: bytes | None) -> None:
        """Send `first`, then the responses that were kept."""
        held, self._held_frames = self._held_frames or [], None
        for frame in (first, *held):
            if frame is not None:
                self.write(frame)

    # closing

    def abort(self) -> None:
        """Close at once, as a broken network does."""
        if self._transport is not None:
            self._transport.abort()

    def kill(self) -> None:
        """Close because the node has died: a request in progress is never finished."""
        self.abort()
        if self._work is not None:
            self._work.cancel()

    def close_because(self, reason: CloseConnectionError) -> None:
        """Close once the frames written so far are sent, and log the reason."""
        self._close(reason)

    def _close(self, reason: BaseException) -> None:
        expected = isinstance(reason, MalformedFrameError | CloseConnectionError | ConnectionLimitError)
        self._log_closing(log_text(reason), None if expected else reason)
        if self._transport is not None:
            self._transport.close()

    def _log_closing(self, reason: str, error: BaseException | None = None) -> None:
        client = f"{self.peer_host} (client id {log_text(repr(self.client_id))})"
        message = f"node {self.node.node_id} closes the connection of {client}: {reason}"
        self._closing_log.log(self._loop.time(), message, error)
