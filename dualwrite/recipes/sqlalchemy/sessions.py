"""Dual writes for code that commits its Sessions itself. One line makes `session.commit()` the decision:

    SessionLocal = sessionmaker(engine)
    dual_write_sessions(SessionLocal, DualWriter(engine, prefix="orders", bootstrap_servers="127.0.0.1:9092"))

Then, wherever there is a Session:

    with SessionLocal() as session:
        session.add(Order(...))
        send(session, "orders", key=..., value=...)
        session.commit()

Records belong to the database transaction in which they were sent, and share its fate, savepoint by savepoint: they
become visible when it is committed, however COMMIT is requested, and are dropped if it is rolled back or the Session is
closed. A transaction without records is an ordinary one.
"""

from __future__ import annotations

import logging
import sys
import weakref
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker

from dualwrite.errors import ConfigError, IllegalStateError, OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.buffer import BufferedRecord, RecordBuffer
from dualwrite.recipes.core.dual_write import ENDED_PAST, DualWrite, commit_at_end, note_rollback, roll_back_database
from dualwrite.recipes.core.store import ended_past
from dualwrite.recipes.sqlalchemy.adapter import SqlAlchemyBackend
from dualwrite.recipes.sqlalchemy.engines import locks_whole_database
from dualwrite.recipes.sqlalchemy.events import watch
from dualwrite.recipes.sqlalchemy.session_commit_hook import FollowedTransaction
from dualwrite.recipes.sqlalchemy.transaction import assert_one_database, transaction_on
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter

__all__ = ["current_dual_write", "dual_write_sessions", "send"]

_log = logging.getLogger(__name__)

AnySession = Session | scoped_session[Any]


SessionWriter = DualWriter | AsyncDualWriter
"""Carries out the dual writes of Sessions."""

# By the class of the sessions; each sessionmaker has its own class
_writers: weakref.WeakKeyDictionary[type[Session], SessionWriter] = weakref.WeakKeyDictionary()

_followed: weakref.WeakKeyDictionary[Session, FollowedTransaction] = weakref.WeakKeyDictionary()


def dual_write_sessions(
    sessions: sessionmaker[Any]
    | scoped_session[Any]
    | type[Session]
    | async_sessionmaker[Any]
    | async_scoped_session[Any]
    | type[AsyncSession],
    writer: SessionWriter,
) -> None:
    """From now on, commit records sent with `send(session, ...)` together with the next `session.commit()`.

    `sessions` is a sessionmaker, a scoped_session or a Session class; the call applies to existing Sessions too.
    `writer` is a DualWriter: with one id their commits take turns (each waits for the others up to `lock_timeout_ms`,
    as for the row lock), with a pool several commit at the same time. If called again for the same `sessions`, the last
    writer is used.

    An async_sessionmaker, an async_scoped_session or a class of AsyncSessions needs an AsyncDualWriter, and `send` of
    `dualwrite.recipes.sqlalchemy.sessions_async`. The call then applies only to AsyncSessions that are made afterwards.

    Raises ConfigError for any other `sessions` or `writer`, if only one of the two is for asyncio, or if the database
    of a pool is SQLite.
    """
    backend: Any = writer.backend
    if not isinstance(backend, SqlAlchemyBackend):
        raise ConfigError(
            f"dual_write_sessions takes a writer on SQLAlchemy, not {type(writer).__name__}: only SQLAlchemy has "
            "Sessions; send inside `with writer.transaction()`"
        )
    engine = backend.engine
    awaited = _made_for_coroutines(sessions)
    if (awaited is not None) is not engine.dialect.is_async:
        raise ConfigError(
            "the sessions and the writer must both be asynchronous or both be blocking: pass an AsyncDualWriter for an "
            "async_sessionmaker, a DualWriter for a sessionmaker"
        )
    if writer.slots.leases_at_commit and locks_whole_database(engine.dialect):
        raise ConfigError(
            "a pool could not lease an id while a session writes to SQLite, which locks the whole database: use a "
            "writer with transactional_id=..., as sessions write to SQLite one at a time anyway"
        )
    made = _class_of(sessions) if awaited is None else _class_in_greenlets(awaited)
    watch(engine)
    is_new = made not in _writers
    _writers[made] = writer
    if is_new:
        event.listen(made, "after_transaction_create", _before_transaction)
        event.listen(made, "after_begin", _on_connection)
        event.listen(made, "after_transaction_end", _after_transaction)


def _made_for_coroutines(sessions: Any) -> Any:
    """Return the maker or class of AsyncSessions behind `sessions`; None if they are not AsyncSessions."""
    if isinstance(sessions, async_scoped_session):
        sessions = sessions.session_factory
    if isinstance(sessions, async_sessionmaker) or (isinstance(sessions, type) and issubclass(sessions, AsyncSession)):
        return sessions
    return None


def _class_in_greenlets(sessions: Any) -> type[Session]:
    """Return the class of the Sessions behind the AsyncSessions: a new subclass, because by default all share one."""
    is_maker = isinstance(sessions, async_sessionmaker)
    its_own = (sessions.kw if is_maker else vars(sessions)).get("sync_session_class")
    if its_own in _writers:
        behind: type[Session] = its_own
        return behind
    shared = its_own or (sessions.class_ if is_maker else sessions).sync_session_class
    behind = type(shared.__name__, (shared,), {})
    if is_maker:
        sessions.configure(sync_session_class=behind)
    else:
        sessions.sync_session_class = behind
    return behind


def _class_of(sessions: Any) -> type[Session]:
    if isinstance(sessions, scoped_session):
        sessions = sessions.session_factory
    made = sessions.class_ if isinstance(sessions, sessionmaker) else sessions
    if not isinstance(made, type) or not issubclass(made, Session):
        raise ConfigError(
            "dual_write_sessions takes a sessionmaker, a scoped_session, a Session class, or their asyncio variants, "
            f"not {sessions!r}"
        )
    return made


def _before_transaction(session: Session, transaction: SessionTransaction) -> None:
    writer = _writer_of(session)
    if transaction.parent is None and writer is not None and not writer.backend.engine.dialect.is_async:
        writer.backend.carry_out(writer.slots.get_ready_for_sessions())


def _on_connection(session: Session, transaction: SessionTransaction, connection: sa.Connection) -> None:
    writer = _writer_of(session)
    if writer is not None and writer.backend.engine.dialect.is_async:
        # before this event there may be no greenlet in which to wait
        writer.backend.has_connected = True
        writer.backend.carry_out(writer.slots.get_ready_for_sessions())
    followed = _followed.get(session)
    if followed is not None and not followed.is_over:
        followed.refuse_second_database(connection)


def _after_transaction(session: Session, transaction: SessionTransaction) -> None:
    followed = _followed.get(session)
    if followed is not None and followed.is_over:
        del _followed[session]
        followed.rolled_back()  # no event reports a hook that failed right before COMMIT; otherwise this does nothing
        if followed.was_ended_past and not followed.has_arrived and sys.exception() is None:  # else an error said so
            raise ended_past(ENDED_PAST)


def _writer_of(session: Session) -> SessionWriter | None:
    return next((writer for made in type(session).__mro__ if (writer := _writers.get(made)) is not None), None)


def send(
    session: AnySession,
    topic: str,
    value: Any = None,
    key: Any = None,
    headers: Any = None,
    partition: int | None = None,
    timestamp_ms: int | None = None,
) -> BufferedRecord:
    """Publish one record with the Session's current transaction; the arguments are those of `Producer.send`.

    Raises InvalidRecordError or TransactionTooLargeError, which doom the transaction (or the savepoint) even if they
    are swallowed, and the errors of `current_dual_write`.
    """
    return current_dual_write(session).send(topic, value, key, headers, partition, timestamp_ms)


def current_dual_write(session: AnySession) -> DualWrite:
    """Return the dual write of the Session's current transaction; begin the transaction if necessary.

    Use it for `send_offsets` and `outcome`. Inside `writer.transaction(session)` it is the dual write of that block.
    May be called from hooks that run before COMMIT is sent: `before_commit`, `before_flush`, `after_flush`, and mapper
    events such as `after_insert`.

    Raises IllegalStateError if `dual_write_sessions` was not called for the Session, if it belongs to another Engine,
    or if it uses two-phase transactions, a second database or autocommit.
    """
    bound = session() if isinstance(session, scoped_session) else session
    if not isinstance(bound, Session):
        raise IllegalStateError(_NOT_HERE)
    writer = _writer_of(bound)
    connection = _connection_of(bound, writer)
    transaction = transaction_on(connection)
    if isinstance(transaction, FollowedTransaction) and transaction.is_over:
        transaction.rolled_back()
        transaction = None
    if transaction is not None and transaction.write is not None:
        return transaction.write
    if writer is None:
        raise IllegalStateError(_NO_WRITER)
    return _begin(bound, connection, writer)


def _connection_of(session: Session, writer: SessionWriter | None) -> sa.Connection:
    try:
        return session.connection()
    except UnboundExecutionError:
        if writer is None:
            raise
        return session.connection(bind_arguments={"bind": writer.backend.engine})  # a Session with a bind per table


def _begin(session: Session, connection: sa.Connection, writer: SessionWriter) -> DualWrite:
    assert_one_database(session, connection)
    records = writer.new_records()
    transaction = FollowedTransaction(
        connection, writer.backend.engine, records, lambda followed: _SessionWrite(followed, records, writer)
    )
    _followed[session] = transaction
    write: DualWrite = transaction.write
    return write


class _SessionWrite(DualWrite):
    def __init__(self, transaction: FollowedTransaction, records: RecordBuffer, writer: SessionWriter) -> None:
        super().__init__(
            writer.backend.database.transaction(transaction), records, writer.backend.waiting.uninterrupted
        )
        self._writer = writer
        transaction.write = self

    def decide(self) -> None:
        write, carry_out = self.progress, self._writer.backend.carry_out
        try:
            carry_out(commit_at_end(write, self._writer.slots.commit_in_turn))
        except BaseException as error:
            if write.outcome is None and not write.database.commit_was_sent:
                carry_out(roll_back_database(write))
            self.tell(error)
            if isinstance(error, OutcomeUnknown) and write.outcome is Outcome.ROLLED_BACK:
                error.add_note("That was an earlier dual write; the current one is rolled back.")
            raise
        finally:
            write.records.close()

    def drop(self) -> None:
        records = self.progress.records
        if records:
            _log.debug("%d records are dropped, because their database transaction is rolled back", len(records))
        note_rollback(self.progress)
        records.close()


_NOT_HERE = (
    "the record was not accepted: for an AsyncSession, `await` the functions of "
    "dualwrite.recipes.sqlalchemy.sessions_async; those of dualwrite.recipes.sqlalchemy.sessions are for Sessions, "
    "such as the one passed to a hook of an AsyncSession"
)
_NO_WRITER = (
    "no writer sends to Kafka for this Session, so the record was not accepted: call "
    "dual_write_sessions(sessionmaker, writer) once for the sessionmaker that made it, or send inside "
    "`with writer.transaction(session)`"
)
