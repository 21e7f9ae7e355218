"""`DualWriter`: write a database and Kafka in one decision, with SQLAlchemy.

    writer = DualWriter(engine, bootstrap_servers="127.0.0.1:9092", transactional_id="orders-1")
    with writer.transaction() as tx:
        tx.session.add(Order(...))
        tx.send("orders", key=..., value=...)

The order of steps is KIP-939's recipe and is what makes it safe:

1. the database transaction begins and the state row of the transactional id is locked;
2. a producer that is new to the id fences its predecessor and completes what it left, by the row;
3. records go to Kafka, statements to the database;
4. Kafka is prepared; its `producer id:epoch` is written to the row as the last statement;
5. the database commits: this is the decision;
6. Kafka commits.

A row is only ever written by a transaction whose records Kafka accepted under the lock. That is why a zombie cannot
overwrite the state of a later dual write that waits to be completed: its records were refused first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from dualwrite.config import ProducerConfig
from dualwrite.errors import (
    AbortableError,
    ConfigError,
    DualWriteError,
    FencedError,
    IllegalStateError,
    OutcomeUnknown,
    RowLockTimeoutError,
)
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer, RecordFuture
from dualwrite.recipes.decisions import Outcome, commit_outcome, recovery_outcome
from dualwrite.recipes.pause_points import PauseHook, PausePoint
from dualwrite.recipes.slot import Slot, SlotState
from dualwrite.recipes.state_table import MAX_TRANSACTIONAL_ID_LENGTH, SqlAlchemyStateStore, create_state_table
from dualwrite.recipes.unit_of_work import Bind, UnitOfWork, watch

_log = logging.getLogger(__name__)

_RESOLVE_BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of a transaction that was left open, or of a commit whose answer was lost.

    `prepared_state` is the pair in question; empty where nothing was open.
    """

    transactional_id: str
    prepared_state: PreparedTxnState
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _PendingCommit:
    tx: DualTransaction
    ours: PreparedTxnState
    previous: PreparedTxnState


class DualTransaction:
    """One dual write; what `DualWriter.transaction()` yields."""

    def __init__(self, writer: DualWriter, work: UnitOfWork, locked_row: PreparedTxnState) -> None:
        self._writer = writer
        self._work = work
        self._locked_row = locked_row
        self._open = True
        self._prepared_state = PreparedTxnState()
        self._outcome: Outcome | None = None

    @property
    def session(self) -> Session:
        """The Session of this dual write. Raises IllegalStateError where it runs on a bare Connection."""
        if self._work.session is None:
            raise IllegalStateError("this dual write runs on a Connection; use tx.connection")
        return self._work.session

    @property
    def connection(self) -> sa.Connection:
        """The Connection whose transaction is the decision; within `session.begin_nested()` it is in the savepoint."""
        return self._work.connection if self._work.session is None else self._work.session.connection()

    @property
    def transactional_id(self) -> str:
        return self._writer.transactional_id

    @property
    def prepared_state(self) -> PreparedTxnState:
        """The identity that this dual write left in the state row; empty before it was prepared."""
        return self._prepared_state

    @property
    def outcome(self) -> Outcome | None:
        """COMMITTED or ROLLED_BACK once known; None before, and while a lost commit is unresolved.

        Whoever resolves it in this process, be it the next `transaction()` of the writer, sets it here.
        """
        return self._outcome

    def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes] | Iterable[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Send one record as part of this dual write; it becomes visible only if the database commits.

        Raises IllegalStateError after the block has ended, which it has for a `before_commit` hook too, and what
        `Producer.send` raises.
        """
        with self._doomed_by_failure():
            future = self._writer._live_producer().send(
                topic, value=value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
            )
        self._writer._reach(PausePoint.AFTER_SEND)
        return future

    def send_offsets(self, offsets: Mapping[Any, Any], group_metadata: Any) -> None:
        """Commit consumed offsets as part of this dual write (KIP-447); see `Producer.send_offsets_to_transaction`."""
        with self._doomed_by_failure():
            self._writer._live_producer().send_offsets_to_transaction(offsets, group_metadata)

    @contextmanager
    def _doomed_by_failure(self) -> Iterator[None]:
        """A record that was refused is missing: swallowing that must not end as a success, as with a statement."""
        self._assert_open()
        try:
            yield
        except BaseException as error:
            self._work.doom(error)
            raise

    def _assert_open(self) -> None:
        if not self._open:
            raise IllegalStateError(
                "this dual write has ended, so nothing more was sent: send inside the `with` block that it belongs to; "
                "hooks inside the database commit come too late"
            )


class DualWriter:
    """Atomic writes to one database and to Kafka, one at a time, under one transactional id.

    `engine` is where the decision is taken and where the table `kafka_transaction_state` lives (created when missing
    unless `create_table=False`). `producer_settings` are the producer's, by Kafka's names with underscores.

    Two living writers with one transactional id are safe but useless: each fences the other. Use one id per
    concurrent writer. Not for use by several threads at once.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        transactional_id: str,
        session_factory: Callable[[], Session] | None = None,
        lock_timeout_ms: int | None = 60_000,
        resolve_timeout_ms: int = 30_000,
        create_table: bool = True,
        pause: PauseHook | None = None,
        **producer_settings: Any,
    ) -> None:
        if not isinstance(engine, sa.Engine):
            raise ConfigError(f"engine takes a sqlalchemy.Engine, made by create_engine(url), not {engine!r}")
        if not isinstance(transactional_id, str) or not 0 < len(transactional_id) <= MAX_TRANSACTIONAL_ID_LENGTH:
            raise ConfigError(
                f"transactional_id takes a text of 1 to {MAX_TRANSACTIONAL_ID_LENGTH} characters, "
                f"not {transactional_id!r}"
            )
        if "transaction_two_phase_commit_enable" in producer_settings:
            raise ConfigError("transaction_two_phase_commit_enable is not a choice here: a dual write needs it")
        producer_settings = {
            **producer_settings,
            "transactional_id": transactional_id,
            "transaction_two_phase_commit_enable": True,
        }
        ProducerConfig.parse(None, producer_settings)  # now, and not at the first use
        watch(engine)
        self._engine = engine
        self._transactional_id = transactional_id
        self._session_factory = session_factory or (lambda: Session(engine))
        self._lock_timeout_ms = lock_timeout_ms
        self._resolve_timeout_ms = resolve_timeout_ms
        self._create_table = create_table
        self._pause = pause
        self._producer_settings = producer_settings
        self._store = SqlAlchemyStateStore(engine)
        self._row_exists = False
        self._slot = Slot(transactional_id)
        self._producer: Producer | None = None
        self._pending: _PendingCommit | None = None
        self._in_doubt = PreparedTxnState()
        self._in_use = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def transactional_id(self) -> str:
        return self._transactional_id

    @property
    def state(self) -> SlotState:
        """What this writer knows about its transactional id."""
        return self._slot.state

    @property
    def in_doubt(self) -> PreparedTxnState:
        """The dual write that the database committed and whose Kafka commit is not confirmed yet; else empty.

        The next `transaction()` or `recover()`, here or in any process, completes it first. In state FENCED that is for
        the process that took the id over, or for a new DualWriter.
        """
        return self._in_doubt

    @contextmanager
    def transaction(self, bind: Bind | None = None) -> Iterator[DualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `bind` is a Session or Connection of the caller's, on the writer's engine; its transaction is committed or
        rolled back with the block. Without it the writer opens a Session of its own and closes it at the end.

        A refused record dooms the block like a failed statement, even if its error is swallowed.

        Raises what the block raises; RowLockTimeoutError, FencedError, RetriableError and the database's own errors,
        after which neither side was changed; OutcomeUnknown where the database commit was sent and nobody could be
        asked what became of it. A block without records is an ordinary database transaction: if its commit gets no
        answer, the database's error is raised with `tx.outcome` None, and only the caller's data can tell.
        """
        with self._exclusively():
            tx = self._begin(bind)
            try:
                try:
                    self._reach(PausePoint.AFTER_BEGIN)
                    yield tx
                except BaseException:
                    self._roll_back(tx)
                    raise
                self._commit(tx)
            finally:
                tx._open = False
                tx._work.close()

    def recover(self) -> Resolution:
        """Complete what a crash left open under this transactional id, by the row; harmless at any time.

        A living owner of the id is fenced by it. Several processes may do it at once: the row lock makes them queue
        and the later ones find nothing to do. Raises RowLockTimeoutError while a database transaction holds the row.
        """
        with self._exclusively():
            if self._slot.state is SlotState.UNRESOLVED:
                return self._resolve()
            if self._slot.state is SlotState.READY:
                self._slot.move(SlotState.NEW)  # another process may have taken the id over since, and left something
            self._prepare_table()
            with self._engine.begin() as connection:
                self._store.lock(connection, self._transactional_id, timeout_ms=self._lock_timeout_ms)
                self._reach(PausePoint.AFTER_LOCK)
                return self._take_over(connection)[1]

    def resolve(self) -> Resolution:
        """Find out what became of the commit that raised OutcomeUnknown, and complete Kafka accordingly.

        Raises OutcomeUnknown again while the database cannot be asked, or where a later dual write of another process
        has replaced the row. With nothing unresolved it does what `recover()` does.
        """
        return self.recover()

    def close(self) -> None:
        """Give up the transactional id. What is in doubt stays so, safely, until the id is next used or recovered."""
        if not self._in_use.acquire(blocking=False):
            raise IllegalStateError("a dual write is running; leave its block before closing the writer")
        try:
            self._close()
        finally:
            self._in_use.release()

    def _close(self) -> None:
        if self._slot.state is SlotState.CLOSED:
            return
        if self._slot.state in (SlotState.IN_DOUBT, SlotState.UNRESOLVED):
            _log.warning(
                "transactional id %s is closed while %s is in doubt; recover() with this id completes it",
                self._transactional_id,
                self._pending.ours if self._pending is not None else self._in_doubt,
            )
        self._slot.move(SlotState.CLOSED)
        self._give_up_producer()

    # -- the steps of one dual write ---------------------------------------------------------------------------

    def _begin(self, bind: Bind | None) -> DualTransaction:
        if self._slot.state is SlotState.UNRESOLVED:
            self._resolve()
            self._assert_usable()
        self._prepare_table()
        work = UnitOfWork(bind if bind is not None else self._session_factory(), self._engine, owned=bind is None)
        try:
            row = self._store.lock(work.connection, self._transactional_id, timeout_ms=self._lock_timeout_ms)
            self._reach(PausePoint.AFTER_LOCK)
            if self._slot.state is not SlotState.READY:
                row = self._take_over(work.connection)[0]
            self._slot.move(SlotState.OPEN)  # first, so that a failing or interrupted begin ends in a take-over
            self._live_producer().begin_transaction()
        except BaseException:
            work.rollback()
            work.close()
            raise
        return DualTransaction(self, work, row)

    def _take_over(self, connection: sa.Connection) -> tuple[PreparedTxnState, Resolution]:
        """Fence the predecessor and complete what it left. The row must be locked by `connection`'s transaction.

        The row is read again after initialising. Between the first read and the initialisation this process may have
        slept, lost its database connection and with it the lock, and another may have taken over and prepared a new
        transaction: deciding that one by the old reading would lose a committed write. The second read fails if the
        lock is gone.
        """
        self._give_up_producer()
        producer = Producer(**self._producer_settings)
        self._producer = producer
        try:
            producer.init_transactions(keep_prepared_txn=True)
            self._reach(PausePoint.AFTER_INIT)
            ongoing = producer.prepared_txn_state
            row = self._store.read(connection, self._transactional_id)
            producer.complete_transaction(row)
            self._reach(PausePoint.AFTER_TAKEOVER)
        except BaseException:
            self._give_up_producer()
            raise
        outcome = recovery_outcome(row, ongoing)
        if outcome is not Outcome.NOTHING:
            _log.info("transactional id %s: prepared transaction %s %s", self._transactional_id, ongoing, outcome)
        self._slot.move(SlotState.READY)
        self._in_doubt = PreparedTxnState()
        return row, Resolution(self._transactional_id, ongoing, outcome)

    def _commit(self, tx: DualTransaction) -> None:
        try:
            tx._work.assert_intact()
            tx._work.flush()
            tx._work.assert_intact()
            tx._open = False  # a record that a hook inside COMMIT sent would be in neither of the two ways to commit
            sends_records = self._live_producer().transaction_has_records
            if sends_records:
                self._prepare(tx)
        except BaseException as error:
            self._roll_back(tx)
            if isinstance(error, AbortableError) and self._slot.state is SlotState.FENCED:
                raise self._fenced() from error  # the broker refuses a zombie's records with an abortable code first
            raise
        if sends_records:
            self._decide(tx)
        else:
            self._commit_database_alone(tx)

    def _prepare(self, tx: DualTransaction) -> None:
        state = self._live_producer().prepare_transaction()
        tx._prepared_state = state
        self._reach(PausePoint.AFTER_PREPARE)
        # The last statement: in a failed Postgres transaction it fails too, where COMMIT would quietly roll back.
        self._store.write(tx._work.connection, self._transactional_id, previous=tx._locked_row, new=state)
        self._reach(PausePoint.AFTER_STATE_WRITE)
        self._reach(PausePoint.BEFORE_DATABASE_COMMIT)

    def _decide(self, tx: DualTransaction) -> None:
        """Commit the database, which decides, then Kafka."""
        pending = _PendingCommit(tx, tx.prepared_state, tx._locked_row)
        self._slot.move(SlotState.DECIDING)
        try:
            tx._work.commit()
        except BaseException as error:
            self._after_failed_commit(tx, pending, error)
        else:
            self._after_commit(tx, pending)

    def _after_commit(self, tx: DualTransaction, pending: _PendingCommit) -> None:
        tx._outcome = Outcome.COMMITTED
        try:
            self._reach(PausePoint.AFTER_DATABASE_COMMIT)
            self._finish_kafka(pending.ours, Outcome.COMMITTED)
            self._reach(PausePoint.AFTER_KAFKA_COMMIT)
        except BaseException as error:
            if self._slot.state is SlotState.DECIDING:
                self._leave_in_doubt(pending.ours)
            error.add_note(f"The dual write {pending.ours} of {self._transactional_id!r} is committed all the same.")
            raise

    def _after_failed_commit(self, tx: DualTransaction, pending: _PendingCommit, error: BaseException) -> None:
        """Nothing is lost while COMMIT was not sent; once it was, only the row can tell.

        Our own transaction must be over before the row can be locked, here or in resolve().
        """
        if not tx._work.commit_was_sent:
            self._roll_back(tx)
            raise error
        self._pending = pending
        self._slot.move(SlotState.UNRESOLVED)
        tx._work.rollback()
        if not isinstance(error, Exception):
            raise error  # interrupted: asking the database may take long, so leave it to resolve()
        try:
            outcome = self._resolve().outcome
        except OutcomeUnknown as unknown:
            raise unknown from error
        if outcome is Outcome.ROLLED_BACK:
            raise error
        _log.warning("the dual write %s is committed, although its commit raised", pending.ours, exc_info=error)

    def _commit_database_alone(self, tx: DualTransaction) -> None:
        """No records: an ordinary database transaction. The row stays as it is, because Kafka confirmed nothing."""
        try:
            tx._work.commit()
        except BaseException:
            self._roll_back(tx)
            if tx._work.commit_was_sent:
                tx._outcome = None  # no row tells what became of it
            raise
        tx._outcome = Outcome.COMMITTED
        self._finish_kafka(tx._locked_row, Outcome.ROLLED_BACK)

    def _roll_back(self, tx: DualTransaction) -> None:
        tx._work.rollback()
        tx._outcome = Outcome.ROLLED_BACK
        self._finish_kafka(tx._locked_row, Outcome.ROLLED_BACK)

    # -- Kafka's side, once the outcome is certain -------------------------------------------------------------

    def _finish_kafka(self, state: PreparedTxnState, outcome: Outcome) -> None:
        """Commit or abort the open Kafka transaction. Never raises what Kafka says: the decision has been taken.

        A producer that cannot confirm is given up, and the next take-over completes the transaction by the row.
        """
        producer = self._live_producer()
        try:
            if outcome is Outcome.COMMITTED:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        except FencedError as error:
            _log.warning("transactional id %s was taken over by another process: %s", self._transactional_id, error)
            self._slot.move(SlotState.FENCED)
            if outcome is Outcome.COMMITTED:
                self._in_doubt = state
            self._give_up_producer()
        except DualWriteError as error:
            _log.warning(
                "transactional id %s: the %s of %s is not confirmed by Kafka (%s); the next use of the id completes it",
                self._transactional_id,
                "commit" if outcome is Outcome.COMMITTED else "abort",
                state if outcome is Outcome.COMMITTED else "the open transaction",
                error,
            )
            if outcome is Outcome.COMMITTED:
                self._leave_in_doubt(state)
            else:
                self._slot.move(SlotState.NEW)
                self._give_up_producer()
        else:
            self._slot.move(SlotState.READY)

    def _leave_in_doubt(self, state: PreparedTxnState) -> None:
        self._in_doubt = state
        self._slot.move(SlotState.IN_DOUBT)
        self._give_up_producer()

    # -- a commit whose answer was lost ------------------------------------------------------------------------

    def _resolve(self) -> Resolution:
        pending = self._pending
        assert pending is not None, "UNRESOLVED always comes with a pending commit"
        row = self._ask_database(pending)
        outcome = commit_outcome(row, ours=pending.ours, previous=pending.previous)
        if outcome is Outcome.SUPERSEDED:
            self._pending = None
            self._slot.move(SlotState.FENCED)
            self._give_up_producer()
            raise self._outcome_unknown(
                pending, "another process has since taken the transactional id over and replaced the state row"
            )
        _log.info("transactional id %s: lost commit of %s was %s", self._transactional_id, pending.ours, outcome)
        pending.tx._outcome = outcome
        self._finish_kafka(pending.ours, outcome)
        self._pending = None
        return Resolution(self._transactional_id, pending.ours, outcome)

    def _ask_database(self, pending: _PendingCommit) -> PreparedTxnState:
        """Read the row under its lock, which waits until the lost commit has either happened or been dropped."""
        deadline_s = time.monotonic() + self._resolve_timeout_ms / 1000
        attempt = 0
        while True:
            remaining_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
            try:
                with self._engine.begin() as connection:
                    return self._store.lock(connection, self._transactional_id, timeout_ms=remaining_ms)
            except (SQLAlchemyError, RowLockTimeoutError) as error:
                backoff_s = _RESOLVE_BACKOFF_S[min(attempt, len(_RESOLVE_BACKOFF_S) - 1)]
                attempt += 1
                if time.monotonic() + backoff_s >= deadline_s:
                    raise self._outcome_unknown(
                        pending, f"the database cannot be asked ({_first_line(error)})"
                    ) from error
                time.sleep(backoff_s)

    def _outcome_unknown(self, pending: _PendingCommit, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the database commit of dual write {pending.ours} (transactional id {self._transactional_id!r}) was sent "
            f"and its outcome is unknown: {why}. Database and Kafka will agree either way; do not repeat the write "
            "before DualWriter.resolve(), or recover() in any process, has told which",
            transactional_id=self._transactional_id,
            prepared_state=str(pending.ours),
        )

    # -- small things ------------------------------------------------------------------------------------------

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise IllegalStateError(
                f"transactional id {self._transactional_id!r} already carries a dual write; "
                "Kafka allows one open transaction per id: finish it first, or use another writer"
            )
        try:
            self._assert_usable()
            yield
        finally:
            self._in_use.release()

    def _assert_usable(self) -> None:
        if self._slot.state is SlotState.CLOSED:
            raise IllegalStateError("this DualWriter is closed; make a new one")
        if self._slot.state is SlotState.FENCED:
            raise self._fenced()

    def _fenced(self) -> FencedError:
        return FencedError(
            f"transactional id {self._transactional_id!r} was taken over by another process; nothing was "
            "written: make a new DualWriter to take it back, or give each process an id of its own"
        )

    def _prepare_table(self) -> None:
        if self._row_exists:
            return
        if self._create_table:
            create_state_table(self._engine)
        self._store.ensure_row(self._transactional_id)
        self._row_exists = True

    def _live_producer(self) -> Producer:
        assert self._producer is not None, f"no producer in state {self._slot.state}"
        return self._producer

    def _give_up_producer(self) -> None:
        """Close without ending anything: an open transaction is completed by whoever takes over."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout_s=0)

    def _reach(self, point: PausePoint) -> None:
        if self._pause is not None:
            self._pause(point)


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().partition("\n")[0]
