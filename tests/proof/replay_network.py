"""The network of a replay: between each process and its servers stands a relay that holds the requests of the story.

A relay belongs to one life of one process. A held request is `Parked` at the process's `Gate`, where the director of
the replay finds it, and decides its fate. The threads of the processes, of the network and of the director meet at the
gates and nowhere else.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from dualwrite.broker_emulator.messages.schema import schema
from tests.proof.story import Fate

WAIT_S: Final = 20.0
"""The time limit of an event that the story promises."""

_LENGTH: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">hhi")  # API key, version, correlation id
_BATCH_PAIR: Final = struct.Struct(">qhi")  # producer id, epoch, first sequence
_BATCH_PAIR_AT: Final = 43
_CHUNK_BYTES: Final = 65536
_COMMIT: Final = b"COMMIT"

ResultT = TypeVar("ResultT")


class What(NamedTuple):
    """The subject of a request, without the differences between the model and real servers, such as producer ids."""

    name: str
    details: tuple[Hashable, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}{list(self.details) if self.details else ''}"


class ReplayError(Exception):
    """The real processes and servers differ from the model."""


# ---- the gate -------------------------------------------------------------------------------------------------------


class Parked:
    """A request that waits for the director's word."""

    def __init__(self, what: What, decide: Callable[[Fate], None]) -> None:
        self.what = what
        self.is_left = False
        """Whether its response is not awaited any more."""
        self.done: Future[None] = Future()
        """Set when the fate has come about."""
        self._decide = decide

    def meet(self, fate: Fate) -> Future[None]:
        """Let it have its fate; the result comes when it has."""
        done = self.done
        self._decide(fate)
        return done

    def __repr__(self) -> str:
        return f"{self.what}{' (left)' if self.is_left else ''}"


class Gate:
    """The requests of one life of one process that the director has not decided about."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._parked: list[Parked] = []
        self._has_ended = False

    def arrive(self, parked: Parked) -> None:
        """Add a request."""
        with self._changed:
            self._parked.append(parked)
            self._changed.notify_all()

    def leave(self, parked: Parked) -> None:
        """Note that the response is not awaited any more."""
        with self._changed:
            parked.is_left = True
            self._changed.notify_all()

    def take(self, parked: Parked) -> None:
        """Remove a request that the director decides about."""
        with self._changed:
            self._parked.remove(parked)

    def end(self) -> None:
        """Note that the process has ended."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def waiting(self, what: What | None, timeout_s: float) -> Parked | bool:
        """Wait for a request for `what`, or for None until the process has ended. Return the request, or if it has."""
        with self._changed:
            self._changed.wait_for(lambda: self._found(what), timeout_s)
            return self._found(what)

    def left(self, what: What) -> Parked | None:
        """Return a request whose response is not awaited any more."""
        with self._changed:
            return next((each for each in self._parked if each.is_left and each.what == what), None)

    def _found(self, what: What | None) -> Parked | bool:
        if what is None:
            return self._has_ended
        return next((each for each in self._parked if not each.is_left and each.what == what), False)

    def __str__(self) -> str:
        with self._changed:
            return ", ".join(map(repr, self._parked)) or ("has ended" if self._has_ended else "asks nothing")


# ---- the loop of the network ----------------------------------------------------------------------------------------


class Network:
    """An event loop in a thread, in which all relays run."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="replay-network", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine in the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, soon."""
        self._loop.call_soon_threadsafe(function)


class _Relay:
    """Listens on a free port, and handles each connection in a task."""

    def __init__(self) -> None:
        self.port = 0
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            with suppress(OSError, EOFError):
                await self._relay(reader, writer)
        finally:
            await _close(writer)
            self._clients.discard(writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def sever(self) -> None:
        """Cut all connections of the process, and accept no others. Held requests stay deliverable."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._clients):
            writer.transport.abort()


async def _close(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()


# ---- Kafka ----------------------------------------------------------------------------------------------------------


class KafkaRelay(_Relay):
    """Before the broker at an address: requests that may change or describe a transaction are parked."""

    def __init__(self, address: str, gate: Gate, network: Network) -> None:
        super().__init__()
        host, port = address.split(":")
        self._target = host, int(port)
        self._gate = gate
        self._network = network

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _KafkaLink(writer, *await asyncio.open_connection(*self._target, limit=1 << 24))
        host = self._target[0].encode()
        link.renamed = (host + _LENGTH.pack(self._target[1]), host + _LENGTH.pack(self.port))
        answers = asyncio.create_task(link.relay_answers())
        try:
            frame = await _frame_from(reader)
            while frame is not None:
                what = asked_by(frame)
                if what is None:
                    link.to_broker(frame)
                    frame = await _frame_from(reader)
                else:
                    frame = await self._hold(link, what, frame, reader)
        finally:
            if not link.is_holding:
                answers.cancel()
                await _close(link.broker)

    async def _hold(self, link: _KafkaLink, what: What, frame: bytes, reader: asyncio.StreamReader) -> bytes | None:
        """Park a request until it is decided. Return the next one on the connection; None if there is none."""
        decided: asyncio.Future[Fate] = asyncio.get_running_loop().create_future()

        def decide(fate: Fate) -> None:
            self._network.call(lambda: link.decide(parked, frame, fate, decided))

        parked = Parked(what, decide)
        link.is_holding = True
        self._gate.arrive(parked)
        following = asyncio.create_task(_frame_from(reader))
        await asyncio.wait((decided, following), return_when=asyncio.FIRST_COMPLETED)
        if not decided.done():
            if following.result() is not None:
                await decided
            else:
                self._gate.leave(parked)
                return None
        if decided.result() is not Fate.ANSWERED:
            following.cancel()
            return None
        link.is_holding = False
        return await following


class _KafkaLink:
    """One relayed connection."""

    def __init__(
        self, client: asyncio.StreamWriter, answers: asyncio.StreamReader, broker: asyncio.StreamWriter
    ) -> None:
        self.broker = broker
        self.renamed = b"", b""
        self.is_holding = False
        """Whether it holds a request that may still be delivered."""
        self._client = client
        self._answers = answers
        self._unheard: dict[bytes, Parked] = {}
        """By correlation id: the requests that were delivered without a waiting client."""
        self._heard: dict[bytes, Parked] = {}

    def to_broker(self, frame: bytes) -> None:
        self.broker.write(_LENGTH.pack(len(frame)) + frame)

    def decide(self, parked: Parked, frame: bytes, fate: Fate, decided: asyncio.Future[Fate]) -> None:
        """Carry out the fate of a request. A delayed request is decided about again when it arrives."""
        correlation_id = frame[4:8]
        match fate:
            case Fate.ANSWERED:
                self._heard[correlation_id] = parked
                self.to_broker(frame)
            case Fate.UNHEARD | Fate.LATE:
                self._unheard[correlation_id] = parked
                self.to_broker(frame)
            case Fate.DELAYED:
                self._client.transport.abort()
                done, parked.done = parked.done, Future()
                done.set_result(None)
            case _:
                raise AssertionError(fate)
        if not decided.done():
            decided.set_result(fate)

    async def relay_answers(self) -> None:
        with suppress(OSError):
            while (frame := await _frame_from(self._answers)) is not None:
                unheard = self._unheard.pop(frame[:4], None)
                if unheard is not None:
                    self._client.transport.abort()
                    unheard.done.set_result(None)
                    continue
                answer = frame.replace(*self.renamed)
                self._client.write(_LENGTH.pack(len(answer)) + answer)
                heard = self._heard.pop(frame[:4], None)
                if heard is not None:
                    heard.done.set_result(None)
        self._client.transport.abort()


def asked_by(frame: bytes) -> What | None:
    """Return the subject of a request; None if it passes without a decision."""
    key, version, _ = _REQUEST.unpack_from(frame)
    if key not in _PARKED_APIS:
        return None
    found = schema(key, version)
    at = _REQUEST.size
    (length,) = struct.unpack_from(">h", frame, at)
    at += 2 + max(length, 0) + found.flexible_request_header  # no tagged fields: one zero byte
    return _PARKED_APIS[key](found.read(frame, at))


def _produced(request: Any) -> What:
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    _, epoch, sequence = _BATCH_PAIR.unpack_from(bytes(partition.records), _BATCH_PAIR_AT)
    return What("Produce", (epoch, sequence))


def _initialised(request: Any) -> What:
    keeps = getattr(request, "keep_prepared_txn", False)
    two_phase = getattr(request, "enable2_pc", False)
    return What("InitProducerId", (request.producer_epoch, two_phase, keeps))


def _partitions_added(request: Any) -> What:
    return What("AddPartitionsToTxn", (request.v3_and_below_producer_epoch,))


_PARKED_APIS: Final[dict[int, Callable[[Any], What]]] = {
    0: _produced,
    22: _initialised,
    24: _partitions_added,
    26: lambda request: What("EndTxn", (request.producer_epoch, request.committed)),
    65: lambda request: What("DescribeTransaction"),
}


async def _frame_from(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next frame without its length; None at the end of the stream."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


# ---- Postgres -------------------------------------------------------------------------------------------------------


class HeldCommit:
    """A COMMIT that is on its way, and no process waits for it."""

    def __init__(self, request: bytes, answers: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        self._request = request
        self._answers = answers
        self._server = server

    async def deliver(self) -> None:
        """Let the server have it, and wait until it has answered."""
        self._server.write(self._request)
        await self._answers.read(_CHUNK_BYTES)
        await _close(self._server)

    def is_on(self, server: asyncio.StreamWriter) -> bool:
        """Return whether it is to arrive on this connection."""
        return self._server is server

    async def drop(self) -> None:
        """Cut the connection, on which it never arrives."""
        await _close(self._server)


class PostgresRelay(_Relay):
    """Before the server at an address or a Unix socket; the fate of the next COMMIT can be chosen."""

    def __init__(self, target: tuple[str, int] | Path) -> None:
        super().__init__()
        self._target = target
        self._fate: Fate | None = None
        self._met: Future[HeldCommit | None] = Future()

    def meet(self, fate: Fate) -> Future[HeldCommit | None]:
        """Let the next COMMIT have a fate. The result comes when it has."""
        self._fate = fate
        self._met = Future()
        return self._met

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self._target, Path):
            answers, server = await asyncio.open_unix_connection(self._target)
        else:
            answers, server = await asyncio.open_connection(*self._target)
        down = asyncio.create_task(_copy(answers, writer))
        try:
            while data := await reader.read(_CHUNK_BYTES):
                if self._fate is not None and _COMMIT in data:
                    fate, self._fate = self._fate, None
                    down.cancel()
                    with suppress(asyncio.CancelledError):
                        await down
                    await self._commits(fate, HeldCommit(data, answers, server), reader, writer)
                    return
                server.write(data)
        finally:
            down.cancel()
            if not self._keeps(server):
                await _close(server)

    def _keeps(self, server: asyncio.StreamWriter) -> bool:
        held = self._met.result() if self._met.done() else None
        return held is not None and held.is_on(server)

    async def _commits(
        self, fate: Fate, commit: HeldCommit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        held: HeldCommit | None = None
        match fate:
            case Fate.UNHEARD | Fate.KILLED_UNHEARD:
                await commit.deliver()
            case Fate.DELAYED | Fate.KILLED_DELAYED:
                held = commit
            case Fate.LOST:
                await commit.drop()
            case _:
                raise AssertionError(fate)
        self._met.set_result(held)
        if fate in (Fate.KILLED_UNHEARD, Fate.KILLED_DELAYED):
            await reader.read(1)  # nothing comes any more: the process is going to be killed
        writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # a server that was ended resets unread connections
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
    await _close(writer)


def postgres_target(host: str, port: int | None) -> tuple[str, int] | Path:
    """Return where a server listens: an address, or the Unix socket in a folder."""
    number = port or 5432
    return Path(host) / f".s.PGSQL.{number}" if host.startswith("/") else (host or "127.0.0.1", number)
