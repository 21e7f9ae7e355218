"""asyncio listeners: frames in, frames out.

One request at a time per connection, answered in order, as Kafka does (it mutes the channel while a request is
in work). A request that need not wait is answered within the call that delivered its bytes: its coroutine is
stepped once in place, and only what is left of one that really waits becomes a task.

Whatever a client sends or leaves undone ends its own connection at worst, with the reason in the log. What one
connection can make the broker keep is bounded: one frame of at most `socket.request.max.bytes`, held as it arrives and
not as it claims, what it sends on while a request waits, and one answer that it does not read.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Coroutine
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.k18_api_versions import unsupported_version_body
from dualwrite.broker_emulator.api.registry import Api, Call, CloseConnectionError, Schema, Served, schema
from dualwrite.broker_emulator.api.request_bounds import read_unsigned_varint
from dualwrite.broker_emulator.api.table import API_VERSIONS, APIS, PRODUCE
from dualwrite.broker_emulator.faults.service import serve_with_faults
from dualwrite.broker_emulator.log.segment import StorageError
from dualwrite.broker_emulator.net.suspended_coroutine import SuspendedCoroutine, begin
from dualwrite.broker_emulator.quotas.client_quotas import Quota
from dualwrite.broker_emulator.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from dualwrite.broker_emulator.clock import Timer
    from dualwrite.broker_emulator.cluster.node import Node
    from dualwrite.broker_emulator.security.login import Login

logger = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
_SIZE_BYTES = _SIZE.size
_unpack_size = _SIZE.unpack_from
_MAX_BUFFERED_WHILE_BUSY = 1 << 20
"""Bytes taken from a client that sends on while one of its requests waits; beyond that, it has to wait too."""
_MAX_UNREAD = 1 << 20
"""Bytes of answers kept for a client that does not read them; beyond that, no more of its requests are served."""

_HEADER = struct.Struct(">ihhih")  # frame size, api key, api version, correlation id, length of the client id
_HEADER_BYTES = _HEADER.size
_unpack_header = _HEADER.unpack_from


class MalformedFrameError(Exception):
    """Bytes that are no request this broker serves; the message says what is wrong with them."""


class ConnectionLimitError(Exception):
    """One connection more than the broker takes; the message names the setting."""


class Connection(asyncio.Protocol):
    """One client's connection to one node, over the listener of this name."""

    login: Login | None = None
    """Of a listener with SASL (`sasl_connection.py`)."""

    def __init__(self, node: Node, listener: str) -> None:
        self.node = node
        self.listener = listener
        self.client_id: str | None = None
        self.peer_host = ""
        self.principal = ANONYMOUS
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._work: asyncio.Task[None] | None = None
        self._work_api: Api | None = None
        self._silent = False
        self._unread = False
        self._muted: Timer | None = None
        """Until when a client that used up a quota is not served."""
        self._is_paused = False
        """Unread or muted."""
        self._request_bytes = 0
        self._eager_ns = 0
        """How long the request in work took before it had to wait."""
        self._behind: list[bytes] | None = None
        """Answers that are ready and wait for one before them."""
        self._loop = asyncio.get_running_loop()
        self._last_active_s = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        config = node.cluster.config
        self._max_frame_size = config.socket_request_max_bytes
        self._max_elements = config.max_request_elements
        self._max_idle_s = config.connections_max_idle_ms / 1000

    # what asyncio calls

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
                self._keep_waiting(too_early_ms)

    def _excess(self) -> str | None:
        """The limit that one more connection breaks."""
        config, others = self.node.config, self.node.connections
        if len(others) >= config.max_connections:
            return f"max.connections={config.max_connections}"
        per_ip = config.max_connections_per_ip
        if len(others) >= per_ip and sum(other.peer_host == self.peer_host for other in others) >= per_ip:
            return f"max.connections.per.ip={per_ip}"
        return None

    def _close_if_idle(self) -> None:
        """Close a connection on which nothing came for too long; a request in work is no idleness."""
        now_s = self._loop.time()
        if self._work is not None:
            self._last_active_s = now_s
        left_s = self._last_active_s + self._max_idle_s - now_s
        if left_s > 0:
            self._idle_timer = self._loop.call_later(left_s, self._close_if_idle)
        else:
            self._say(f"nothing came for connections.max.idle.ms={self._max_idle_s * 1000:.0f}")
            self.abort()  # who does not read would never see an orderly end either

    def connection_lost(self, exc: Exception | None) -> None:
        self.node.connections.discard(self)
        self._transport = None  # what was begun is finished all the same, as by a broker whose client is gone
        self._buffer.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._muted is not None:
            self._muted.cancel()
        if self._work is not None and self._work_api is not None and self._work_api.is_abandonable:
            self._work.cancel()

    def data_received(self, data: bytes) -> None:
        if self._silent:
            return
        self._last_active_s = self._loop.time()
        if self._work is None and not self._is_paused and not self._buffer:
            served = self._serve_frames(data)  # mostly all of it: one frame, which then is not copied
            if served < len(data):
                self._buffer += data[served:]
            return
        self._buffer += data
        if self._work is None and not self._is_paused:
            self._serve_buffered()
        elif self._transport is not None and len(self._buffer) > _MAX_BUFFERED_WHILE_BUSY:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._unread = self._is_paused = True

    def resume_writing(self) -> None:
        self._unread = False
        self._resume()

    def _resume(self) -> None:
        self._is_paused = self._unread or self._muted is not None
        if self._work is None:
            self._go_on()

    # quotas

    def _mute(self, duration_ms: int) -> None:
        """Serve nothing more for a while, as Kafka does with a client that used up a quota (KIP-219)."""
        if self._muted is not None:
            self._muted.cancel()
        self._is_paused = True
        self._muted = self.node.cluster.clock.call_later(duration_ms, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self._resume()

    def _throttled(self, call: Call, response: Any, duration_ns: int) -> Any:
        """What a client is answered whose quotas were looked at; it may be muted from now on."""
        message = schema(call.api.key, call.version)
        response, throttle_ms = self.node.quotas.throttled(
            call,
            response,
            request_bytes=self._request_bytes,
            request_ns=duration_ns if self._work is None else self._eager_ns,
            size_of=lambda answer: len(message.frame(0, answer)) - _SIZE.size,
        )
        if throttle_ms:
            self.node.counters.of(call.api.key).throttle_ms += throttle_ms
            self._mute(throttle_ms)
        return response

    def _keep_waiting(self, duration_ms: int) -> None:
        """Take nothing from a connection that was one too many for its address, and close it later (KIP-612)."""
        self.silence()
        reason = ConnectionLimitError(f"{Quota.CONNECTION_CREATION_RATE} of {self.peer_host}")
        self._muted = self.node.cluster.clock.call_later(duration_ms, lambda: self._close(reason))

    # frames in

    def _serve_buffered(self) -> None:
        buffer, self._buffer = self._buffer, bytearray()
        served = self._serve_frames(buffer)
        if served < len(buffer) and not self._silent:
            self._buffer = buffer[served:] if served else buffer

    def _serve_frames(self, buffer: bytes | bytearray) -> int:
        """Serve whole frames until there is none, or one has to wait; how many bytes they were."""
        start, length = 0, len(buffer)
        try:
            while length - start >= _SIZE_BYTES:
                (size,) = _unpack_size(buffer, start)
                if not 0 < size <= self._max_frame_size:
                    raise MalformedFrameError(f"frame size {size}, allowed are 1 to {self._max_frame_size}")
                end = start + _SIZE_BYTES + size
                if end > length:
                    break
                frame = buffer if end - start == length else bytes(memoryview(buffer)[start:end])
                start = end
                # mostly a frame is all that there is, and to copy one of a megabyte takes longer than to serve it
                self._serve(frame if isinstance(frame, bytes) else memoryview(frame).toreadonly())
                if start == length or not self._may_serve_another:
                    break
        except Exception as error:
            self._close(error)
        return start

    @property
    def _may_serve_another(self) -> bool:
        return self._work is None and not self._silent and not self._is_paused and self._is_open

    def _serve(self, frame: bytes | memoryview) -> None:
        """Serve one frame, which begins with its size."""
        if len(frame) < _HEADER_BYTES:
            raise MalformedFrameError(f"{len(frame) - _SIZE_BYTES} bytes are too few for a request header")
        _, key, version, correlation_id, client_id_length = _unpack_header(frame)
        node = self.node
        served = node.served.get((key, version)) or self._look_up(key, version)
        if served is None:
            self._refuse_version(key, version, correlation_id)
            return
        api, message = served
        try:
            self.client_id, offset = _rest_of_header(frame, client_id_length, message.flexible_request_header)
            if message.check_bounds is not None:
                message.check_bounds(frame, offset, self._max_elements)
            request, _ = message.read(frame, offset)
        except Exception as error:  # the codec raises many kinds, none of which means anything else
            raise MalformedFrameError(f"{api.schema_name} v{version} does not decode: {error!r}") from error
        call = Call(api, version, request, message.new, node, self.client_id, self.peer_host, self.principal, self)
        self._request_bytes = len(frame) - _SIZE_BYTES
        node.counters.bytes_in += len(frame)
        faults = node.cluster.faults
        if faults.active:  # which answer for themselves
            work = serve_with_faults(faults, call, self._handle, _Reply(self, message, correlation_id))
        else:
            work = self._handle(call)
        self._run(work, api, message, correlation_id)

    def _look_up(self, key: int, version: int) -> Served | None:
        """What serves this version, which the node remembers; None where the API exists and the version does not."""
        api = APIS.get(key)
        if api is None:
            raise MalformedFrameError(f"API key {key} is not served")
        if not api.min_version <= version <= api.max_version_for(self.node.cluster.config):
            return None
        served = self.node.served[key, version] = Served(api, schema(key, version))
        return served

    def _refuse_version(self, key: int, version: int, correlation_id: int) -> None:
        """ApiVersions is answered from the header alone (KIP-511); everything else ends the connection, as in Kafka."""
        if key != API_VERSIONS:
            raise MalformedFrameError(f"{APIS[key].schema_name} v{version} is not served")
        oldest = schema(API_VERSIONS, 0)
        self._write(oldest.frame(correlation_id, unsupported_version_body(oldest.new, self.node.cluster.config)))

    # answers out

    def _answer(self, message: Schema | None, correlation_id: int, response: Any) -> None:
        """Send what a request came to, unless it is None: then nothing is to be answered, or was already."""
        if message is not None and response is not None:
            self._write(self._encode(message, correlation_id, response))

    def _encode(self, message: Schema, correlation_id: int, response: Any) -> bytes:
        """The frame of a response, which is counted."""
        frame = message.frame(correlation_id, response)
        counters = self.node.counters
        counters.bytes_out += len(frame)
        codes = message.errors_of(response)
        if codes:
            counters.of(message.key).failed(codes)
        return frame

    async def _handle(self, call: Call) -> Any:
        began_ns = perf_counter_ns()
        cluster = self.node.cluster
        try:
            storage = cluster.storage
            writes = storage.writes
            response = await call.api.functions.handle(call)
            # the retry of a Produce writes nothing, but what it says is stored may not be on the disk yet
            if storage.is_behind and (storage.writes != writes or call.api.key == PRODUCE):
                await storage.flushed()
        except CloseConnectionError:
            raise
        except StorageError as error:
            logger.error("node %d cannot do %s: %s", self.node.node_id, call.api.schema_name, error)
            response = call.api.functions.refuse(call, ErrorCode.kafka_storage_error)
        except Exception:
            logger.exception("node %d failed at %s v%d", self.node.node_id, call.api.schema_name, call.version)
            response = call.api.functions.refuse(call, ErrorCode.unknown_server_error)
        duration_ns = perf_counter_ns() - began_ns
        self.node.counters.of(call.api.key).duration.add(duration_ns)
        return self._throttled(call, response, duration_ns) if cluster.quotas.is_active else response

    def _run(
        self, work: Coroutine[Any, Any, Any], api: Api, message: Schema | None = None, correlation_id: int = 0
    ) -> None:
        """Do `work` as far as it goes without waiting and answer what it gives; the rest of one that waits becomes
        this connection's work."""
        began_ns = perf_counter_ns() if self.node.cluster.quotas.is_active else 0
        begun = begin(work)
        if not isinstance(begun, SuspendedCoroutine):
            self._answer(message, correlation_id, begun)
            return
        self._eager_ns = perf_counter_ns() - began_ns if began_ns else 0
        if not self.node.is_alive:  # it died of this very request
            begun.close()
            return
        self._work_api = api
        self._work = asyncio.ensure_future(self._finish(begun, message, correlation_id))
        self._work.add_done_callback(self._work_done)

    async def _finish(self, rest: SuspendedCoroutine[Any], message: Schema | None, correlation_id: int) -> None:
        self._answer(message, correlation_id, await rest)

    def _work_done(self, work: asyncio.Task[None]) -> None:
        self._work = None
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self._close(error)
        self._go_on()

    def _go_on(self) -> None:
        """Serve what came while that had to wait."""
        if self._transport is not None and self._is_open and not self._is_paused:
            self._transport.resume_reading()
            self._serve_buffered()

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _write(self, frame: bytes) -> None:
        if self._behind is not None:
            self._behind.append(frame)
        elif self._transport is not None:
            self._transport.write(frame)

    # what only faults do

    def silence(self) -> None:
        """Take and answer nothing any more, and stay open."""
        self._silent = True
        self._buffer.clear()

    def close_orderly(self) -> None:
        """Close after what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def hold_back_answers(self) -> None:
        """Keep the answers of what is served from now on, until `release_answers`."""
        self._behind = []

    def release_answers(self, first: bytes | None) -> None:
        """Send `first`, and behind it what was kept."""
        behind, self._behind = self._behind or [], None
        for frame in (first, *behind):
            if frame is not None:
                self._write(frame)

    # endings

    def abort(self) -> None:
        """Close at once, as a broken network does."""
        if self._transport is not None:
            self._transport.abort()

    def kill(self) -> None:
        """End with the node: close at once, and never finish what is in work."""
        self.abort()
        if self._work is not None:
            self._work.cancel()

    def close_because(self, reason: CloseConnectionError) -> None:
        """Close after what was written is sent, with the reason in the log."""
        self._close(reason)

    def _close(self, reason: BaseException) -> None:
        expected = isinstance(reason, MalformedFrameError | CloseConnectionError | ConnectionLimitError)
        self._say(str(reason), None if expected else reason)
        if self._transport is not None:
            self._transport.close()

    def _say(self, reason: str, error: BaseException | None = None) -> None:
        who = f"{self.peer_host} (client id {self.client_id!r})"
        message = f"node {self.node.node_id} closes the connection of {who}: {reason}"
        self.node.cluster.closings.say(self._loop.time(), message, error)


class _Reply:
    """The way back for one request that a fault may have to do with."""

    def __init__(self, connection: Connection, message: Schema, correlation_id: int) -> None:
        self._connection = connection
        self._message = message
        self._correlation_id = correlation_id
        self._is_first = False

    def answer(self, response: Any) -> None:
        connection = self._connection
        frame = None if response is None else connection._encode(self._message, self._correlation_id, response)
        if self._is_first:
            connection.release_answers(frame)
        elif frame is not None:
            connection._write(frame)

    def abort(self) -> None:
        self._connection.abort()

    def close(self) -> None:
        self._connection.close_orderly()

    def silence(self) -> None:
        self._connection.silence()

    def overtake(self, answering: Coroutine[Any, Any, None]) -> None:
        self._is_first = True
        self._connection.hold_back_answers()
        self._connection.node.cluster.faults.run(answering)


def _rest_of_header(frame: bytes | memoryview, client_id_length: int, flexible: bool) -> tuple[str | None, int]:
    """The client id, and where the request begins. Raises ValueError or IndexError on a header that does not decode."""
    offset = _HEADER_BYTES
    client_id = None
    if client_id_length >= 0:
        end = offset + client_id_length
        if end > len(frame):
            raise IndexError(f"client id of {client_id_length} bytes")
        client_id = str(frame[offset:end], "utf-8")
        offset = end
    return client_id, _skip_tagged_fields(frame, offset) if flexible else offset


def _skip_tagged_fields(frame: bytes | memoryview, offset: int) -> int:
    if frame[offset] == 0:
        return offset + 1
    count, offset = read_unsigned_varint(frame, offset)
    for _ in range(count):
        _, offset = read_unsigned_varint(frame, offset)
        size, offset = read_unsigned_varint(frame, offset)
        offset += size
    return offset
