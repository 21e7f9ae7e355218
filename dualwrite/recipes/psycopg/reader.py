"""How an AsyncConnection that is ours waits for the database: registered with its loop once, and not for each wait.

psycopg registers the socket for each wait and takes it back after it, which with uvloop is ten system calls: a third
of what a short statement costs. Here the loop watches a duplicate of the socket for as long as the connection is kept.
A duplicate, because psycopg closes its own whenever it likes, and a number that the loop still watches must not become
that of somebody else's socket.

On Linux the loop watches the duplicate through an epoll instance. libuv reports a socket that has an error, such as the
ECONNRESET of a server that closed with a statement unread, as a failure of its own handle, and uvloop then calls no
reader: the caller would wait forever. An epoll instance has no errors; it is readable when anything happens inside it.

All else, such as what does not fit into the socket, a time limit or a cancellation, is psycopg's own `wait` to handle.
"""

from __future__ import annotations

import asyncio
import os
import select
import weakref
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import READY_R, WAIT_R, wait_async

_READER: Final = "_dualwrite_reader"  # the attribute of a connection that has one

WAIT_INTERVAL_S: Final = 0.1
"""How often psycopg's own wait looks for KeyboardInterrupt, and again by itself. Its default of 0 is a busy loop."""

_MOST_UNWANTED: Final = 1
"""asyncio's loop looks once more before the task that it has woken up takes what is there."""


class SocketReader:
    """Wakes whoever waits on one connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = weakref.ref(connection)  # the loop knows this object, and must not keep the connection alive
        self._loop = asyncio.get_running_loop()
        self._socket: int | None = os.dup(connection.pgconn.socket)
        self._watched = _epoll_of(self._socket)
        self._process_id = os.getpid()
        self._is_registered = False
        self._unwanted = 0
        self._waiter: asyncio.Future[None] | None = None
        weakref.finalize(connection, self._abandoned).atexit = False
        vars(connection).update({_READER: self, "wait": self.wait})

    async def wait(self, generator: PQGen[Any], *arguments: Any, **keywords: Any) -> Any:
        """`AsyncConnection.wait`."""
        connection = self._connection()
        assert connection is not None, "it is who calls"
        is_plain = not arguments and not keywords  # such as a time limit
        if not is_plain or self._waiter is not None or asyncio.get_running_loop() is not self._loop:
            return await _psycopgs_wait(connection, generator, *arguments, **keywords)
        try:
            wanted = next(generator)
            while wanted == WAIT_R:
                await self._readable()
                wanted = generator.send(READY_R)
        except StopIteration as ended:
            return ended.value
        except (asyncio.CancelledError, KeyboardInterrupt) as interruption:
            return await _psycopgs_wait(connection, _Waiting(generator, WAIT_R, interruption))
        return await _psycopgs_wait(connection, _Waiting(generator, wanted))

    async def wait_uncancelled(self, generator: PQGen[Any]) -> Any:
        """As `wait`, without asking the server to cancel when this is interrupted; then nobody may wait here again."""
        connection = self._connection()
        assert connection is not None, "it is who calls"
        try:
            wanted = next(generator)
            while wanted == WAIT_R and self._waiter is None and asyncio.get_running_loop() is self._loop:
                await self._readable()
                wanted = generator.send(READY_R)
        except StopIteration as ended:
            return ended.value
        waits: Any = _Waiting(generator, wanted)
        return await wait_async(waits, connection.pgconn.socket, interval=WAIT_INTERVAL_S)

    async def _readable(self) -> None:
        self._waiter = self._loop.create_future()
        self._register()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _register(self) -> None:
        if not self._is_registered:
            if self._socket is None:
                raise psycopg.OperationalError("the connection is closed")
            self._loop.add_reader(self._watched, self._on_readable)
            self._is_registered = True

    def _on_readable(self) -> None:
        if self._waiter is None:
            self._on_unwanted()
            return
        self._unwanted = 0
        if not self._waiter.done():
            self._waiter.set_result(None)

    def _on_unwanted(self) -> None:
        """The server says something, or is gone, while nobody waits."""
        self._unwanted += 1
        if self._unwanted > _MOST_UNWANTED:
            self._unwanted = 0
            self._unregister()

    def _unregister(self) -> None:
        """Until somebody waits again."""
        if self._is_registered and self._socket is not None:
            self._is_registered = False
            self._loop.remove_reader(self._watched)

    def end(self) -> None:
        """The connection is closed. In its loop, or after it; harmless when repeated."""
        if self._socket is None:
            return
        # A forked child shares what its parent's loop asks the kernel with, and must leave that alone.
        if os.getpid() == self._process_id and not self._loop.is_closed():
            self._unregister()
        if self._watched != self._socket:
            os.close(self._watched)
        os.close(self._socket)
        self._socket = None

    def _abandoned(self) -> None:
        """Nobody has the connection any more, and nobody closed it. In any thread."""
        if os.getpid() != self._process_id or self._loop.is_closed():
            self.end()
        elif self._socket is not None:
            self._loop.call_soon_threadsafe(self.end)


def _epoll_of(socket: int) -> int:
    """Return an epoll instance that is readable when `socket` is or has failed; the socket where there is no epoll."""
    if not hasattr(select, "epoll"):
        return socket
    epoll = select.epoll()
    epoll.register(socket, select.EPOLLIN)
    watched = os.dup(epoll.fileno())  # kept as a number, which a forked child can close without touching the instance
    epoll.close()
    return watched


def read_by_its_loop(connection: Any) -> Any:
    """The connection, if it is one of coroutines, waits as this module says; until `closed`, in the loop that runs."""
    if isinstance(connection, psycopg.AsyncConnection) and os.name == "posix":  # elsewhere a socket is no file
        SocketReader(connection)
    return connection


def reader_of(connection: Any) -> SocketReader | None:
    """By whom it is read, if it is one of coroutines and ours."""
    reader: SocketReader | None = vars(connection).get(_READER)
    return reader


def closed(connection: Any) -> None:
    """To be called when a connection was closed, whichever; harmless when repeated."""
    reader = vars(connection).get(_READER)
    if reader is not None:
        reader.end()


class _Waiting:
    """A generator of psycopg's that waits already, for psycopg to go on with, or to handle an interruption of."""

    __slots__ = ("_generator", "_interruption", "_wanted")

    def __init__(self, generator: PQGen[Any], wanted: int, interruption: BaseException | None = None) -> None:
        self._generator = generator
        self._wanted = wanted
        self._interruption = interruption

    def __next__(self) -> int:
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            raise interruption
        return self._wanted

    def send(self, ready: int) -> Any:
        return self._generator.send(ready)


_psycopgs_wait: Final[Callable[..., Any]] = psycopg.AsyncConnection.wait
