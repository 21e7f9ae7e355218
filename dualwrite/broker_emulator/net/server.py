"""The connection of a client: frames in, frames out.

A connection serves one request at a time and sends responses in order, as Kafka does (it mutes the channel while a
request is in progress). A request that does not have to wait is answered within the call that delivered its bytes: its
coroutine is stepped once in place, and a task is created only for the rest of a coroutine that really waits.

A misbehaving client can at worst get its own connection closed, with the reason in the log. The memory of one
connection is bounded: one frame of at most `socket.request.max.bytes`, allocated as it arrives and not by its claimed
size; the bytes that arrive while a request waits; and one unread response. `client_transport.py` bounds
the unread responses of all connections together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.connection import unsupported_version_body
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import API_VERSIONS, APIS, PRODUCE, Api
from dualwrite.broker_emulator.faults.service import serve_with_faults
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.messages.call import Call, CloseConnectionError
from dualwrite.broker_emulator.messages.schema import Schema, schema
from dualwrite.broker_emulator.net.client_transport import ClientTransport, ClosingLog, MalformedFrameError
from dualwrite.broker_emulator.net.requests import (
    HEADER_BYTES,
    SIZE_BYTES,
    TooLargeToDecodeAtOnceError,
    decoded,
    encoded_large,
    is_large,
    rest_of_header,
    unpack_header,
    unpack_size,
)
from dualwrite.broker_emulator.slices import Pace, later
from dualwrite.broker_emulator.suspended_coroutine import SuspendedCoroutine, begin

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.node import Node

logger = logging.getLogger(__name__)

_MAX_BUFFERED_WHILE_BUSY = 1 << 20
"""Bytes to buffer from a client that keeps sending while one of its requests waits; beyond this, reading pauses."""
_LONG_NS = 3_000_000
"""Responses that took longer to make may be large."""


class Connection(ClientTransport):
    """The connection of one client to one node, over the listener of this name."""

    def __init__(self, node: Node, listener: str, closing_log: ClosingLog) -> None:
        super().__init__(node, listener, closing_log)
        self._request_bytes = 0
        self._handled_ns = 0
        """The duration of the last handled request."""
        self._ran_before_wait_ns = 0
        """The time that the request in progress ran before it had to wait."""
        config = node.cluster.config
        self._max_frame_size = config.socket_request_max_bytes
        self._max_elements = config.max_request_elements

    def data_received(self, data: bytes) -> None:
        if self._silent:
            return
        self._last_active_s = self._loop.time()
        if self._work is None and not self._is_paused and not self._buffer:
            served = self._serve_frames(data)  # usually all of it: one frame, which is then not copied
            if served < len(data):
                self._buffer += data[served:]
            return
        self._buffer += data
        if self._work is None and not self._is_paused and self._rest is None:
            self._serve_buffered()
        elif self._transport is not None and len(self._buffer) > _MAX_BUFFERED_WHILE_BUSY:
            self._transport.pause_reading()

    def _throttled(self, call: Call, response: Any, duration_ns: int) -> Any:
        """Apply the quotas to a response and return it; mute the client if it has exceeded one."""
        message = schema(call.api.key, call.version)
        response, throttle_ms = self.node.quotas.throttled(
            call,
            response,
            request_bytes=self._request_bytes,
            request_ns=duration_ns if self._work is None else self._ran_before_wait_ns,
            size_of=lambda sized: len(message.frame(0, sized)) - SIZE_BYTES,
        )
        if throttle_ms:
            self.node.counters.by_api[call.api.key].throttle_ms += throttle_ms
            self._mute(throttle_ms)
        return response

    # frames in

    def _serve_buffered(self) -> None:
        buffer, self._buffer = self._buffer, bytearray()
        served = self._serve_frames(buffer)
        if served < len(buffer) and not self._silent:
            self._buffer = buffer[served:] if served else buffer

    def _serve_frames(self, buffer: bytes | bytearray) -> int:
        """Serve complete frames until none is left or a request has to wait; return the number of bytes served."""
        start, length, pace = 0, len(buffer), None
        try:
            while length - start >= SIZE_BYTES:
                (size,) = unpack_size(buffer, start)
                if not 0 < size <= self._max_frame_size:
                    raise MalformedFrameError(f"frame size {size}, allowed are 1 to {self._max_frame_size}")
                end = start + SIZE_BYTES + size
                if end > length:
                    break
                frame = buffer if end - start == length else bytes(memoryview(buffer)[start:end])
                start = end
                # usually the frame is the whole buffer, and copying a megabyte would take longer than serving it
                self._serve(frame if isinstance(frame, bytes) else memoryview(frame).toreadonly())
                if start == length or not self._may_serve_another:
                    break
                if pace is None:
                    pace = Pace()
                elif pace.is_over:
                    self._rest = later(self._serve_rest)
                    break
        except Exception as error:
            self._close(error)
        return start

    def _serve_rest(self) -> None:
        self._rest = None
        if self._work is None:
            self._resume_serving()

    @property
    def _may_serve_another(self) -> bool:
        return self._work is None and not self._silent and not self._is_paused and self._is_open

    def _serve(self, frame: bytes | memoryview) -> None:
        """Serve one frame, including its size field."""
        size = len(frame)
        if size < HEADER_BYTES:
            raise MalformedFrameError(f"{size - SIZE_BYTES} bytes are too few for a request header")
        _, key, version, correlation_id, client_id_length = unpack_header(frame)
        node = self.node
        api = APIS.get(key)
        if api is None:
            raise MalformedFrameError(f"API key {key} is not served")
        if not api.min_version <= version <= api.max_version_for(node.cluster.config):
            self._refuse_version(api, version, correlation_id)
            return
        message = schema(key, version)
        self._request_bytes = size - SIZE_BYTES
        node.counters.bytes_in += size
        try:
            self.client_id, offset = rest_of_header(
                frame, client_id_length, flexible=message.flexible_request_header, max_tags=self._max_elements
            )
            request = decoded(message, frame, offset, self._max_elements)
        except TooLargeToDecodeAtOnceError as large:
            self._run(self._serve_large(large, api, message, correlation_id), api, message, correlation_id)
            return
        except Exception as error:  # the codec raises many types, all of which mean this
            raise _does_not_decode(message, api, error) from error
        self._run(self._work_for(api, message, request, correlation_id), api, message, correlation_id)

    async def _serve_large(
        self, large: TooLargeToDecodeAtOnceError, api: Api, message: Schema, correlation_id: int
    ) -> Any:
        """Serve a request of very many elements: it is decoded in a thread, while others are served."""
        try:
            request = await asyncio.to_thread(large.decode)
        except Exception as error:  # as above
            raise _does_not_decode(message, api, error) from error
        return await self._work_for(api, message, request, correlation_id, is_large=True)

    def _work_for(
        self, api: Api, message: Schema, request: Any, correlation_id: int, is_large: bool = False
    ) -> Coroutine[Any, Any, Any]:
        node = self.node
        call = NodeCall(
            api,
            message.version,
            request,
            message.new,
            node,
            node.cluster,
            self.client_id,
            self.peer_host,
            self.principal,
            self,
            is_large,
        )
        faults = node.cluster.faults
        if faults.active:  # faults send the response themselves
            return serve_with_faults(faults, call, self._handle, _Reply(self, message, correlation_id))
        return self._handle(call)

    def _refuse_version(self, api: Api, version: int, correlation_id: int) -> None:
        """Answer ApiVersions from the header alone (KIP-511); for any other API close the connection, as Kafka does."""
        if api.key != API_VERSIONS:
            raise MalformedFrameError(f"{api.schema_name} v{version} is not served")
        oldest = schema(API_VERSIONS, 0)
        self.write(oldest.frame(correlation_id, unsupported_version_body(oldest.new, self.node.cluster.config)))

    # responses out

    def _send_response(self, message: Schema | None, correlation_id: int, response: Any) -> None:
        """Send the response of a request, unless it has none or it was already sent."""
        if message is not None and response is not None:
            self.write(self.encode(message, correlation_id, response))

    def encode(self, message: Schema, correlation_id: int, response: Any) -> bytes:
        """Return the frame of a response, and count it."""
        frame = message.frame(correlation_id, response)
        self._count(message, frame, message.errors_of(response))
        return frame

    def _count(self, message: Schema, frame: bytes, codes: Sequence[int]) -> None:
        counters = self.node.counters
        counters.bytes_out += len(frame)
        if codes:
            counters.by_api[message.key].failed(codes)

    async def _send_large_response(self, message: Schema, correlation_id: int, response: Any) -> None:
        """Send a large response, encoding it in a thread."""
        frame, codes = await asyncio.to_thread(encoded_large, message, correlation_id, response)
        self._count(message, frame, codes)
        self.write(frame)

    async def _handle(self, call: Call) -> Any:
        began_ns = time.perf_counter_ns()
        cluster = self.node.cluster
        try:
            storage = cluster.storage
            writes = storage.writes
            response = await call.answered()
            # a retried Produce writes nothing, but the records that it acknowledges may not be on disk yet
            if storage.is_behind and (storage.writes != writes or call.api.key == PRODUCE):
                await storage.flushed()
        except CloseConnectionError:
            raise
        except StorageError as error:
            logger.error("node %d failed at %s: %s", self.node.node_id, call.api.schema_name, error)
            response = await call.refused(ErrorCode.kafka_storage_error)
        except Exception:
            logger.exception("node %d failed at %s v%d", self.node.node_id, call.api.schema_name, call.version)
            response = await call.refused(ErrorCode.unknown_server_error)
        self._handled_ns = duration_ns = time.perf_counter_ns() - began_ns
        self.node.counters.by_api[call.api.key].duration.add(duration_ns)
        return self._throttled(call, response, duration_ns) if cluster.quotas.is_active else response

    def _run(
        self, work: Coroutine[Any, Any, Any], api: Api, message: Schema | None = None, correlation_id: int = 0
    ) -> None:
        """Run `work` until it ends or waits, and send its response.

        If it waits, its rest becomes the connection's task.
        """
        began_ns = time.perf_counter_ns() if self.node.cluster.quotas.is_active else 0
        self._handled_ns = 0
        outcome = begin(work)
        if not isinstance(outcome, SuspendedCoroutine):
            if self._handled_ns < _LONG_NS or message is None or not is_large(outcome):
                self._send_response(message, correlation_id, outcome)
            else:
                self._start(self._send_large_response(message, correlation_id, outcome), api)
            return
        self._ran_before_wait_ns = time.perf_counter_ns() - began_ns if began_ns else 0
        if not self.node.is_alive:  # this very request crashed it
            outcome.close()
            return
        self._start(self._finish(outcome, message, correlation_id), api)

    def _start(self, work: Coroutine[Any, Any, None], api: Api) -> None:
        self._work_api = api
        self._work = asyncio.ensure_future(work)
        self._work.add_done_callback(self._work_done)

    async def _finish(self, rest: SuspendedCoroutine[Any], message: Schema | None, correlation_id: int) -> None:
        response = await rest
        if message is not None and is_large(response):
            await self._send_large_response(message, correlation_id, response)
        else:
            self._send_response(message, correlation_id, response)

    def _work_done(self, work: asyncio.Task[None]) -> None:
        self._work = None
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self._close(error)
        self._resume_serving()

    def _resume_serving(self) -> None:
        """Serve the frames that arrived while a request was waiting."""
        if self._transport is not None and self._is_open and not self._is_paused:
            self._transport.resume_reading()
            self._serve_buffered()


class _Reply:
    """Sends the response of one request that a fault may affect."""

    def __init__(self, connection: Connection, message: Schema, correlation_id: int) -> None:
        self._connection = connection
        self._message = message
        self._correlation_id = correlation_id
        self._is_first = False

    def answer(self, response: Any) -> None:
        connection = self._connection
        frame = None if response is None else connection.encode(self._message, self._correlation_id, response)
        if self._is_first:
            connection.release_responses(frame)
        elif frame is not None:
            connection.write(frame)

    def abort(self) -> None:
        self._connection.abort()

    def close(self) -> None:
        self._connection.close_orderly()

    def silence(self) -> None:
        self._connection.silence()

    def overtake(self, answering: Coroutine[Any, Any, None]) -> None:
        self._is_first = True
        self._connection.hold_back_responses()
        self._connection.node.cluster.faults.run(answering)


def _does_not_decode(message: Schema, api: Api, error: Exception) -> MalformedFrameError:
    return MalformedFrameError(f"{api.schema_name} v{message.version} does not decode: {error!r}")
