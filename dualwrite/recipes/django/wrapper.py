"""The part of a Django database backend that makes the COMMIT of a transaction with records a dual write.

Django ends transactions in three methods of its `DatabaseWrapper`, and in no others: `_commit`, `_rollback` and
`_close`. When `_commit` is called, all statements and savepoints of the block are over, and no `on_commit` callback has
run; the rest of `transaction.atomic()` behaves as Django documents it. The folders of the ENGINEs hold the code for
each driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final, NoReturn

import sqlalchemy as sa
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import debug_transaction
from django.db.utils import Error, ProgrammingError

from dualwrite.errors import IllegalStateError, TransactionEndedInsideError
from dualwrite.outcome import Outcome, note_outcome
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.django.creation import ClosesPools
from dualwrite.recipes.django.forks import abandon, leave_at_fork
from dualwrite.recipes.django.pools import pool_of
from dualwrite.recipes.django.transaction import Begun, DjangoDualWrite, FailedBegin, Pool, capture_of, commit_captured


class DualWriteWrapper(BaseDatabaseWrapper):
    """The base of all ENGINEs with dual writes; each driver adds a mixin for its `DatabaseWrapper`."""

    _dual_write: DjangoDualWrite | None = None
    _failed_begin: FailedBegin | None = None
    """Why the current transaction may only be rolled back, if an error that may be swallowed says so."""
    has_just_decided = False
    """Whether the last statement sent is the COMMIT of a dual write."""
    _is_manual = False
    """Whether the application has turned autocommit off, and ends its transactions itself."""
    _stays_manual = False
    """Whether autocommit must be off on the next connection too, because the last one was lost in a COMMIT."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Let the ENGINE close its pool before a test database is dropped or copied."""
        super().__init_subclass__(**keywords)
        of_django = cls.creation_class
        if of_django is not None and not issubclass(of_django, ClosesPools):
            cls.creation_class = type("DatabaseCreation", (ClosesPools, of_django), {})

    # ---- implemented for each driver ----------------------------------------------------------------------------

    def new_writer_pool(self, settings: dict[str, Any]) -> Pool:
        """Make a pool for the database of this connection; it connects to nothing yet. Raises ConfigError."""
        raise NotImplementedError

    def begin_transaction(self, pool: Pool, records: RecordBuffer, *, publishes: bool) -> Begun:
        """Track the current transaction from now on. Unless it `publishes`, the database commits alone."""
        raise NotImplementedError

    def new_engine(self) -> sa.Engine:
        """Return an SQLAlchemy engine that connects like this wrapper, anew for each use."""
        raise NotImplementedError

    def create_tables(self, schema_editor: Any, schema: str | None) -> None:
        raise NotImplementedError

    @property
    def is_lost(self) -> bool:
        raise NotImplementedError

    def driver_errors(self) -> AbstractContextManager[None]:
        """Raise the driver's errors, which Django translates, in place of those of the library above the driver."""
        return nullcontext()

    # ---- the transaction ----------------------------------------------------------------------------------------

    def get_new_connection(self, conn_params: Any) -> Any:
        """Connect, and let forked children leave the connection to this process."""
        connection = super().get_new_connection(conn_params)
        leave_at_fork(self)
        return connection

    def connect(self) -> None:
        """Connect; after a loss in COMMIT, turn autocommit off again if the application had done so."""
        stays_manual, self._stays_manual = self._stays_manual, False
        self._failed_begin = None
        super().connect()
        if stays_manual:
            self.set_autocommit(False)

    def set_autocommit(self, autocommit: bool, force_begin_transaction_with_broken_autocommit: bool = False) -> None:
        """Turn autocommit on or off; `atomic()` passes the second argument, which is for SQLite."""
        if autocommit:
            self._end_interrupted()
            self.assert_begun()  # MySQL would commit
        super().set_autocommit(autocommit, force_begin_transaction_with_broken_autocommit)
        self._is_manual = not (autocommit or force_begin_transaction_with_broken_autocommit)

    def _end_interrupted(self) -> None:
        """End a block whose COMMIT or ROLLBACK an exception of a signal handler has interrupted.

        `atomic()` rolls back after a database error only, and then turns autocommit on, which commits in MySQL.
        """
        if self._is_manual or self.in_atomic_block:
            return
        write = self._dual_write
        if write is not None and self._has_decided(write):
            write.leave()
            self._dual_write = None
            self._after_commit(write)
        elif write is not None or self._failed_begin is not None:
            self.rollback()

    def close(self) -> None:
        """Close the connection; the next one uses the autocommit of the settings."""
        self._stays_manual = False
        super().close()

    def close_if_unusable_or_obsolete(self) -> None:
        self._stays_manual = False
        super().close_if_unusable_or_obsolete()

    def leave_to_parent(self) -> None:
        """Give up the connection in a forked child; keep a dual write, so that it refuses the child's calls."""
        if self._dual_write is None and self.connection is not None:
            self._leave_connection()

    def ensure_connection(self) -> None:
        """Connect if necessary. Raises IllegalStateError inside a dual write of the process that forked."""
        if self._dual_write is not None and self._dual_write.belongs_to_the_parent:
            raise IllegalStateError(_OF_THE_PARENT)
        if self.connection is None and self.in_atomic_block and self.closed_in_transaction:
            # Django 4.2 would connect, and run the rest of the block in autocommit mode
            raise ProgrammingError("Cannot open a new connection in an atomic block.")
        super().ensure_connection()

    def current_dual_write(self) -> DjangoDualWrite:
        """Return the dual write of the current transaction; begin it if there is none yet."""
        self.assert_in_transaction()
        self.validate_no_broken_transaction()
        write = self.open_dual_write
        if write is None:
            with self.dooming():
                write = self._dual_write = self._begin_dual_write()
        if write.belongs_to_the_parent:
            raise IllegalStateError(_OF_THE_PARENT)
        return write

    def assert_in_transaction(self) -> None:
        """Raise IllegalStateError if no COMMIT would decide a record that is sent now."""
        self.validate_thread_sharing()
        if self.get_autocommit():
            raise IllegalStateError(_NO_TRANSACTION)

    @contextmanager
    def dooming(self) -> Iterator[None]:
        """Let the current transaction or savepoint only be rolled back after an error, even if it is swallowed."""
        try:
            yield
        except BaseException as error:
            self._failed_begin = self._failed_begin or FailedBegin(error)
            raise

    def run_and_clear_commit_hooks(self) -> None:
        """Run the `on_commit` callbacks. The error of one leaves a block whose database has committed."""
        try:
            super().run_and_clear_commit_hooks()
        except BaseException as error:
            note_outcome(error, Outcome.COMMITTED)
            raise

    def _begin_dual_write(self) -> DjangoDualWrite:
        self.has_just_decided = False
        pool = pool_of(self)
        kept = capture_of(self)
        with self.wrap_database_errors, self.driver_errors():
            records = pool.new_records()
            begun = self.begin_transaction(pool, records, publishes=kept is None)
            commit = pool.slots.commit_in_turn if kept is None else partial(commit_captured, kept)
            return DjangoDualWrite(begun, records, commit)

    def assert_begun(self) -> None:
        """Raise TransactionDoomedError if a dual write could not begin in the current transaction."""
        if self._failed_begin is not None:
            raise self._failed_begin.doomed()

    def _savepoint(self, sid: str) -> None:
        super()._savepoint(sid)  # type: ignore[misc]  # the stubs lack it
        if self._failed_begin is not None:
            self._failed_begin.savepoint(sid)

    def _savepoint_rollback(self, sid: str) -> None:
        super()._savepoint_rollback(sid)  # type: ignore[misc]  # the stubs lack it
        if self._failed_begin is not None and self._failed_begin.is_undone_by(sid):
            self._failed_begin = None

    @property
    def open_dual_write(self) -> DjangoDualWrite | None:
        """The dual write of the current transaction; None if no record was sent, or if all of them were undone."""
        if self._dual_write is not None and self._dual_write.was_undone:
            self._drop_dual_write()
        return self._dual_write

    def _drop_dual_write(self) -> None:
        if self._dual_write is not None:
            self._let_go(self._dual_write)
            self._dual_write = None

    def _let_go(self, write: DjangoDualWrite) -> None:
        if not write.is_over:
            write.drop()
        if write.belongs_to_the_parent:
            self._leave_connection()

    def _commit(self) -> None:
        if self._failed_begin is not None:
            self._refuse_commit(self._failed_begin)
        write = self.open_dual_write
        if write is None:
            super()._commit()  # type: ignore[misc]  # the stubs lack it
            return
        try:
            with debug_transaction(self, "COMMIT"), self.wrap_database_errors, self.driver_errors():
                write.decide()
        except BaseException as error:
            write.tell(error)  # Django has translated the driver's error into this one
            raise
        finally:
            if write.is_over:
                self._dual_write = None
                self._after_commit(write)

    def _refuse_commit(self, failed: FailedBegin) -> NoReturn:
        self.run_on_commit = []
        try:
            self._rollback()
        except Error:
            self.close()  # so that the database rolls back
        raise failed.doomed()

    def _after_commit(self, write: DjangoDualWrite) -> None:
        """Run `on_commit` callbacks if, and only if, the dual write is decided, even if an error is on its way."""
        if self._has_decided(write):
            self.run_commit_hooks_on_set_autocommit_on = True
            self.has_just_decided = True
        else:
            self.run_on_commit = []
        if write.belongs_to_the_parent:
            self._leave_connection()
        elif self.is_lost:
            self.close_but_for_hooks()
            self._stays_manual = self._is_manual
            # `atomic()` would connect again at once, and an error there would hide the outcome.
            self.closed_in_transaction = True
            self.run_and_clear_commit_hooks()

    @staticmethod
    def _has_decided(write: DjangoDualWrite) -> bool:
        return write.outcome is not None and write.outcome.is_decided

    def close_but_for_hooks(self) -> None:
        """Close the connection, and keep the `on_commit` callbacks, because their transaction is committed."""
        hooks, self.run_on_commit = self.run_on_commit, []
        self.close()
        self.run_on_commit = hooks

    def _rollback(self) -> None:
        if self._dual_write is not None:
            self._let_go(self._dual_write)
        try:
            super()._rollback()  # type: ignore[misc]  # the stubs lack it
        except TransactionEndedInsideError:
            self.close()  # an interruption came after a dual write began, and before it was noted here
        self._failed_begin = self._dual_write = None  # last: until then, this can be repeated

    def _close(self) -> None:
        self._drop_dual_write()
        super()._close()  # type: ignore[misc]  # the stubs lack it

    def _leave_connection(self) -> None:
        """Give up a connection whose socket belongs to the process that forked, and send nothing on it."""
        abandon(self.connection)
        self.connection = None
        self.closed_in_transaction = True


_NO_TRANSACTION: Final = (
    "send(), or save() of a model with @publish, was called outside a transaction; nothing was written and no record "
    "accepted, because no COMMIT would decide it: call it inside `with transaction.atomic()`, or set ATOMIC_REQUESTS"
)
_OF_THE_PARENT: Final = (
    "this database transaction belongs to the process that forked, so nothing was accepted here: close the "
    "connection in the child, and begin a transaction there"
)
