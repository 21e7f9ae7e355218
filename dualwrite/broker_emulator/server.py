"""asyncio listeners: frames in, frames out.

One request at a time per connection, answered in order, as Kafka does (it mutes the channel while a request is
in work). A request that need not wait is answered within the call that delivered its bytes: its coroutine is
stepped once in place, and only what is left of one that really waits becomes a task.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode
from kio.serial.errors import DecodeError

from dualwrite.broker_emulator.api.k18_api_versions import KEY as API_VERSIONS_KEY
from dualwrite.broker_emulator.api.k18_api_versions import unsupported_version_body
from dualwrite.broker_emulator.api.registry import APIS, Api, Call, CloseConnectionError, Schema, schema
from dualwrite.broker_emulator.faults import Action, CloseAfter, CloseBefore, Delay, DropReply, DropRequest, Error

if TYPE_CHECKING:
    from dualwrite.broker_emulator.node import Node

logger = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
_MAX_BUFFERED_WHILE_BUSY = 1 << 20
"""Bytes taken from a client that sends on while one of its requests waits; beyond that, it has to wait too."""

_HEADER = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id


class MalformedFrameError(Exception):
    """Bytes that are no request this broker serves; the message says what is wrong with them."""


class Connection(asyncio.Protocol):
    """One client's connection to one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client_id: str | None = None
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._work: asyncio.Task[None] | None = None
        self._silent = False
        self._max_frame_size = node.cluster.config.socket_request_max_bytes

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's transport is a Transport
        self.node.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.node.connections.discard(self)
        self._transport = None  # what was begun is finished all the same, as by a broker whose client is gone

    def data_received(self, data: bytes) -> None:
        if self._silent:
            return
        self._buffer += data
        if self._work is None:
            self._serve_buffered()
        elif self._transport is not None and len(self._buffer) > _MAX_BUFFERED_WHILE_BUSY:
            self._transport.pause_reading()

    # frames in

    def _serve_buffered(self) -> None:
        """Serve whole frames until there is none, or one has to wait."""
        start = 0
        try:
            while self._is_open and self._work is None and not self._silent:
                end = self._frame_end(start)
                if end is None:
                    break
                frame = bytes(memoryview(self._buffer)[start + 4 : end])
                start = end
                self._serve(frame)
        except Exception as error:
            self._close(error)
        del self._buffer[:start]

    def _frame_end(self, start: int) -> int | None:
        buffer = self._buffer
        if len(buffer) < start + 4:
            return None
        (size,) = _SIZE.unpack_from(buffer, start)
        if not 0 < size <= self._max_frame_size:
            raise MalformedFrameError(f"frame size {size}, allowed are 1 to {self._max_frame_size}")
        end: int = start + 4 + size
        return end if len(buffer) >= end else None

    def _serve(self, frame: bytes) -> None:
        if len(frame) < _HEADER.size:
            raise MalformedFrameError(f"{len(frame)} bytes are too few for a request header")
        key, version, correlation_id, client_id_length = _HEADER.unpack_from(frame)
        api = APIS.get(key)
        if api is None:
            raise MalformedFrameError(f"API key {key} is not served")
        if not api.min_version <= version <= api.max_version_for(self.node.cluster.config):
            self._refuse_version(api, version, correlation_id)
            return
        message = schema(key, version)
        try:
            self.client_id, offset = _rest_of_header(frame, client_id_length, message.flexible_request_header)
            request, _ = message.read(frame, offset)
        except (DecodeError, ValueError, IndexError) as error:
            raise MalformedFrameError(f"{api.schema_name} v{version} does not decode: {error!r}") from error
        self._run(
            self._answer(Call(api, version, request, message.new, self.node, self.client_id), message, correlation_id)
        )

    def _refuse_version(self, api: Api, version: int, correlation_id: int) -> None:
        """ApiVersions is answered from the header alone (KIP-511); everything else ends the connection, as in Kafka."""
        if api.key != API_VERSIONS_KEY:
            raise MalformedFrameError(f"{api.schema_name} v{version} is not served")
        oldest = schema(API_VERSIONS_KEY, 0)
        self._write(oldest.frame(correlation_id, unsupported_version_body(oldest.new, self.node.cluster.config)))

    # answers out

    async def _answer(self, call: Call, message: Schema, correlation_id: int) -> None:
        faults = self.node.cluster.faults
        action = faults.take(call) if faults.active else None
        if action is not None and not await self._serve_after(action):
            return
        response = (
            call.api.refuse(call, ErrorCode(action.code)) if isinstance(action, Error) else await self._handle(call)
        )
        if isinstance(action, DropReply):
            self.abort()
        elif response is not None:
            self._write(message.frame(correlation_id, response))
        if isinstance(action, CloseAfter) and self._transport is not None:
            self._transport.close()  # after what was written is sent

    async def _serve_after(self, action: Action) -> bool:
        """Do what `action` does before a request is served; whether it is still to be answered."""
        if isinstance(action, Delay):
            await asyncio.sleep(action.duration_ms / 1000)
        elif isinstance(action, CloseBefore):
            self.abort()
            return False
        elif isinstance(action, DropRequest):
            self._silent = True
            return False
        return True

    async def _handle(self, call: Call) -> Any:
        try:
            return await call.api.handle(call)
        except CloseConnectionError:
            raise
        except Exception:
            logger.exception("node %d failed at %s v%d", self.node.node_id, call.api.schema_name, call.version)
            return call.api.refuse(call, ErrorCode.unknown_server_error)

    def _run(self, answer: Coroutine[Any, Any, None]) -> None:
        """Run `answer` as far as it goes without waiting; the rest of one that waits becomes this connection's work."""
        try:
            waited_for = answer.send(None)
        except StopIteration:
            return
        self._work = asyncio.ensure_future(_finish(_Rest(answer, waited_for)))
        self._work.add_done_callback(self._work_done)

    def _work_done(self, work: asyncio.Task[None]) -> None:
        self._work = None
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self._close(error)
        if self._transport is not None and self._is_open:
            self._transport.resume_reading()
            self._serve_buffered()

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    # endings

    def abort(self) -> None:
        """Close at once, as a broken network does."""
        if self._transport is not None:
            self._transport.abort()

    def _close(self, reason: BaseException) -> None:
        expected = isinstance(reason, MalformedFrameError | CloseConnectionError)
        logger.warning(
            "node %d closes the connection of client %r: %s",
            self.node.node_id,
            self.client_id,
            reason,
            exc_info=None if expected else reason,
        )
        if self._transport is not None:
            self._transport.close()


class _Rest:
    """What is left of a coroutine that was stepped once and waits for `waited_for`."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waited_for: Any) -> None:
        self._coroutine = coroutine
        self._waited_for = waited_for

    def __await__(self) -> Generator[Any, Any, None]:
        waited_for = self._waited_for
        try:
            while True:
                try:
                    received = yield waited_for
                except BaseException as error:
                    waited_for = self._coroutine.throw(error)
                else:
                    waited_for = self._coroutine.send(received)
        except StopIteration:
            return


async def _finish(rest: _Rest) -> None:
    await rest


def _rest_of_header(frame: bytes, client_id_length: int, flexible: bool) -> tuple[str | None, int]:
    """The client id, and where the request begins. Raises ValueError or IndexError on a header that does not decode."""
    offset = _HEADER.size
    client_id = None
    if client_id_length >= 0:
        end = offset + client_id_length
        if end > len(frame):
            raise IndexError(f"client id of {client_id_length} bytes")
        client_id = frame[offset:end].decode()
        offset = end
    return client_id, _skip_tagged_fields(frame, offset) if flexible else offset


def _skip_tagged_fields(frame: bytes, offset: int) -> int:
    if frame[offset] == 0:
        return offset + 1
    count, offset = _read_unsigned_varint(frame, offset)
    for _ in range(count):
        _, offset = _read_unsigned_varint(frame, offset)
        size, offset = _read_unsigned_varint(frame, offset)
        offset += size
    return offset


def _read_unsigned_varint(frame: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
        if shift > 28:
            raise ValueError("a varint longer than five bytes")
