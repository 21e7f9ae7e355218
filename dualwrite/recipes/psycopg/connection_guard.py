"""The guard of a psycopg connection during a dual write: refuses to end the transaction, and tracks savepoints.

It changes only this connection, for the duration of the block: it replaces `commit`, `rollback`, `transaction` and
`pipeline`, and the `cursor_factory` by one whose cursors check the statements that they execute. Four things bypass
it: cursors from before the block, unless their class is from `watched_cursor`; cursors made without the factory; named
cursors, whose statements end no transaction; and statements sent directly through `connection.pgconn`. The message that
commits detects a COMMIT or ROLLBACK sent that way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NoReturn

import psycopg
from psycopg import pq
from psycopg.transaction import OutOfOrderTransactionNesting

from dualwrite.errors import IllegalStateError, TransactionEndedInsideError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import closed_inside, inside_another
from dualwrite.recipes.core.store import ended_past
from dualwrite.recipes.postgres.statement_watch import ENDED, NESTED, NOT_READY, UNFINISHED, StatementWatch, doomed_by
from dualwrite.recipes.psycopg.driver import AnyConnection, is_in_transaction_block, is_two_phase
from dualwrite.recipes.psycopg.watched_cursor import WATCH, watched_cursor
from dualwrite.recipes.sql.transaction_control import postgres_savepoint

_REPLACED: Final = ("commit", "rollback", "transaction", "pipeline", WATCH)

# As the numbers that libpq returns: converting them to Enum members costs ten times as much
IDLE: Final = int(pq.TransactionStatus.IDLE)
_ACTIVE: Final = int(pq.TransactionStatus.ACTIVE)
_INTRANS: Final = int(pq.TransactionStatus.INTRANS)
_INERROR: Final = int(pq.TransactionStatus.INERROR)
_UNKNOWN: Final = int(pq.TransactionStatus.UNKNOWN)


def is_idle(connection: AnyConnection) -> bool:
    """Return whether a connection is open and in no transaction; psycopg knows this without a request to the server."""
    return connection.pgconn.transaction_status == IDLE


def is_in_transaction(connection: AnyConnection) -> bool:
    return connection.pgconn.transaction_status in (_INTRANS, _INERROR)


def is_busy(connection: AnyConnection) -> bool:
    """Return whether a statement, a COPY, a stream or a notifies() is in progress, so that a call would wait."""
    return connection.pgconn.transaction_status == _ACTIVE or connection.lock.locked()


def assert_can_begin(connection: AnyConnection) -> None:
    """Raise IllegalStateError if COMMIT on this connection would not be the decision, or is not ours to send."""
    watch = vars(connection).get(WATCH)
    if watch is not None:
        if not watch.is_retired:
            raise inside_another()
        watch.stop()
    if connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        raise IllegalStateError(_IN_PIPELINE)
    if is_two_phase(connection):
        raise IllegalStateError(_TWO_PHASE)
    if is_in_transaction_block(connection):
        raise IllegalStateError(NESTED)
    if connection.pgconn.transaction_status == _INERROR or is_busy(connection):
        raise IllegalStateError(NOT_READY)
    if not isinstance(connection.cursor_factory, type):
        raise IllegalStateError(_NO_CURSOR_CLASS)


class Watch(StatementWatch):
    refusals = (psycopg.Error,)

    def __init__(self, connection: AnyConnection, records: RecordBuffer) -> None:
        self._records = records
        self._connection: Any = connection
        self._cursor_factory: Any = None
        self._nested = 0

    def start(self) -> None:
        connection = self._connection
        self._cursor_factory = connection.cursor_factory
        awaited = isinstance(connection, psycopg.AsyncConnection)
        vars(connection).update(
            commit=self._refuse_commit,
            rollback=self._refuse_rollback,
            transaction=self._nested_transaction_awaited if awaited else self._nested_transaction,
            pipeline=self._pipeline_awaited if awaited else self._pipeline,
            **{WATCH: self},
        )
        connection.cursor_factory = watched_cursor(self._cursor_factory)  # last: from here on `stop` can restore it

    def stop(self) -> None:
        attributes = vars(self._connection)
        if attributes.get(WATCH) is self:
            self._connection.cursor_factory = self._cursor_factory
            for name in _REPLACED:  # WATCH is the last of them: until then, this can be repeated
                attributes.pop(name, None)

    def assert_intact(self) -> None:
        self.assert_nothing_refused()
        pgconn = self._connection.pgconn
        if pgconn.pipeline_status != pq.PipelineStatus.OFF:
            raise IllegalStateError(_PIPELINE_OPEN)
        status = pgconn.transaction_status
        if status == _INERROR:
            raise doomed_by(None)
        if status == _UNKNOWN:
            raise closed_inside()
        if status == IDLE:
            raise ended_past(ENDED)
        if self.running or self._nested or status == _ACTIVE or self._connection.lock.locked():
            raise IllegalStateError(UNFINISHED)

    # -- statements ----------------------------------------------------------------------------------------------

    def assert_executed_at_once(self) -> None:
        if self._connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
            raise self.refuse_ending(IllegalStateError(_QUEUED))

    def _refuse_commit(self) -> NoReturn:
        raise self.refuse_ending(TransactionEndedInsideError(_COMMIT))

    def _refuse_rollback(self) -> NoReturn:
        raise self.refuse_ending(TransactionEndedInsideError(_ROLLBACK))

    # -- connection.pipeline(), whose end waits for the responses to its statements --------------------------------

    @contextmanager
    def _pipeline(self) -> Iterator[psycopg.Pipeline]:
        with self._whole_pipeline(), type(self._connection).pipeline(self._connection) as pipeline:
            yield pipeline

    @asynccontextmanager
    async def _pipeline_awaited(self) -> AsyncIterator[psycopg.AsyncPipeline]:
        with self._whole_pipeline():
            async with type(self._connection).pipeline(self._connection) as pipeline:
                yield pipeline

    @contextmanager
    def _whole_pipeline(self) -> Iterator[None]:
        """Count a pipeline as running from the wait for its turn to its end, and doom the block by an error inside it.

        The server may have executed statements before an error or an interruption. A statement that the server refuses
        is known by the state of the transaction.
        """
        self.running += 1
        try:
            self.assert_open()
            try:
                yield
            except (psycopg.Error, GeneratorExit):  # the caller needs no more rows of a generator
                raise
            except BaseException as error:
                self.doom(error)
                raise
        finally:
            self.running -= 1

    # -- connection.transaction() ----------------------------------------------------------------------------------

    @contextmanager
    def _nested_transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Iterator[psycopg.Transaction]:
        genuine = type(self._connection).transaction
        with self._savepoint(savepoint_name) as savepoint:
            with (
                genuine(self._connection, savepoint_name, force_rollback) as nested,
                savepoint.body(nested.savepoint_name),
            ):
                yield nested
            savepoint.has_succeeded(nested)

    @asynccontextmanager
    async def _nested_transaction_awaited(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[psycopg.AsyncTransaction]:
        genuine = type(self._connection).transaction
        with self._savepoint(savepoint_name) as savepoint:
            async with genuine(self._connection, savepoint_name, force_rollback) as nested:
                with savepoint.body(nested.savepoint_name):
                    yield nested
            savepoint.has_succeeded(nested)

    @contextmanager
    def _savepoint(self, name: str | None) -> Iterator[_Savepoint]:
        """Track a `connection.transaction()`, which is a savepoint here; the records share its end."""
        self._nested += 1  # first, as `running`
        try:
            self.assert_open()
            if is_idle(self._connection):
                raise ended_past(ENDED)  # psycopg would begin a separate transaction
            savepoint = _Savepoint(self._records, name)
            try:
                try:
                    yield savepoint
                finally:
                    savepoint.end()
            except BaseException as error:
                if not savepoint.is_undone_by(error):
                    self.refuse_ending(error)
                raise
        finally:
            self._nested -= 1


class _Savepoint:
    """A savepoint that psycopg sets at the start of its block, and releases or rolls back to at the end."""

    def __init__(self, records: RecordBuffer, name: str | None) -> None:
        self._records = records
        self._has_namesake = name is not None and records.knows_savepoint(postgres_savepoint(name))
        self._name: str | None = None
        self._raised: BaseException | None = None
        self._is_kept = False

    @contextmanager
    def body(self, name: str) -> Iterator[None]:
        """Note the savepoint that psycopg has set, and the error that ends its body."""
        self._name = postgres_savepoint(name)
        self._records.savepoint(self._name)
        try:
            yield
        except BaseException as error:
            self._raised = error
            raise

    def has_succeeded(self, nested: psycopg.Transaction | psycopg.AsyncTransaction) -> None:
        """Note that psycopg's block has ended, with all its responses. It swallows a Rollback."""
        self._is_kept = self._raised is None and not nested.force_rollback

    def end(self) -> None:
        if self._name is not None:
            if not self._is_kept:
                self._records.roll_back_to_savepoint(self._name)
            self._records.release_savepoint(self._name)

    def is_undone_by(self, error: BaseException) -> bool:
        """Return whether psycopg has undone the block that `error` has left, and nothing else.

        An interruption of psycopg's own statements leaves that open. If SAVEPOINT fails, psycopg rolls back to an
        earlier savepoint of that name.
        """
        if self._name is None and self._has_namesake:
            return False
        if isinstance(error, OutOfOrderTransactionNesting):
            return False
        return error is self._raised or isinstance(error, psycopg.Error)


_COMMIT = (
    "commit was called inside a dual write; neither database nor Kafka was changed: leaving the block commits both"
)
_ROLLBACK = (
    "rollback was called inside a dual write; neither database nor Kafka was changed: let an exception leave "
    "the block, or roll back a part of it with connection.transaction()"
)
_IN_PIPELINE = (
    "the connection is in pipeline mode, which would not wait for the response to COMMIT; nothing was written: "
    "open the pipeline inside the block, and leave it there"
)
_TWO_PHASE = (
    "the transaction of the connection was begun with tpc_begin(), so its coordinator decides and not this dual write; "
    "nothing was written: use an ordinary transaction"
)
_NO_CURSOR_CLASS = (
    "the connection's cursor_factory is not a class from which a dual write can derive its own; nothing was written: "
    "use a subclass of psycopg.Cursor, or of AsyncCursor"
)
_QUEUED = (
    "a savepoint statement was sent in a pipeline, where it cannot be tracked; it was not executed, and neither "
    "database nor Kafka was changed: use connection.transaction(), or leave the pipeline first"
)
_PIPELINE_OPEN = (
    "the block ended inside connection.pipeline(); neither database nor Kafka was changed: leave the pipeline inside "
    "the block"
)
