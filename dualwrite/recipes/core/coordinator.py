"""The dual writes under one transactional id, step by step; once for threads and for tasks.

The order of steps is KIP-939's recipe and is what makes it safe:

1. the block runs: statements go to the database, records are kept;
2. the state row of the transactional id is locked;
3. a producer that is new to the id fences its predecessor and completes what it left, by the row;
4. the records go to Kafka, which is prepared;
5. its `producer id:epoch` is written to the row as the last statement;
6. the database commits: this is the decision;
7. Kafka commits.

A row is only ever written by a transaction whose records Kafka accepted under the lock. That is why a zombie cannot
overwrite the state of a later dual write that waits to be completed: its records were refused first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Final

from dualwrite.errors import (
    AbortableError,
    BoundExceededError,
    DatabaseWentBackError,
    DualWriteError,
    FencedError,
    IllegalStateError,
    NotDurableError,
    OutcomeUnknown,
    PreparedTransactionLost,
    RowLockTimeoutError,
)
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import BufferedRecord, RecordBuffer
from dualwrite.recipes.core.decisions import Outcome, commit_outcome, recovery_outcome
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.core.shield import Uninterrupted, direct
from dualwrite.recipes.core.slot import Slot, SlotState
from dualwrite.recipes.core.store import Database, DatabaseTransaction
from dualwrite.recipes.core.telemetry import telemetry_of

_log = logging.getLogger(__name__)

_NOTHING: Final = PreparedTxnState()
"""Nothing is prepared."""

_MOST_MARGIN_MS: Final = 1_000
"""How long before a prepared transaction times out no COMMIT is sent any more, and a tenth of the time at the most."""

_RESOLVE_BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of a transaction that was left open, or of a commit whose answer was lost.

    `prepared_state` is the pair in question; empty where nothing was open.
    """

    transactional_id: str
    prepared_state: PreparedTxnState
    outcome: Outcome


class DualWrite:
    """One dual write: a database transaction, and the records that become visible with it."""

    def __init__(
        self, database: DatabaseTransaction, records: RecordBuffer, uninterrupted: Uninterrupted = direct
    ) -> None:
        self._database = database
        self._records = records
        self._uninterrupted = uninterrupted
        self._transactional_id: str | None = None
        self._locked_row = _NOTHING
        self._written_row = _NOTHING
        self._prepared_state = _NOTHING
        self._sends_since_s = 0.0
        self._outcome: Outcome | None = None

    @property
    def transactional_id(self) -> str | None:
        """Under which id the records are sent; None before that, and for a dual write without records."""
        return self._transactional_id

    @property
    def prepared_state(self) -> PreparedTxnState:
        """The identity that this dual write left in the state row; empty before it was prepared."""
        return self._prepared_state

    @property
    def outcome(self) -> Outcome | None:
        """COMMITTED or ROLLED_BACK once known; None before, and while a lost commit is unresolved.

        Whoever resolves it in this process, be it the next dual write under the id, sets it here.
        """
        return self._outcome

    def tell(self, interruption: BaseException) -> None:
        """Note what became of this dual write on what interrupted it, which says nothing of that by itself."""
        if isinstance(interruption, Exception):
            return
        note = self._what_became_of_it()
        if note not in getattr(interruption, "__notes__", ()):
            interruption.add_note(note)

    def _what_became_of_it(self) -> str:
        if self._outcome is Outcome.ROLLED_BACK:
            return "The dual write is rolled back: neither database nor Kafka is changed."
        if self._outcome is Outcome.COMMITTED:
            return f"The dual write {self._prepared_state} of {self._transactional_id!r} is committed all the same."
        if self._prepared_state.is_empty:
            return "The database commit was sent and not answered; without records no row tells what became of it."
        return (
            f"The database commit of dual write {self._prepared_state} of {self._transactional_id!r} was sent and not "
            "answered: resolve(), or the next use of the id, finds out what became of it, and Kafka follows."
        )

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BufferedRecord:
        """Make one record part of this dual write; the arguments are those of `Producer.send`.

        It is kept until the block ends, sent right before the database commits, and visible only if that does.
        Raises InvalidRecordError or TransactionTooLargeError, which doom the block even if they are swallowed, and
        IllegalStateError after the block has ended, which it has for a `before_commit` hook too.
        """
        try:
            return self._records.send(topic, value, key, headers, partition, timestamp_ms)
        except BaseException as error:
            self._database.doom(error)
            raise

    def send_offsets(self, offsets: Mapping[Any, Any] | Iterable[Any], group_metadata: Any) -> None:
        """Commit consumed offsets as part of this dual write (KIP-447); see `Producer.send_offsets_to_transaction`."""
        try:
            self._records.send_offsets(offsets, group_metadata)
        except BaseException as error:
            self._database.doom(error)
            raise


async def settle(write: DualWrite) -> bool:
    """The block is over: everything is in the database, nothing more is taken. Whether there are records to send."""
    database, records = write._database, write._records
    database.assert_intact()
    await database.flush()
    database.assert_intact()
    records.close()  # what a hook inside COMMIT sent would come after the state was written
    return bool(records)


async def commit_database_alone(write: DualWrite) -> None:
    """No records: an ordinary database transaction, of which Kafka and the row hear nothing."""
    try:
        await write._database.commit()
    except BaseException:
        try:
            await roll_back_database(write)
        finally:
            if write._database.commit_was_sent:
                write._outcome = None  # no row tells what became of it
        raise
    write._outcome = Outcome.COMMITTED


async def roll_back_database(write: DualWrite) -> None:
    """The database is not changed, and nothing more is taken."""
    write._records.close()
    await write._uninterrupted(_roll_back_database(write))


async def _roll_back_database(write: DualWrite) -> None:
    await write._database.rollback()
    write._outcome = Outcome.ROLLED_BACK


class _Use:
    """The use of a transactional id, for as long as a `with` lasts; each dual write is one."""

    __slots__ = ("_acquire", "_writes")

    def __init__(self, writes: DualWriteCoordinator, acquire: Callable[[], None]) -> None:
        self._writes = writes
        self._acquire = acquire

    def __enter__(self) -> None:
        self._acquire()
        self._writes._user = threading.get_ident()
        try:
            self._writes._assert_usable()
        except BaseException:
            self._end()
            raise

    def __exit__(self, *raised: object) -> None:
        self._end()

    def _end(self) -> None:
        self._writes._user = None
        self._writes._in_use.release()


class DualWriteCoordinator:
    """Carries out dual writes under one transactional id, one at a time.

    Two living ones with one id are safe but useless: each fences the other.
    """

    def __init__(
        self,
        transactional_id: str,
        *,
        database: Database,
        kafka: KafkaParticipant,
        sleep: Callable[[float], Awaitable[None]],
        lock_timeout_ms: int | None,
        resolve_timeout_ms: int,
        pause: PauseHook | None,
        uninterrupted: Uninterrupted = direct,
        kafka_follows_later: bool = False,
    ) -> None:
        """`kafka_follows_later`: Kafka's commit is begun, and its end is heard of at the next use, or by `confirm`."""
        self.transactional_id: Final = transactional_id
        self._database = database
        self._kafka = kafka
        self._sleep = sleep
        self._lock_timeout_ms = lock_timeout_ms
        self._resolve_timeout_ms = resolve_timeout_ms
        self._pause = pause
        self._uninterrupted = uninterrupted
        self._kafka_follows_later = kafka_follows_later
        self._telemetry = telemetry_of(transactional_id)
        self._slot = Slot(transactional_id, self._telemetry.moved)
        self._kafka_id: str | None = None
        self._row = _NOTHING
        """What the row holds, as far as is known here; whoever relies on it lets the database compare."""
        self._unresolved: DualWrite | None = None
        self._in_doubt = _NOTHING
        self._in_use = threading.Lock()
        self._user: int | None = None

    @property
    def state(self) -> SlotState:
        """What is known about the transactional id."""
        return self._slot.state

    @property
    def kafka_transactional_id(self) -> str | None:
        """What Kafka sees of the transactional id; None before the database was first asked."""
        return self._kafka_id

    @property
    def in_doubt(self) -> PreparedTxnState:
        """The dual write that the database committed and whose Kafka commit is not confirmed yet; else empty."""
        return self._in_doubt

    def exclusively(self) -> AbstractContextManager[None]:
        """For whoever uses the id now. Raises IllegalStateError where somebody does, FencedError where it is lost."""
        return _Use(self, self._acquire_at_once)

    def _acquire_at_once(self) -> None:
        if not self._in_use.acquire(blocking=False):
            raise IllegalStateError(
                f"transactional id {self.transactional_id!r} already carries a dual write; "
                "Kafka allows one open transaction per id: finish it first, or use another writer. "
                "For a part that may fail by itself, tx.savepoint() begins a block inside a block"
            )

    def in_turn(self) -> AbstractContextManager[None]:
        """`exclusively`, for one of several threads, which waits for the others as long as for the row's lock.

        Raises IllegalStateError where that is too long, or where the thread itself is the user it would wait for.
        """
        return _Use(self, self._acquire_in_turn)

    def _acquire_in_turn(self) -> None:
        timeout_s = -1 if self._lock_timeout_ms is None else self._lock_timeout_ms / 1000
        is_mine = self._user == threading.get_ident()
        if is_mine or not self._in_use.acquire(timeout=timeout_s):
            raise self.not_its_turn("thread", is_mine=is_mine)

    def not_its_turn(self, who: str, *, is_mine: bool) -> IllegalStateError:
        """For a thread or task that waited too long, or that would wait for itself."""
        return IllegalStateError(
            f"transactional id {self.transactional_id!r} carries another dual write "
            + (f"of this very {who}" if is_mine else f"and was not free within {self._lock_timeout_ms} ms")
            + "; nothing was written: one DualWriter carries one dual write at a time, a DualWriterPool several"
        )

    def _assert_usable(self) -> None:
        if self._slot.state is SlotState.CLOSED:
            raise IllegalStateError("this DualWriter is closed; make a new one")
        if self._slot.state is SlotState.FENCED:
            raise self._fenced()

    def _fenced(self) -> FencedError:
        return FencedError(
            f"transactional id {self.transactional_id!r} was taken over by another process; nothing was "
            "written: make a new DualWriter to take it back, or give each process an id of its own"
        )

    # -- the steps of one dual write ---------------------------------------------------------------------------

    async def get_ready(self) -> None:
        """Before a block: what an earlier one left unresolved is resolved, and the row exists."""
        if self._slot.state is SlotState.UNRESOLVED:
            await self._resolve()
            self._assert_usable()
        await self.ensure_row()

    async def ensure_row(self) -> None:
        """The row exists from now on. Costs nothing when repeated."""
        if self._kafka_id is None:
            identity = await self._database.ensure_row(self.transactional_id)
            self._kafka_id = identity.kafka_id(self.transactional_id)

    async def commit(self, write: DualWrite) -> None:
        """Commit both sides, or roll back both and raise why."""
        try:
            carries_records = await settle(write)
            if carries_records:
                await self._prepare(write)
        except BaseException as error:
            await self.roll_back(write)
            if isinstance(error, AbortableError) and self._slot.state is SlotState.FENCED:
                raise self._fenced() from error  # the broker refuses a zombie's records with an abortable code first
            raise
        if carries_records:
            await self._decide(write)
        else:
            await commit_database_alone(write)

    async def commit_or_let_go(self, write: DualWrite) -> DualWriteError | None:
        """`commit` of a settled write with records, for whoever can turn to another id.

        Returns why, where this id cannot carry the write and nothing else is changed: nothing was decided, the row
        does not name the write, so nobody can commit what Kafka may hold of it, and its database transaction was left
        alone. Whether that still stands, the lock of the next id's row finds out.
        """
        try:
            try:
                await self._prepare(write)
            except (AbortableError, FencedError, PreparedTransactionLost) as error:
                if not await self._uninterrupted(self._let_go(write, error)):
                    raise
                return self._why_let_go(error)
        except BaseException:
            await self.roll_back(write)
            raise
        await self._decide(write)
        return None

    def _why_let_go(self, error: DualWriteError) -> DualWriteError:
        if not isinstance(error, AbortableError):
            return error
        fenced = self._fenced()  # the broker refuses a zombie's records with an abortable code first
        fenced.__cause__ = error
        return fenced

    async def _let_go(self, write: DualWrite, error: DualWriteError) -> bool:
        """End Kafka's side alone. Whether the id is lost to this write, and the row certainly does not name it."""
        if not write._prepared_state.is_empty:
            return False  # the state may have been written to the row: only rolling back takes that away
        if self._slot.state is SlotState.OPEN:
            await self._finish_kafka(write._locked_row, Outcome.ROLLED_BACK)
        if isinstance(error, AbortableError) and self._slot.state is not SlotState.FENCED:
            return False  # what is wrong is wrong with the records
        if write._written_row != write._locked_row:
            await self._write_state(write, write._locked_row)  # the row keeps what its next owner may have to know
        write._transactional_id = None
        write._locked_row = _NOTHING
        return True

    async def _prepare(self, write: DualWrite) -> None:
        """Everything up to the decision."""
        await self.confirm()
        self._assert_usable()
        if not await self._lock_and_write(write):
            write._locked_row = write._written_row = await self._lock(write._database)
        write._transactional_id = self.transactional_id
        self._slot.move(SlotState.OPEN)  # first, so that a failing or interrupted begin ends in a take-over
        write._sends_since_s = time.monotonic()
        await self._kafka.begin()
        self._reach(PausePoint.AFTER_BEGIN)
        await self._kafka.send(write._records, lambda: self._reach(PausePoint.AFTER_SEND))
        write._prepared_state = await self._kafka.prepare()
        self._reach(PausePoint.AFTER_PREPARE)
        if write._written_row != write._prepared_state:
            await self._write_state(write, write._prepared_state)
            self._reach(PausePoint.AFTER_STATE_WRITE)
        self._reach(PausePoint.BEFORE_DATABASE_COMMIT)

    async def _lock_and_write(self, write: DualWrite) -> bool:
        """Do both by one statement, where what the row holds, and what the transaction will be prepared as, are known.

        That is guessed, and checked: the row by the statement, the state when Kafka is prepared.
        """
        if self._slot.state is not SlotState.READY or (next_state := self._kafka.next_state).is_empty:
            return False
        if not await write._database.lock_and_write(self.transactional_id, previous=self._row, new=next_state):
            return False
        write._locked_row, write._written_row = self._row, next_state
        self._reach(PausePoint.AFTER_LOCK)
        self._reach(PausePoint.AFTER_STATE_WRITE)
        return True

    async def _write_state(self, write: DualWrite, state: PreparedTxnState) -> None:
        """The last statement: in a failed Postgres transaction it fails too, where COMMIT would quietly roll back."""
        await write._database.write(self.transactional_id, previous=write._written_row, new=state)
        write._written_row = state

    async def _lock(self, database: DatabaseTransaction) -> PreparedTxnState:
        """The row, locked, of an id that is ours."""
        row = await database.lock(self.transactional_id, timeout_ms=self._lock_timeout_ms)
        self._reach(PausePoint.AFTER_LOCK)
        if self._slot.state is SlotState.UNRESOLVED:
            # This transaction was there before the block could ask. Its lock waited for the lost commit as any other.
            await self._resolve_by(row)
            self._assert_usable()
        if self._slot.state is SlotState.READY:
            if row == self._row:
                return row
            await self._leave_to_successor(row)
        return (await self._take_over(database))[0]

    async def _leave_to_successor(self, row: PreparedTxnState) -> None:
        """The row is not as this id left it: another process has used the id, which raises its epoch in any case.

        Raises DatabaseWentBackError where none has.
        """
        try:
            is_current = await self._kafka.is_current()
        except BaseException:
            self._slot.move(SlotState.NEW)
            await self._give_up()
            raise
        if is_current:
            raise self._went_back(self._row, row)
        self._slot.move(SlotState.NEW)

    def _went_back(self, remembered: PreparedTxnState, row: PreparedTxnState) -> DatabaseWentBackError:
        return DatabaseWentBackError(
            f"the state row of transactional id {self.transactional_id!r} holds {str(row)!r}, and this process knows "
            f"that {str(remembered)!r} was committed to it, while Kafka says that nobody has used the id since: the "
            "database was restored or failed over to an earlier state, or the row was edited. Nothing was changed on "
            "either side. Records of what the database lost are in Kafka all the same: find out which, and repair "
            "one side; then close this writer, and a new one goes on from what the row holds"
        )

    async def _take_over(self, database: DatabaseTransaction) -> tuple[PreparedTxnState, Resolution]:
        """Fence the predecessor and complete what it left. The row must be locked by this transaction.

        The row is read again after initialising. Between the first read and the initialisation this process may have
        slept, lost its database connection and with it the lock, and another may have taken over and prepared a new
        transaction: deciding that one by the old reading would lose a committed write. The second read fails if the
        lock is gone.

        So do the third and the fourth. What was answered to a request of ours may be answered to another's too, whoever
        lost the lock: nothing more is sent then, so that what shows a loss stays, and the id is not used.
        """
        try:
            assert self._kafka_id is not None, "the row was locked, so it exists"
            ongoing = await self._kafka.take_over(self._kafka_id)
            self._reach(PausePoint.AFTER_INIT)
            row = await database.read(self.transactional_id)
            if ongoing == self._in_doubt != row and not ongoing.is_empty:
                raise self._went_back(ongoing, row)
            await self._make_durable(row, ongoing)
            await self._kafka.complete(row)
            self._reach(PausePoint.AFTER_COMPLETION)
            await self._assert_still_locked(database, row)
            await self._kafka.own()
            self._reach(PausePoint.AFTER_TAKEOVER)
            await self._assert_still_locked(database, row)
        except BaseException as error:
            if isinstance(error, PreparedTransactionLost):
                self._telemetry.lost()
            await self._give_up()
            raise
        outcome = recovery_outcome(row, ongoing)
        if outcome is not Outcome.NOTHING:
            _log.info("transactional id %s: prepared transaction %s %s", self.transactional_id, ongoing, outcome)
            self._telemetry.recovered(outcome)
        self._slot.move(SlotState.READY)
        self._row = row
        self._in_doubt = _NOTHING
        return row, Resolution(self.transactional_id, ongoing, outcome)

    async def _assert_still_locked(self, database: DatabaseTransaction, row: PreparedTxnState) -> None:
        """Read the row once more, which fails where the transaction that locked it is over."""
        found = await database.read(self.transactional_id)
        if found != row:
            raise FencedError(
                f"the state row of transactional id {self.transactional_id!r} has changed from {str(row)!r} to "
                f"{str(found)!r} under its lock, while the id was taken over: its database transaction is not the one "
                "that locked it any more. Nothing was written; the next use takes the id over anew"
            )

    async def _make_durable(self, row: PreparedTxnState, ongoing: PreparedTxnState = _NOTHING) -> None:
        """Make sure that the row, which was read, outlasts this server before Kafka hears of it.

        Its COMMIT may still wait for a standby, or for ever. An abort of what is open follows from the row as well: a
        primary that was cut off from its standbys still locks rows, and shows old ones.
        """
        if not (row.is_empty and ongoing.is_empty):
            await self._database.make_durable(self.transactional_id, row, timeout_ms=self._resolve_timeout_ms)

    async def _decide(self, write: DualWrite) -> None:
        """Commit the database, which decides, then Kafka."""
        self._slot.move(SlotState.DECIDING)
        try:
            self._assert_within_bound(write)
            await write._database.commit()
        except BaseException as error:
            await self._after_failed_commit(write, error)
        else:
            await self._after_commit(write)

    def _assert_within_bound(self, write: DualWrite) -> None:
        """Kafka counts from the first record, which it received after `_sends_since_s`."""
        bounded_ms = self._kafka.bounded_ms
        if bounded_ms is None:
            return
        passed_ms = (time.monotonic() - write._sends_since_s) * 1000
        if passed_ms < bounded_ms - min(bounded_ms // 10, _MOST_MARGIN_MS):
            return
        raise BoundExceededError(
            f"the dual write {write.prepared_state} of transactional id {self.transactional_id!r} has taken "
            f"{passed_ms:.0f} ms since its first record, and Kafka aborts it after "
            f"transaction.timeout.ms={bounded_ms}: committing the database now could leave it alone with the change. "
            "Neither side is changed; repeat the "
            "write, and if it always takes so long, make it smaller or transaction.timeout.ms longer"
        )

    async def _after_commit(self, write: DualWrite) -> None:
        write._outcome = Outcome.COMMITTED
        ours = write.prepared_state
        try:
            self._reach(PausePoint.AFTER_DATABASE_COMMIT)
            self._in_doubt = ours
            if self._kafka_follows_later:
                self._let_kafka_follow()
            else:
                await self._finish_kafka(ours, Outcome.COMMITTED)
                self._reach(PausePoint.AFTER_KAFKA_COMMIT)
        except BaseException as error:
            if self._slot.state is SlotState.DECIDING:
                await self._leave_in_doubt(ours)
            if not isinstance(error, PreparedTransactionLost):
                error.add_note(f"The dual write {ours} of {self.transactional_id!r} is committed all the same.")
            raise

    async def _after_failed_commit(self, write: DualWrite, error: BaseException) -> None:
        """Nothing is lost while COMMIT was not sent; once it was, only the row can tell.

        Our own transaction must be over before the row can be locked, here or in resolve().
        """
        if not write._database.commit_was_sent:
            await self.roll_back(write)
            raise error
        self._unresolved = write
        self._slot.move(SlotState.UNRESOLVED)
        await self._uninterrupted(write._database.rollback())
        if not isinstance(error, Exception):
            raise error  # interrupted: asking the database may take long, so leave it to resolve()
        try:
            outcome = (await self._resolve()).outcome
        except OutcomeUnknown as unknown:
            raise unknown from error
        if outcome is Outcome.ROLLED_BACK:
            raise error
        _log.warning(
            "transactional id %s: the dual write %s is committed, although its commit raised",
            self.transactional_id,
            write.prepared_state,
            exc_info=error,
        )

    async def roll_back(self, write: DualWrite) -> None:
        """Neither side is changed."""
        await self._uninterrupted(self._roll_back(write))

    async def _roll_back(self, write: DualWrite) -> None:
        await roll_back_database(write)
        if write.transactional_id is not None and self._slot.state in (SlotState.OPEN, SlotState.DECIDING):
            await self._finish_kafka(write._locked_row, Outcome.ROLLED_BACK)

    # -- Kafka's side, once the outcome is certain -------------------------------------------------------------

    def _let_kafka_follow(self) -> None:
        self._slot.move(SlotState.CONFIRMING)
        with suppress(DualWriteError):  # which `confirm` meets again
            self._kafka.start_commit()

    async def confirm(self) -> None:
        """Hear how the commit ended that Kafka was left to follow with. Raises PreparedTransactionLost."""
        if self._slot.state is SlotState.CONFIRMING:
            await self._finish_kafka(self._in_doubt, Outcome.COMMITTED)
            self._reach(PausePoint.AFTER_KAFKA_COMMIT)

    async def _finish_kafka(self, state: PreparedTxnState, outcome: Outcome) -> None:
        """Commit or abort the open Kafka transaction. Raises nothing that Kafka says, as the decision has been taken,
        but PreparedTransactionLost: no take-over can complete that one.

        A producer that cannot confirm is given up, and the next take-over completes the transaction by the row.
        """
        self._telemetry.decided(state, outcome)
        try:
            if outcome is Outcome.COMMITTED:
                await self._kafka.commit()
            else:
                await self._kafka.abort()
        except FencedError as error:
            _log.warning(
                "transactional id %s was taken over by another process, which %s: %s",
                self.transactional_id,
                _what_it_does(state, outcome),
                error,
            )
            self._slot.move(SlotState.FENCED)
            if outcome is Outcome.COMMITTED:
                self._in_doubt = state
            await self._give_up()
        except PreparedTransactionLost:
            self._telemetry.lost()
            await self._leave_in_doubt(state)  # each take-over says so again, until somebody has seen to it
            raise
        except DualWriteError as error:
            _log.warning(
                "transactional id %s: the %s of %s is not confirmed by Kafka (%s); the next use of the id completes it",
                self.transactional_id,
                "commit" if outcome is Outcome.COMMITTED else "abort",
                state if outcome is Outcome.COMMITTED else "the open transaction",
                error,
            )
            await self._leave_unconfirmed(state, outcome)
        except BaseException:  # interrupted
            await self._leave_unconfirmed(state, outcome)
            raise
        else:
            self._telemetry.confirmed(outcome)
            self._slot.move(SlotState.READY)
            self._in_doubt = _NOTHING
            if outcome is Outcome.COMMITTED:
                self._row = state

    async def _leave_unconfirmed(self, state: PreparedTxnState, outcome: Outcome) -> None:
        if outcome is Outcome.COMMITTED:
            await self._leave_in_doubt(state)
        else:
            self._slot.move(SlotState.NEW)
            await self._give_up()

    async def _give_up(self) -> None:
        await self._uninterrupted(self._kafka.give_up())

    async def _leave_in_doubt(self, state: PreparedTxnState) -> None:
        self._in_doubt = state
        self._slot.move(SlotState.IN_DOUBT)
        await self._give_up()

    # -- recovery, and a commit whose answer was lost ----------------------------------------------------------

    async def recover(self, examine: Callable[[PreparedTxnState], None] | None = None) -> Resolution:
        """Complete what was left open under the id, by the row. To be called `exclusively`.

        `examine` sees the row under its lock, before the owner of the id is fenced; by raising it leaves all as it is.
        """
        if self._slot.state is SlotState.UNRESOLVED:
            return await self._resolve()
        await self.confirm()
        self._assert_usable()
        await self.ensure_row()
        database = await self._database.begin()
        try:
            row = await database.lock(self.transactional_id, timeout_ms=self._lock_timeout_ms)
            self._reach(PausePoint.AFTER_LOCK)
            if examine is not None:
                examine(row)
            if self._slot.state is SlotState.READY:  # another process may have taken the id over, and left something
                if row != self._row:
                    await self._leave_to_successor(row)
                else:
                    self._slot.move(SlotState.NEW)
            return (await self._take_over(database))[1]
        finally:
            await self._uninterrupted(_end(database))

    async def _resolve(self) -> Resolution:
        return await self._resolve_by(await self._ask_database(self._in_question))

    @property
    def _in_question(self) -> DualWrite:
        assert self._unresolved is not None, "UNRESOLVED always comes with the dual write in question"
        return self._unresolved

    async def _resolve_by(self, row: PreparedTxnState) -> Resolution:
        write = self._in_question
        ours = write.prepared_state
        outcome = commit_outcome(row, ours=ours, previous=write._locked_row)
        if outcome is Outcome.SUPERSEDED:
            self._unresolved = None
            self._slot.move(SlotState.FENCED)
            await self._give_up()
            raise self._outcome_unknown(
                write, "another process has since taken the transactional id over and replaced the state row"
            )
        if outcome is Outcome.COMMITTED:
            await self._make_durable_or_stay_unresolved(write)
        _log.info("transactional id %s: lost commit of %s was %s", self.transactional_id, ours, outcome)
        self._telemetry.recovered(outcome)
        write._outcome = outcome
        try:
            await self._finish_kafka(ours, outcome)
        finally:
            self._unresolved = None
        return Resolution(self.transactional_id, ours, outcome)

    async def _make_durable_or_stay_unresolved(self, write: DualWrite) -> None:
        expected: tuple[type[Exception], ...] = (*self._database.errors, NotDurableError)
        try:
            await self._make_durable(write.prepared_state)
        except expected as error:
            raise self._outcome_unknown(
                write, f"it shows in the database and is not durable yet ({_first_line(error)})"
            ) from error

    async def _ask_database(self, write: DualWrite) -> PreparedTxnState:
        """Read the row under its lock, which waits until the lost commit has either happened or been dropped."""
        deadline_s = time.monotonic() + self._resolve_timeout_ms / 1000
        expected: tuple[type[Exception], ...] = (*self._database.errors, RowLockTimeoutError)
        attempt = 0
        while True:
            remaining_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
            try:
                return await self._locked_row(remaining_ms)
            except expected as error:
                backoff_s = _RESOLVE_BACKOFF_S[min(attempt, len(_RESOLVE_BACKOFF_S) - 1)]
                attempt += 1
                if time.monotonic() + backoff_s >= deadline_s:
                    raise self._outcome_unknown(
                        write, f"the database cannot be asked ({_first_line(error)})"
                    ) from error
                self._telemetry.retried()
                await self._sleep(backoff_s)

    async def _locked_row(self, timeout_ms: int) -> PreparedTxnState:
        database = await self._database.begin()
        try:
            return await database.lock(self.transactional_id, timeout_ms=timeout_ms)
        finally:
            await self._uninterrupted(_end(database))

    def _outcome_unknown(self, write: DualWrite, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the database commit of dual write {write.prepared_state} (transactional id {self.transactional_id!r}) "
            f"was sent and its outcome is unknown: {why}. Database and Kafka will agree either way; do not repeat the "
            "write before resolve(), or recover() in any process, has told which",
            transactional_id=self.transactional_id,
            prepared_state=str(write.prepared_state),
        )

    # -- the end -----------------------------------------------------------------------------------------------

    async def close(self, *, waits: bool = True) -> None:
        """Give up the transactional id. What is in doubt stays so, safely, until the id is next used or recovered.

        Kafka's commit that is on its way is waited for, if `waits`.
        """
        if not self._in_use.acquire(blocking=False):
            raise IllegalStateError("a dual write is running; leave its block before closing the writer")
        try:
            if waits:
                with suppress(PreparedTransactionLost):  # stays in doubt, which is said next
                    await self.confirm()
            await self._close()
        finally:
            self._in_use.release()

    async def _close(self) -> None:
        if self._slot.state is SlotState.CLOSED:
            return
        if self._slot.state in (SlotState.CONFIRMING, SlotState.IN_DOUBT, SlotState.UNRESOLVED):
            _log.warning(
                "transactional id %s is closed while %s is in doubt; recover() with this id completes it",
                self.transactional_id,
                self._unresolved.prepared_state if self._unresolved is not None else self._in_doubt,
            )
        self._slot.move(SlotState.CLOSED)
        await self._give_up()

    def _reach(self, point: PausePoint) -> None:
        self._telemetry.reach(point)
        if self._pause is not None:
            self._pause(point)


async def _end(database: DatabaseTransaction) -> None:
    await database.rollback()
    await database.close()


def _first_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error  # SQLAlchemy's wraps what the driver said
    return str(cause).strip().partition("\n")[0]


def _what_it_does(state: PreparedTxnState, outcome: Outcome) -> str:
    """Of who has taken over an id in the middle of an end that was decided here."""
    if outcome is Outcome.ROLLED_BACK:
        return "aborts what is open"
    return f"commits {state}"
