"""The SQLAlchemy transaction of a dual write: it holds the lock on the state row, and its COMMIT is the decision."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from dualwrite.errors import IllegalStateError, TransactionEndedInsideError
from dualwrite.guarded import pass_on_signal
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import inside_another, is_conflict, partly_failed, warn_of_drop
from dualwrite.recipes.core.store import ended_past, wait_given_up
from dualwrite.recipes.sql.postgres import MARK_ATTRIBUTE
from dualwrite.recipes.sql.postgres_steps import CommitMessage
from dualwrite.recipes.sql.transaction_control import GRAMMARS, MYSQL, POSTGRES, Savepoint, checked, effect_of
from dualwrite.recipes.sqlalchemy.binding import Bind, Binding, binding_of
from dualwrite.recipes.sqlalchemy.drivers import (
    DRIVERS_THAT_MARK,
    ON_CONNECTION,
    autocommit,
    commits_by_itself,
    deciding,
    ended_past_sqlalchemy,
    has_commit_listeners,
    in_transaction,
    is_in_pipeline,
    mark_late,
)
from dualwrite.recipes.sqlalchemy.engines import connections_of
from dualwrite.recipes.sqlalchemy.events import commit_has_begun
from dualwrite.recipes.sqlalchemy.mysql_row_lock import SET_MARK, takes_the_mark, undone_by

if TYPE_CHECKING:
    from dualwrite.recipes.core.dual_write import DualWrite

_log = logging.getLogger(__name__)

# Connections of a parent process, kept from the garbage collector, which would roll them back.
_abandoned: list[sa.Connection] = []


def assert_one_database(session: Session, connection: sa.Connection) -> None:
    """Raise IllegalStateError if the Session's transaction uses any connection other than this one."""
    root = session.get_transaction()
    for other in () if root is None else connections_of(root):
        if other is not connection:
            raise IllegalStateError(_SECOND_DATABASE)


def transaction_on(connection: sa.Connection) -> SqlAlchemyTransaction | None:
    """Return the dual write's transaction on `connection`; None if there is none."""
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
        self._initialise(binding_of(bind, owned=owned), engine, records, owned=owned)
        if not owned:
            records.unwatch = self.let_go
        self._begin_to_watch()

    def _initialise(self, binding: Binding, engine: sa.Engine, records: RecordBuffer, *, owned: bool = False) -> None:
        self._binding = binding
        self._owned = owned
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
        self._savepoint: Savepoint | None = None  # of the statement in progress
        self._is_dropped = False
        self._decides = False
        self._is_still_written: Callable[[], bool] | None = None  # None until the state is written
        self.message: CommitMessage | None = None
        """Carries COMMIT; None: COMMIT is sent alone."""
        self._is_added = False  # the records are in the outbox, so any COMMIT decides, even the application's
        self._statements_since = 0
        self.has_arrived = False
        """Whether COMMIT was requested and not refused."""
        self.commit_was_sent = False
        """Whether COMMIT may have reached the database; while it has not, a rollback is certain."""
        self.was_ended_past = False
        """Whether the transaction was ended past SQLAlchemy, maybe by a COMMIT, before it was rolled back."""
        self._is_rolled_back = False
        self.connection = self._binding.connect()
        self._fairy = self.connection.connection  # SQLAlchemy's own name for its proxy of the driver's connection
        self._dbapi_connection = self._fairy.dbapi_connection
        assert self._dbapi_connection is not None, "the Connection has just begun a transaction on it"
        self.driver: Any = self.connection.dialect.get_driver_connection(self._dbapi_connection)
        """The driver's connection."""
        self._is_marked = self.connection.dialect.driver in DRIVERS_THAT_MARK
        self._driver_has_begun = in_transaction(self.driver) is True
        self._grammar = GRAMMARS.get(self.connection.dialect.name, POSTGRES)
        self._is_on_mysql = self._grammar is MYSQL
        self._root = self._binding.root
        self._assert_can_decide(engine)

    def _begin_to_watch(self) -> None:
        """Mark the transaction, and register for events. Call it last: an interruption may come at once."""
        if self._is_on_mysql:
            self._failure = undone_by(self.connection, self.connection, self._root)
            self.connection.exec_driver_sql(SET_MARK)
        vars(self.connection)[ON_CONNECTION] = vars(self._fairy)[ON_CONNECTION] = self
        if self._driver_has_begun:
            mark_late(self.connection)
        if self.session is not None:
            vars(self.session)[ON_CONNECTION] = self

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
            raise inside_another()
        if commits_by_itself(self.connection.dialect, self._dbapi_connection, self.driver):
            raise autocommit()

    @property
    def is_over(self) -> bool:
        return self._root is None or not self._root.is_active or self.connection.get_transaction() is not self._root

    @property
    def holds_back(self) -> bool:
        """Whether the Session has statements that it has not sent yet."""
        if self.session is None:
            return False
        is_clean = self.session._is_clean()  # noqa: SLF001 - as its own commit() asks
        return not is_clean or (self._is_on_mysql and self.session.in_nested_transaction())

    @property
    def _is_left_out(self) -> bool:
        """Whether the pool has not got our connection back, although no Session has it any more."""
        fairy: Any = self._fairy
        if fairy.dbapi_connection is None or not self._owned:
            return False
        record = fairy._connection_record  # noqa: SLF001 - of the driver's connection, for as long as it has this proxy
        return record is not None and record.fairy_ref is not None and record.fairy_ref() is fairy

    def flush(self) -> None:
        """Send the Session's pending statements, on MySQL with its open savepoints. Raises as `assert_intact`."""
        assert self.session is not None, "it holds something back"
        self.session.flush()
        while self._is_on_mysql and (nested := self.session.get_nested_transaction()) is not None:
            nested.commit()
        self.assert_intact()

    def assert_intact(self) -> None:
        """Raise a RecipeError or IllegalStateError if this transaction cannot be the decision."""
        self.assert_ours()
        self._assert_not_doomed()
        if self._second_database:
            raise IllegalStateError(_SECOND_DATABASE)
        if self.was_ended_past:
            raise ended_past_sqlalchemy(self.connection)
        if self.is_over:
            raise TransactionEndedInsideError(
                "the block rolled its database transaction back, which also released the row lock; "
                "neither database nor Kafka was changed: let the dual write end the transaction"
            )

    def commit(self) -> None:
        """Send COMMIT. After an error with `commit_was_sent` set, the outcome must be read from the state row."""
        self.assert_ours()
        self._committing = True
        if has_commit_listeners(self.connection):
            event.listen(self.connection, "commit", commit_has_begun)  # runs before the engine's listeners
        if self._decides:
            self._decide()
        else:
            self._binding.commit()
        if not self.commit_was_sent:
            if not self.is_over:
                raise IllegalStateError(_JOINED)
            self.commit_was_sent = True  # by a replacement of the dialect's do_commit
            raise IllegalStateError(_BYPASSED)
        # A hook that ran between the last check and COMMIT may have failed the transaction and swallowed the error.
        self._assert_not_doomed()

    def assert_has_not_ended(self) -> None:
        if self._has_ended_past:
            self.was_ended_past = True
            raise ended_past_sqlalchemy(self.connection)

    def decides(self, is_still_written: Callable[[], bool] | None = None, *, is_added: bool = False) -> None:
        """Note that the state was written.

        `is_still_written` reads the row again, if other statements ran before COMMIT; without such statements it may be
        None. `is_added` is as `decides_by` has it.
        """
        self._decides = True
        self._is_added = is_added
        self._is_still_written = is_still_written
        self._statements_since = 0

    def decides_by(self, message: CommitMessage, *, is_added: bool = False) -> None:
        """Let COMMIT be sent by `message`, which writes the state, proves the lock, and makes COMMIT durable.

        `is_added`: the records were written before, so that a COMMIT sent by a hook of the application decides too.
        """
        self._decides = True
        self.message = message
        self._is_added = is_added

    def _decide(self) -> None:
        message = self.message
        try:
            with message or deciding(self.connection) as wait:
                self._binding.commit()
        except BaseException:
            if message is not None:
                message.let_go()  # an exception of a signal may have struck at the end of the `with`
            if message is not None and message.was_refused:
                # the server did not reach this COMMIT; a hook of the application may have sent another one
                self.commit_was_sent = self._is_added and self.has_hooks
            raise
        if wait.was_given_up:
            raise wait_given_up(self.transactional_id)
        if message is not None and self.commit_was_sent and not message.was_committed:
            raise IllegalStateError(_BYPASSED)

    def rollback(self) -> None:
        """Roll back, if necessary by dropping the connection. Raises only errors of signal handlers."""
        if self._belongs_to_the_parent:
            return
        try:
            self._binding.rollback()
            if self._is_left_open:
                self.connection.dialect.do_rollback(self.connection.connection)
        except Exception as error:
            self._drop("rolling back the database", error)
            pass_on_signal(error)

    @property
    def _is_left_open(self) -> bool:
        """Whether a COMMIT refused by a hook of the application has left the driver's transaction open.

        SQLAlchemy then takes it for ended. The next COMMIT of the caller's Connection would commit it.
        """
        is_lost = self.connection.closed or self.connection.invalidated
        return not is_lost and not self.connection.in_transaction() and in_transaction(self.driver) is not False

    def close(self) -> None:
        """Close the connections and Sessions opened for this transaction, and stop watching; harmless when repeated."""
        if self._belongs_to_the_parent:
            _abandoned.append(self.connection)
            return
        # These refer back to this transaction: the cycle would leave all of the block to the garbage collector.
        self.write = self._is_still_written = self.message = None
        self.let_go()
        try:
            self._binding.close()
            if self._is_left_out:
                self._fairy._checkin()  # noqa: SLF001 - its Connection may be closed
        except Exception as error:
            self._drop("closing the session", error)
            pass_on_signal(error)

    def let_go(self) -> None:
        """Watch the connection and the Session no longer; harmless when repeated."""
        if self.session is not None:
            vars(self.session).pop(ON_CONNECTION, None)
        vars(self.connection).pop(ON_CONNECTION, None)
        vars(self._fairy).pop(ON_CONNECTION, None)

    @property
    def _belongs_to_the_parent(self) -> bool:
        """Whether this is a forked child, which shares the socket: sending on it would end the parent's transaction."""
        return os.getpid() != self._process_id

    def assert_ours(self) -> None:
        """Raise IllegalStateError in a forked child."""
        if os.getpid() != self._process_id:
            raise IllegalStateError(_OF_THE_PARENT)

    def _drop(self, what: str, error: Exception) -> None:
        """Drop the connection after a failure. Logs once: closing also fails after a failed rollback."""
        if not self._is_dropped:
            self._is_dropped = True
            warn_of_drop(_log, self.transactional_id, what, error)
        try:
            self.connection.invalidate()
        except Exception as unusable:
            _log.debug("The database connection was already unusable.", exc_info=True)
            pass_on_signal(unusable)

    def doom(self, error: BaseException) -> None:
        """Allow this dual write, or its current savepoint, only to be rolled back, even if `error` is swallowed."""
        if self.connection.in_nested_transaction():
            self._records.refuse(error)
        else:
            self._doom_all(error)

    def _doom_all(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    def _assert_not_doomed(self) -> None:
        failure = self._failure or self._records.refused
        if failure is not None:
            raise partly_failed(failure, "session.begin_nested()")

    def commit_has_begun(self) -> None:
        """Note that listeners of the application run now, and may send COMMIT past SQLAlchemy."""
        self.commit_was_sent = self._committing

    def arrive(self, send_commit: Callable[[], None]) -> None:
        """Send COMMIT with `send_commit`, after COMMIT was requested and all listeners were called."""
        if not self._committing:
            raise TransactionEndedInsideError(
                "commit was called inside a dual write; neither database nor Kafka was changed: "
                "leaving the block commits both"
            )
        self._assert_not_doomed()
        if self._is_still_written is not None:
            self._assert_still_decides(self._is_still_written)
        elif self.message is None and self.has_hooks and self.connection.dialect.name == "postgresql":
            self.commit_was_sent = False
            self.connection.exec_driver_sql("SELECT 1")  # fails if the transaction has
        self.commit_was_sent = self.has_arrived = True
        send_commit()

    def _assert_still_decides(self, is_still_written: Callable[[], bool]) -> None:
        """Raise if a hook of the application has undone the deciding write, or failed the transaction.

        The records would be published without it, and the server would not report it: PostgreSQL answers COMMIT of a
        failed transaction with ROLLBACK, which is no error, and COMMIT outside of a transaction succeeds everywhere.
        """
        if self._statements_since or self._has_ended_past or self.has_hooks:
            # A hook's COMMIT past SQLAlchemy leaves no trace here; only the row shows it.
            self._driver_has_begun = False
            if not is_still_written():
                self.commit_was_sent = self._is_added  # a hook may have committed what is published by now
                raise TransactionEndedInsideError(_UNDONE)

    @property
    def has_hooks(self) -> bool:
        """Whether the application has hooks inside the commit."""
        if self.session is not None and self.session.dispatch.before_commit:
            return True
        return has_commit_listeners(self.connection)

    def before_rollback(self) -> None:
        """Note that ROLLBACK is about to be sent, and whether the transaction had already ended, for `assert_intact`.

        After a failed statement the database may have rolled back by itself.
        """
        if not self._is_rolled_back and not self.commit_was_sent and self._failure is None:
            self.was_ended_past |= self._has_ended_past
        self._is_rolled_back = True

    def remember_failure(self, error: BaseException, statement: str | None) -> None:
        # MySQL rolls the whole transaction back after a deadlock, and then a savepoint is missing. The effect of an
        # interrupted statement is unknown.
        if (
            not self.connection.in_nested_transaction()
            or (statement is not None and effect_of(statement, self._grammar) is not None)
            or not isinstance(error, Exception)
            or (self._is_on_mysql and is_conflict(error))
        ):
            self._doom_all(error)
        else:
            self._records.refuse(error)

    def before_statement(self, statement: str) -> bool:
        """Check a statement. Return whether `after_statement` must be called if it succeeds."""
        self._savepoint = checked(statement, self._grammar)
        if self._savepoint is not None and is_in_pipeline(self.driver):
            queued = IllegalStateError(_QUEUED)
            self._doom_all(queued)
            raise queued
        if self._has_ended_past:
            ended = ended_past(
                "COMMIT or ROLLBACK was sent straight to the driver's connection inside a dual write, bypassing "
                "SQLAlchemy; Kafka was not changed, and the database keeps only changes that a COMMIT made permanent: "
                "let the dual write end the transaction"
            )
            self._doom_all(ended)
            self.was_ended_past = True
            # a COMMIT sent after the state was written has decided
            self.commit_was_sent |= self._is_still_written is not None or self._is_added
            raise ended
        self._statements_since += 1
        return not (self._driver_has_begun or self._is_marked) or self._savepoint is not None

    @property
    def _has_ended_past(self) -> bool:
        """Whether the transaction that the driver began was ended past SQLAlchemy."""
        has_begun = self._driver_has_begun or (self._is_marked and MARK_ATTRIBUTE in vars(self.driver))
        return has_begun and in_transaction(self.driver) is False

    def after_statement(self) -> None:
        if not self._driver_has_begun:
            self._driver_has_begun = in_transaction(self.driver) is True
        # Read from the statement, because SQLAlchemy fires the savepoint event before it names the savepoint
        if self._savepoint is not None:
            takes_the_mark_too = self._is_on_mysql and takes_the_mark(self._savepoint, self._records)
            self._savepoint.follow(self._records)
            if takes_the_mark_too:
                self.connection.exec_driver_sql(SET_MARK)

    def refuse_second_database(self, connection: sa.Connection) -> None:
        if connection is not self.connection:
            self._second_database = True
            raise IllegalStateError(_SECOND_DATABASE)


_NESTED = (
    "a dual write commits the whole database transaction and so cannot start inside a savepoint; "
    "nothing was written: release the savepoint first"
)
_OTHER_ENGINE = (
    "the Session or Connection belongs to another Engine than this DualWriter, which would look up the outcome of a "
    "commit without a response in the wrong database; nothing was written: make both from the same Engine"
)
_TWO_PHASE = (
    "the database transaction is itself two-phase, so its own coordinator would decide it and not this dual write; "
    "nothing was written: use a Session without twophase=True"
)
_SECOND_DATABASE = (
    "the Session of this dual write used a second database, which would not be committed with it; neither database "
    "nor Kafka was changed: write to one database only"
)
_QUEUED = (
    "a savepoint statement was sent in a pipeline of psycopg, where it cannot be tracked; it was not executed, and "
    "neither database nor Kafka was changed: leave the pipeline first"
)
_BYPASSED = (
    "COMMIT was sent without the prepared state of this dual write, because commit() of the driver's connection or of "
    "SQLAlchemy's dialect was replaced; Kafka was not changed, and the database keeps the changes of that COMMIT: "
    "remove the replacement"
)
_UNDONE = (
    "a before_commit hook rolled back changes of this dual write, by ROLLBACK TO a savepoint of the block or "
    "bypassing SQLAlchemy; neither database nor Kafka was changed: let an exception end the block"
)
_JOINED = (
    "the Session takes part in a transaction that was begun on its Connection, so Session.commit() commits nothing; "
    "neither database nor Kafka was changed: give the Connection to the dual write, or let the Session begin"
)
_OF_THE_PARENT = (
    "this database transaction belongs to the process that forked; nothing was written here: let the parent end it, "
    "and use separate sessions in the child"
)
