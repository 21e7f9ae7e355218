"""All access to asyncpg past its public interface, and the reasons for it.

Everything that asyncpg sends goes through the protocol object of a connection, the slot `_protocol`. So this is where
our own statements are sent, past the caller's loggers, codecs and `command_timeout`, and where `connection_guard.py`
puts its own object, which sees every statement of a block. `tests/unit/test_asyncpg_internals.py` fails when asyncpg
changes internals that this module relies on.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self
from weakref import WeakKeyDictionary, WeakSet

import asyncpg

from dualwrite.errors import StateTableError, TransactionDoomedError
from dualwrite.recipes.core.waiting import shield
from dualwrite.recipes.sql.postgres import GIVEN_UP_IN, numbered
from dualwrite.recipes.sql.postgres_steps import CommitMessage, assert_committed

ERRORS: Final[tuple[type[Exception], ...]] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # of the network, including TimeoutError
)
"""The errors that asyncpg raises when the database is unreachable or refuses a statement."""

SAVEPOINT_PREFIX: Final = "__asyncpg_savepoint_"
"""The beginning of the savepoint names of a `connection.transaction()`."""

_NO_LIMIT_S: Final = 10.0 * 365 * 24 * 3600
"""For statements that `command_timeout` must not end: asyncpg would send a cancel request to a COMMIT."""

_ROLLBACK_S: Final = 5.0
"""How long ROLLBACK, and a cancel request before it, may take before the connection is dropped."""

RESET_S: Final = 5.0
"""How long a pool may take to reset a released connection before it drops it."""

_MOST_PREPARED: Final = 64


# ---- connections ---------------------------------------------------------------------------------------------------


def unwrapped(connection: Any) -> Any:
    """Return the connection behind a pool's proxy. Raises InterfaceError if the proxy has lost it."""
    raw = getattr(connection, "_con", connection)
    if raw is None:
        raise asyncpg.InterfaceError("the connection was closed or lost, or released back to its pool")
    return raw


def is_idle(raw: Any) -> bool:
    """Return whether a connection is open and in no transaction, according to the server's latest response."""
    return not raw.is_closed() and not raw.is_in_transaction()


def is_cancelling(raw: Any) -> bool:
    """Return whether asyncpg waits for the end of a statement for which it has sent a cancel request."""
    return not raw.is_closed() and bool(protocol_of(raw)._is_cancelling())  # noqa: SLF001


def host_of(raw: Any) -> str:
    address = raw._addr  # noqa: SLF001
    return str(address[0] if isinstance(address, tuple) else address)


def keep_alive(raw: Any) -> None:
    """Let the operating system notice that the server's host is gone; asyncpg does not set this up, unlike libpq."""
    wire = None if raw.is_closed() else raw._transport.get_extra_info("socket")  # noqa: SLF001
    if wire is not None and wire.family != getattr(socket, "AF_UNIX", None):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def is_exhausted(pool: Any) -> bool:
    free = pool._queue  # noqa: SLF001
    return free is not None and bool(free.empty())


async def connected_as_by(pool: Any) -> Any:
    return await pool._get_new_connection()  # noqa: SLF001


_read_committed: Final[WeakSet[Any]] = WeakSet()


def begin_at_read_committed(raw: Any) -> None:
    """Let our transactions on a connection run at READ COMMITTED, regardless of its default."""
    _read_committed.add(raw)


def begin_statement(raw: Any) -> str:
    return "BEGIN ISOLATION LEVEL READ COMMITTED" if raw in _read_committed else "BEGIN"


# ---- the transaction of a connection -------------------------------------------------------------------------------


def is_in_transaction_block(raw: Any) -> bool:
    """Return whether a `connection.transaction()` is open, whose end commits or rolls back."""
    return raw._top_xact is not None  # noqa: SLF001


def open_block(raw: Any) -> Any:
    """Make each `connection.transaction()` from now on a savepoint, as inside another one. Return the outer block."""
    raw._top_xact = block = asyncpg.Connection.transaction(raw)  # noqa: SLF001
    return block


def close_block(raw: Any, block: Any) -> None:
    if raw._top_xact is block:  # noqa: SLF001
        raw._top_xact = None  # noqa: SLF001


class Substitute:
    """Stands in front of the protocol of one connection, and has all of its attributes."""

    __slots__ = ("genuine",)

    def __init__(self, genuine: Any) -> None:
        self.genuine = genuine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.genuine, name)


def protocol_of(raw: Any) -> Any:
    """Return the genuine protocol of a connection. Raises InterfaceError if the connection is closed."""
    protocol = raw._protocol  # noqa: SLF001
    if protocol is None or raw.is_closed():
        raise asyncpg.InterfaceError("the connection is closed")
    return protocol.genuine if isinstance(protocol, Substitute) else protocol


def put_in_front(raw: Any, substitute: Substitute) -> None:
    raw._protocol = substitute  # noqa: SLF001


def take_away(raw: Any, substitute: Substitute) -> None:
    """Restore the protocol, unless the connection was closed and has none; harmless when repeated."""
    if raw._protocol is substitute:  # noqa: SLF001
        raw._protocol = substitute.genuine  # noqa: SLF001


def substitute_of(raw: Any) -> Substitute | None:
    protocol = raw._protocol  # noqa: SLF001
    return protocol if isinstance(protocol, Substitute) else None


# ---- our own statements --------------------------------------------------------------------------------------------


async def execute(raw: Any, sql: str) -> str:
    """Execute statements without parameters, in one message. Return the status of the last one."""
    status: str = await protocol_of(raw).query(sql, _NO_LIMIT_S)
    return status


async def roll_back(raw: Any) -> None:
    """Send ROLLBACK. Raises TimeoutError if it takes too long; the connection must be dropped then."""
    async with asyncio.timeout(_ROLLBACK_S):  # asyncpg before 0.32 waits for a cancel request outside of its own limit
        await execute(raw, "ROLLBACK")


# asyncpg describes a statement before it executes it, in a separate round trip, and keeps that description under a name
# that the server knows too. If PgBouncer gives each transaction another server connection, the name may stand for a
# statement of another client there. So ours have no name; their descriptions are kept here, and each execution sends
# the text again, in the same message.
_descriptions: Final[WeakKeyDictionary[Any, dict[str, Any]]] = WeakKeyDictionary()


async def fetch(raw: Any, sql: str, values: Mapping[str, Any]) -> tuple[Sequence[Any], str]:
    """Execute one statement, with parameters written `:name`. Return its rows, and its status."""
    text, names = numbered(sql)
    protocol = protocol_of(raw)
    kept = _descriptions.setdefault(raw, {})
    statement = kept.get(text)
    if statement is None:
        statement = await _described(protocol, text)
        if len(kept) >= _MOST_PREPARED:
            kept.clear()
        kept[text] = statement
    statement.mark_unprepared()
    arguments = [values[name] for name in names]
    rows, status, _ = await protocol.bind_execute(statement, arguments, "", 0, True, _NO_LIMIT_S)
    return rows or (), status.decode()


async def _described(protocol: Any, text: str) -> Any:
    statement = await protocol.prepare("", text, _NO_LIMIT_S, record_class=asyncpg.Record, ignore_custom_codec=True)
    if statement._init_types():  # noqa: SLF001
        raise StateTableError(
            "a column of dualwrite's tables has a type that is not built into PostgreSQL, and asyncpg would have to "
            "look it up first; nothing was written: create the tables with the DDL of `dualwrite init-db --sql`"
        )
    statement._init_codecs()  # noqa: SLF001
    return statement


# ---- a COMMIT that decides -----------------------------------------------------------------------------------------


class AsyncpgCommitMessage(CommitMessage):
    """A message that takes the place of the COMMIT of asyncpg's own `Transaction.commit()` inside a `with`.

    asyncpg sends a cancel request when a wait is cancelled or takes too long, and that may end the wait of COMMIT for a
    synchronous standby (`psycopg/commit_message.py` says why it must not). So a cancellation drops the connection
    instead, and there is no time limit.
    """

    _in_front: _InsteadOfCommit | None = None

    def __enter__(self) -> Self:
        if not self.connection.is_closed():
            self._in_front = _InsteadOfCommit(protocol_of(self.connection), self)
            put_in_front(self.connection, self._in_front)
        return self

    def let_go(self) -> None:
        if self._in_front is not None:
            take_away(self.connection, self._in_front)

    async def send(self) -> None:
        """Send the message. Raises an error with `was_refused` if the server is known not to have reached COMMIT."""
        self.assert_not_sent(asyncpg.ConnectionDoesNotExistError)
        if self.connection.is_closed():
            self.was_refused = True
        self.was_sent = True
        await shield(self._exchange(), self._drop)  # asyncpg would send a cancel request

    async def _exchange(self) -> None:
        raw = self.connection
        try:
            raw.add_log_listener(self._on_message)
            assert_committed(await execute(raw, self._script))
            self.was_committed = True
            if not _is_listening(raw, self._on_message):
                self.was_given_up = True  # another task called reset(), which removes listeners: assume the worst
        except asyncpg.PostgresError as error:
            self.raise_refusal(error)
            raise
        except Exception as error:
            # asyncpg raises InterfaceError before it sends the message: the connection is closed, or busy.
            self.was_refused |= isinstance(error, (asyncpg.InterfaceError, TransactionDoomedError))
            raise
        finally:
            raw.remove_log_listener(self._on_message)

    def _on_message(self, connection: Any, message: Any) -> None:
        if getattr(message, "server_source_function", None) == GIVEN_UP_IN:
            self.was_given_up = True

    def _drop(self) -> bool:
        self.connection.terminate()
        return True


class _InsteadOfCommit(Substitute):
    """Sends a message in place of a connection's next COMMIT."""

    __slots__ = ("_message",)

    def __init__(self, genuine: Any, message: AsyncpgCommitMessage) -> None:
        super().__init__(genuine)
        self._message = message

    async def query(self, query: str, *arguments: Any, **keywords: Any) -> Any:
        if query != "COMMIT;":
            return await self.genuine.query(query, *arguments, **keywords)
        message = self._message
        if not message.was_committed:
            try:
                await message.send()
            except Exception:
                if message.was_refused and not is_idle(message.connection):
                    await roll_back(message.connection)  # asyncpg takes the transaction for ended
                raise
        return "COMMIT"


def _is_listening(raw: Any, listener: Callable[..., None]) -> bool:
    return any(found.cb == listener for found in raw._log_listeners)  # noqa: SLF001
