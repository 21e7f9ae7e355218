"""The SQLAlchemy transaction of a dual write: it holds the lock on the state row, and its COMMIT is the decision."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.event.api import _event_key
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from dualwrite.errors import IllegalStateError, TransactionDoomedError, TransactionEndedInsideError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import warn_of_drop
from dualwrite.recipes.core.store import wait_given_up
from dualwrite.recipes.sql.sqlite import raise_synchronous
from dualwrite.recipes.sql.transaction_control import TransactionControl, control_of, grammar_of
from dualwrite.recipes.sqlalchemy.drivers import (
    DRIVERS_THAT_MARK,
    ON_CONNECTION,
    CommitMessage,
    begin_marker,
    commits_by_itself,
    deciding,
    drop_while_deciding,
    in_transaction,
)
from dualwrite.recipes.sqlalchemy.engines import connections_of, proxied_by

if TYPE_CHECKING:
    from dualwrite.recipes.core.dual_write import DualWrite

_log = logging.getLogger(__name__)

Bind = Session | scoped_session[Session] | sa.Connection


class Binding(Protocol):
    """What a Session and a Connection do differently."""

    session: Session | None

    @property
    def is_open(self) -> bool:
        """Whether `close` has something to do for which it may have to wait."""

    def connect(self) -> sa.Connection: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class _SessionBinding:
    def __init__(self, session: Session, *, owned: bool) -> None:
        self.session: Session | None = session
        self._session = session
        self._owned = owned
        self._root: sa.RootTransaction | None = None

    @property
    def is_open(self) -> bool:
        session = self._session
        return self._owned and (session.in_transaction() or type(session).close is not Session.close)

    def connect(self) -> sa.Connection:
        connection = self._session.connection()
        self._root = connection.get_transaction()
        return connection

    def commit(self) -> None:
        self._session.commit()

    def rollback(self) -> None:
        if self._owned and self._root is not None and self._root.connection.get_transaction() is not self._root:
            self._session.close()  # it was ended on the Connection; the Session would end it once more
            return
        self._session.rollback()
        if self._root is not None and self._root.is_active:
            self._root.rollback()  # a Session that joined its Connection's transaction leaves that one open

    def close(self) -> None:
        if self._owned:
            self._session.close()


class _ConnectionBinding:
    session: Session | None = None

    def __init__(self, connection: sa.Connection, *, owned: bool) -> None:
        self._connection = connection
        self._owned = owned

    @property
    def is_open(self) -> bool:
        return self._owned

    def connect(self) -> sa.Connection:
        if not self._connection.in_transaction():
            self._connection.begin()
        return self._connection

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        if self._owned:
            self._connection.close()


def _binding(bind: Bind, *, owned: bool) -> Binding:
    if isinstance(bind, sa.Connection):
        return _ConnectionBinding(bind, owned=owned)
    if not isinstance(bind, Session | scoped_session):
        raise IllegalStateError(f"a dual write runs on a Session or a Connection, not on {bind!r}; nothing was written")
    return _SessionBinding(bind() if isinstance(bind, scoped_session) else bind, owned=owned)


# The execution option of connections that a writer opens for its own statements.
_OWN = "dualwrite_own"


# Connections of a parent process, kept from the garbage collector, which would roll them back.
_abandoned: list[sa.Connection] = []


# Remembered here, because `event.contains` identifies an engine by its id(), which a new engine may have inherited from
# one that was collected: the new engine would not be watched, and a swallowed error would end as a success.
_watched: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
_watching = threading.Lock()


def watch(engine: sa.Engine) -> None:
    """Notify the transactions of dual writes on `engine` of commits and failed statements. Harmless when repeated.

    SQLAlchemy iterates over an engine's listeners while other threads work, so they must not come and go with each
    transaction: a listener that leaves while an error is handled replaces that error by a RuntimeError.
    """
    with _watching:
        if engine not in _watched:
            _watched.add(engine)
            for name, listener in _LISTENERS.items():
                event.listen(engine, name, listener)
            if engine.dialect.name == "sqlite":
                event.listen(engine, "savepoint", _begin_before_savepoint)
                event.listen(engine, "checkout", raise_synchronous)
            if engine.dialect.name == "postgresql" and engine.dialect.driver in DRIVERS_THAT_MARK:
                # Before other listeners, which may send the first statement. `event.listen` ignores `insert` here.
                _event_key(engine, "begin", _begin_listener(engine)).base_listen(insert=True)


def _begin_listener(engine: sa.Engine) -> Callable[[sa.Connection], None]:
    """Return the listener that marks the transactions of `engine`, and of its variants that have none of their own.

    A variant, which `execution_options()` returns, calls its own listeners and then those of `engine`. Between two of
    ours one of the application may send BEGIN, whose mark the second would forget.
    """
    mark = begin_marker()
    own = weakref.ref(engine)  # the engine keeps the listener

    def on_begin(connection: sa.Connection) -> None:
        if connection.engine is own() or _nearest_watched(connection.engine) is own():
            mark(connection.connection.driver_connection)

    return on_begin


def _nearest_watched(variant: sa.Engine) -> sa.Engine:
    while variant not in _watched:
        variant = proxied_by(variant)
    return variant


def for_own_use(engine: sa.Engine) -> sa.Engine:
    """Return the same engine for a writer's own statements, outside the caller's transactions; `watch` it too."""
    return engine.execution_options(**{_OWN: True})


def _before_commit(connection: sa.Connection) -> None:
    transaction = vars(connection).get(ON_CONNECTION)
    if transaction is not None:
        transaction.before_commit()


def _begin_before_savepoint(connection: sa.Connection, name: str | None) -> None:
    """Send BEGIN: sqlite3 sends it only before the first change, and until then RELEASE of a savepoint is a COMMIT."""
    if in_transaction(connection.connection.driver_connection) is False and not commits_by_itself(connection):
        connection.exec_driver_sql("BEGIN")


def _before_rollback(connection: sa.Connection) -> None:
    transaction = vars(connection).get(ON_CONNECTION)
    if transaction is not None:
        transaction.rolled_back()


def _before_statement(
    connection: sa.Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
) -> None:
    transaction = vars(connection).get(ON_CONNECTION)
    if transaction is not None:
        try:
            transaction.before_statement(statement)
        except Exception as refused:  # which SQLAlchemy 2.0 does not report to `_on_error`
            transaction.remember_failure(refused, statement)
            raise


def _after_statement(
    connection: sa.Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
) -> None:
    transaction = vars(connection).get(ON_CONNECTION)
    if transaction is not None:
        transaction.after_statement(statement)


# The attribute of a Session under which the listeners below find the transaction that it is part of. They listen to all
# Sessions, from the start: to make and remove listeners for each block costs more than the block's own statement.
_ATTRIBUTE = "_dualwrite_transaction"


def follow_session(session: Session, transaction: SqlAlchemyTransaction) -> None:
    """Tell the transaction what the Session does, until `forget_session`."""
    vars(session)[_ATTRIBUTE] = transaction


def forget_session(session: Session) -> None:
    """Tell nobody any more what the Session does. Harmless when repeated."""
    vars(session).pop(_ATTRIBUTE, None)


@event.listens_for(Session, "after_begin")
def _after_begin(session: Session, transaction: SessionTransaction, connection: sa.Connection) -> None:
    ours: SqlAlchemyTransaction | None = vars(session).get(_ATTRIBUTE)
    if ours is not None:
        ours.session_began(connection)


@event.listens_for(Session, "before_commit")
def _before_session_commit(session: Session) -> None:
    ours: SqlAlchemyTransaction | None = vars(session).get(_ATTRIBUTE)
    if ours is not None:
        ours.session_commits(session)


@event.listens_for(Session, "after_transaction_create")
def _after_transaction_create(session: Session, transaction: SessionTransaction) -> None:
    """Set a savepoint at once.

    A Session would wait for the first statement, so that records before it would come before the savepoint, and a
    statement on a Connection that the application holds would not be in it at all.
    """
    ours: SqlAlchemyTransaction | None = vars(session).get(_ATTRIBUTE)
    if ours is not None:
        if transaction.nested:
            session.connection()
        else:
            ours.session_begins(session)


def _on_error(context: ExceptionContext) -> None:
    connection = context.connection
    transaction = None if connection is None else transaction_on(connection)
    if transaction is not None:
        transaction.remember_failure(context.original_exception, context.statement)
    is_ours = transaction is not None or (connection is not None and _OWN in connection.get_execution_options())
    if is_ours and context.dialect.name == "sqlite":
        _keep_interrupted_connection(context)


def _keep_interrupted_connection(context: ExceptionContext) -> None:
    """Prevent SQLAlchemy from closing the connection after a cancellation and leaving the rollback to SQLite.

    SQLite keeps the lock of a closed connection for as long as one of its cursors is referenced, for instance by a
    traceback. The connection still works, so roll back as usual: the driver does that after the statement.
    """
    if not isinstance(context.original_exception, Exception):
        context.is_disconnect = False


_LISTENERS: dict[str, Callable[..., Any]] = {
    "commit": _before_commit,
    "rollback": _before_rollback,
    "handle_error": _on_error,
    "before_cursor_execute": _before_statement,
    "after_cursor_execute": _after_statement,
}


def assert_one_database(session: Session, connection: sa.Connection) -> None:
    """Raise IllegalStateError if the Session's transaction uses any connection other than this one."""
    root = session.get_transaction()
    for other in () if root is None else connections_of(root):
        if other is not connection:
            raise IllegalStateError(_SECOND_DATABASE)


def transaction_on(connection: sa.Connection) -> SqlAlchemyTransaction | None:
    """Return the dual write's transaction that runs on `connection`; None if there is none."""
    transaction: SqlAlchemyTransaction | None = vars(connection).get(ON_CONNECTION)
    return transaction


class SqlAlchemyTransaction:
    """The database transaction of a dual write, up to and including the decision, on an engine that is watched.

    It must not be ended inside the block: a COMMIT there would publish the data without the records, and a ROLLBACK
    would release the lock. It also remembers statement errors outside savepoints, because PostgreSQL silently rolls a
    failed transaction back at COMMIT, and a swallowed error must not end as a success. `records` are notified of
    savepoints.
    """

    may_begin_in_savepoint = False
    """Whether the dual write may begin inside a savepoint, because its COMMIT always ends the whole transaction."""

    def __init__(self, bind: Bind, engine: sa.Engine, records: RecordBuffer, *, owned: bool) -> None:
        self._initialise(_binding(bind, owned=owned), engine, records)

    def _initialise(self, binding: Binding, engine: sa.Engine, records: RecordBuffer) -> None:
        self._binding = binding
        self.session = binding.session
        """The Session, or None if the dual write runs on a bare Connection."""
        self._records = records
        self.write: DualWrite | None = None
        """The dual write to which `send(session, ...)` in the same transaction adds its records."""
        self.transactional_id: str | None = None
        """The id whose state row was requested; for the log."""
        self._process_id = os.getpid()
        self._committing = False
        self._failure: BaseException | None = None
        self._second_database = False
        self._driver_has_begun = False
        self._control: TransactionControl | None = None  # of the statement in progress
        self._is_dropped = False
        self._raise_durability: str | None = None  # None until the state is written
        self._is_still_written: Callable[[], bool] | None = None  # None until the state is written
        self._message: CommitMessage | None = None  # what COMMIT is sent with; None: it is sent alone
        self._is_added = False  # what decides was written before COMMIT, whoever sends that
        self._statements_since = 0
        self.commit_was_sent = False
        """Whether COMMIT may have reached the database; while it has not, a rollback is certain."""
        self.connection = self._binding.connect()
        self.driver: Any = self.connection.connection.driver_connection
        """The driver's connection."""
        self._grammar = grammar_of(self.connection.dialect.name)
        self._root = self.connection.get_transaction()
        try:
            self._assert_can_decide(engine)
        except BaseException:
            self._binding.close()
            raise
        vars(self.connection)[ON_CONNECTION] = self
        if self.session is not None:
            follow_session(self.session, self)

    def _assert_can_decide(self, engine: sa.Engine) -> None:
        # `execution_options()` returns a new Engine that shares the pool.
        if self.connection.engine.pool is not engine.pool:
            raise IllegalStateError(_OTHER_ENGINE)
        if self.connection.in_nested_transaction() and not self.may_begin_in_savepoint:
            raise IllegalStateError(_NESTED)
        if self.session is not None:
            assert_one_database(self.session, self.connection)
        if isinstance(self._root, sa.TwoPhaseTransaction):
            raise IllegalStateError(_TWO_PHASE)
        if ON_CONNECTION in vars(self.connection):
            raise IllegalStateError(_INSIDE_ANOTHER)
        if commits_by_itself(self.connection):
            raise IllegalStateError(_AUTOCOMMIT)

    @property
    def is_over(self) -> bool:
        """Whether the transaction has ended."""
        return self._root is None or not self._root.is_active or self.connection.get_transaction() is not self._root

    @property
    def holds_back(self) -> bool:
        """Whether the Session holds statements back."""
        return self.session is not None and not self.session._is_clean()  # noqa: SLF001 - as its own commit() asks

    @property
    def has_open(self) -> bool:
        """Whether `close` may have to wait."""
        return self._binding.is_open

    def flush(self) -> None:
        """Send the statements that the Session still holds back. Raises the database's errors, as `assert_intact`."""
        assert self.session is not None, "it holds something back"
        self.session.flush()
        self.assert_intact()

    def assert_intact(self) -> None:
        """Raise a RecipeError or IllegalStateError if this transaction cannot be the decision."""
        self._assert_not_doomed()
        if self._second_database:
            raise IllegalStateError(_SECOND_DATABASE)
        if self.is_over:
            raise TransactionEndedInsideError(
                "the block rolled its database transaction back, which also released the row lock; "
                "neither database nor Kafka was changed: let the dual write end the transaction"
            )

    def commit(self) -> None:
        """Send COMMIT. After an error with `commit_was_sent` set, the outcome must be read from the state row."""
        self._committing = True
        if self._raise_durability is None and self._message is None:
            self._binding.commit()
        else:
            self._decide()
        if not self.commit_was_sent:
            raise IllegalStateError(_JOINED)
        # A hook that ran between the last check and COMMIT may have failed the transaction and swallowed the error.
        self._assert_not_doomed()

    def decides(
        self,
        raise_durability: str | None,
        is_still_written: Callable[[], bool] | None = None,
        *,
        is_added: bool = False,
    ) -> None:
        """Note that the state was written, and that `raise_durability`, if any, makes COMMIT wait for durability.

        `is_still_written` reads the row again, if something else was done before COMMIT; a caller whose last statement
        is its own needs none. `is_added`: as for `decides_by`.
        """
        self._is_added = is_added
        self._raise_durability = raise_durability or ""
        self._is_still_written = is_still_written
        self._statements_since = 0

    def decides_by(self, message: CommitMessage, *, is_added: bool = False) -> None:
        """Let COMMIT be sent by `message`, which writes the state, proves the lock, and makes COMMIT durable.

        `is_added`: it was written before, so that the COMMIT of a function of the application decides too.
        """
        self._message = message
        self._is_added = is_added

    def _decide(self) -> None:
        message = self._message
        try:
            with message or deciding(self.connection.dialect.driver, self.driver) as wait:
                self._binding.commit()
        except BaseException:
            if message is not None and message.was_refused:
                # the server did not reach the COMMIT; a function of the application may have sent another one
                self.commit_was_sent = self._is_added and self.has_hooks
            raise
        if wait.was_given_up:
            raise wait_given_up(self.transactional_id)
        if message is not None and self.commit_was_sent and not message.was_committed:
            raise IllegalStateError(_BYPASSED)

    def drop(self) -> bool:
        """Drop an asyncpg connection whose COMMIT is waiting. Return False, and do nothing, if COMMIT was not sent."""
        if self.commit_was_sent and not self.connection.closed and not self.connection.invalidated:
            drop_while_deciding(self.connection)
        return self.commit_was_sent

    def rollback(self) -> None:
        """Roll back, even if that takes dropping the connection, after which the database rolls back. Never raises."""
        if self._belongs_to_the_parent:
            return
        try:
            self._binding.rollback()
        except Exception as error:
            self._drop("rolling back the database", error)

    def close(self) -> None:
        """Close what this transaction opened, and stop watching."""
        if self._belongs_to_the_parent:
            _abandoned.append(self.connection)
            return
        if self.session is not None:
            forget_session(self.session)
        vars(self.connection).pop(ON_CONNECTION, None)
        try:
            self._binding.close()
        except Exception as error:
            self._drop("closing the session", error)

    @property
    def _belongs_to_the_parent(self) -> bool:
        """Whether this is a forked child, which shares the socket: what it sent would end the parent's transaction."""
        return os.getpid() != self._process_id

    def _drop(self, what: str, error: Exception) -> None:
        """Drop the connection after `what` failed. Logs once: closing also fails after a failed rollback."""
        if not self._is_dropped:
            self._is_dropped = True
            warn_of_drop(_log, self.transactional_id, what, error)
        try:
            self.connection.invalidate()
        except Exception:
            _log.debug("The database connection was already unusable.", exc_info=True)

    def doom(self, error: BaseException) -> None:
        """Let this dual write, or its current savepoint, end only by a rollback, even if `error` is swallowed."""
        if self._is_in_savepoint():
            self._records.refuse(error)
        else:
            self._doom_all(error)

    def _is_in_savepoint(self) -> bool:
        """Return whether the block is inside one of its savepoints."""
        return self.connection.in_nested_transaction()

    def _doom_all(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    def _assert_not_doomed(self) -> None:
        failure = self._failure or self._records.refused
        if failure is not None:
            raise TransactionDoomedError(
                f"a part of this dual write failed ({type(failure).__name__}) and its error was swallowed; "
                "neither database nor Kafka was changed: let the error end the block, or run a statement that may "
                "fail in a savepoint (session.begin_nested())"
            ) from failure

    def before_commit(self) -> None:
        if not self._committing:
            raise TransactionEndedInsideError(
                "commit was called inside a dual write; neither database nor Kafka was changed: "
                "leaving the block commits both"
            )
        self._assert_not_doomed()
        has_ended = self._driver_has_begun and in_transaction(self.driver) is False
        if self._is_still_written is not None and (self._statements_since or has_ended or self.has_hooks):
            # A hook of the application ran after the state was written, and may have undone it: the records would be
            # published without what it has undone. Past SQLAlchemy, it leaves no trace here.
            self._driver_has_begun = False  # the row tells, also of a COMMIT past SQLAlchemy
            if not self._is_still_written():
                self.commit_was_sent = self._is_added
                raise TransactionEndedInsideError(_UNDONE)
        if self._raise_durability and self._statements_since:
            # a Session hook ran after the state was written, and may have lowered the durability setting
            self.connection.exec_driver_sql(self._raise_durability)
        self.commit_was_sent = True

    @property
    def has_hooks(self) -> bool:
        """Whether functions of the application are called inside the commit."""
        listeners = self.connection.dispatch.commit
        of_session = () if self.session is None else self.session.dispatch.before_commit
        return any(each is not _before_commit for each in listeners) or any(
            each is not _before_session_commit for each in of_session
        )

    def rolled_back(self) -> None:
        """Note that the whole transaction is rolled back; `assert_intact` will find it."""

    def remember_failure(self, error: BaseException, statement: str | None) -> None:
        # A missing savepoint means that the server rolled back the whole transaction, as MySQL does after a deadlock.
        # The effect of an interrupted statement is unknown.
        if (
            not self._is_in_savepoint()
            or (statement is not None and control_of(statement, self._grammar).steps)
            or not isinstance(error, Exception)
        ):
            self._doom_all(error)

    def before_statement(self, statement: str) -> None:
        self._control = control_of(statement, self._grammar)
        if self._control.steps:
            self._control.assert_may_be_sent(statement)
        if self._driver_has_begun and in_transaction(self.driver) is False:
            ended = TransactionEndedInsideError(
                "COMMIT or ROLLBACK was sent past SQLAlchemy inside a dual write, straight to the driver's connection; "
                "Kafka was not changed, and the database keeps only what a COMMIT made permanent: let the dual write "
                "end the transaction"
            )
            self._doom_all(ended)
            # a COMMIT after the state has decided
            self.commit_was_sent |= self._is_still_written is not None or self._is_added
            raise ended

    def after_statement(self, statement: str) -> None:
        self._statements_since += 1
        if not self._driver_has_begun:
            self._driver_has_begun = in_transaction(self.driver) is True
        # Taken from the statement, because SQLAlchemy fires the savepoint event before it names the savepoint.
        if self._control is not None and self._control.steps:
            self._control.follow(self._records)

    def session_begins(self, session: Session) -> None:
        """Take note that a Session which is part of the transaction begins one of its own, on no connection yet."""

    def session_began(self, connection: sa.Connection) -> None:
        """Take note that a Session which is part of the transaction uses a connection."""
        self.refuse_second_database(connection)

    def session_commits(self, session: Session) -> None:
        """Take note that a Session which is part of the transaction commits, or releases a savepoint."""

    def refuse_second_database(self, connection: sa.Connection) -> None:
        """Raise IllegalStateError if the Session uses another connection."""
        if connection is not self.connection:
            self._second_database = True
            raise IllegalStateError(_SECOND_DATABASE)


_AUTOCOMMIT = (
    "the database connection is in autocommit mode, in which each statement is a transaction of its own; "
    "nothing was written: use a connection with transactions for dual writes"
)
_NESTED = (
    "a dual write commits the whole database transaction and so cannot start inside a savepoint; "
    "nothing was written: release the savepoint first"
)
_INSIDE_ANOTHER = (
    "this database transaction already belongs to a dual write and cannot decide a second one; nothing was written: "
    "send all records in one block"
)
_OTHER_ENGINE = (
    "the Session or Connection belongs to another Engine than this DualWriter, which would look up the outcome of a "
    "lost commit in the wrong database; nothing was written: make both from the same Engine"
)
_TWO_PHASE = (
    "the database transaction is itself two-phase, so its own coordinator would decide it and not this dual write; "
    "nothing was written: use a Session without twophase=True"
)
_SECOND_DATABASE = (
    "the Session of this dual write went to a second database, which would not be committed with it; "
    "neither database nor Kafka was changed: write to one database only"
)
_BYPASSED = (
    "COMMIT was sent without the prepared state of this dual write, by something that replaces commit() of the "
    "driver's connection or of SQLAlchemy's dialect; Kafka was not changed, and the database keeps what that COMMIT "
    "made permanent: remove what replaces it"
)
_UNDONE = (
    "a before_commit hook rolled back what this dual write had written, by ROLLBACK TO a savepoint of the block or "
    "past SQLAlchemy; neither database nor Kafka was changed: let an exception end the block"
)
_JOINED = (
    "the Session takes part in a transaction that was begun on its Connection, so Session.commit() commits nothing; "
    "neither database nor Kafka was changed: give the Connection to the dual write, or let the Session begin"
)
