"""The dual writes under one transactional id, step by step; one implementation for threads and asyncio.

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

Where the settings allow it and Kafka is away, steps 3, 4 and 7 are left out: the records are stored in the database
with the block's changes, and sent later (`stored_blocks.py`).

Step 3 is `completion.py`, which also resolves a commit whose response is lost; step 7 is `owned_id.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Self

from dualwrite.errors import (
    AbortableError,
    BoundExceededError,
    DatabaseWentBackError,
    DualWriteError,
    FencedError,
    IllegalStateError,
    KafkaTimeoutError,
    KafkaUnreachableError,
    OutcomeUnknown,
    PreparedTransactionLost,
    RetriableError,
    StoredBlocksError,
)
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.availability import NEVER_AWAY, Availability
from dualwrite.recipes.core.buffer import BufferedRecord, RecordBuffer
from dualwrite.recipes.core.completion import LostCommits, end, leave_to_successor, take_over
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.dual_write import (
    NOTHING_PREPARED,
    DualWriteProgress,
    Resolution,
    commit_database_alone,
    flush_block,
    roll_back_database,
)
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.core.repair import keep_copy, settled_text
from dualwrite.recipes.core.repairability import Repairability
from dualwrite.recipes.core.settings import STORES_NOTHING, StorePolicy
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.store import Database, DatabaseTransaction
from dualwrite.recipes.core.stored_blocks import BlockStore, Waiting
from dualwrite.recipes.core.waiting import Uninterrupted, direct

_log = logging.getLogger(__name__)

_SECONDS_TO_NEXT_ATTEMPT: Final = 1.0
"""How long after an attempt that failed a block tries again to publish what is stored, if Kafka can be reached."""

_MOST_MARGIN_MS: Final = 1_000
"""How long before the timeout of a prepared transaction to stop sending COMMIT; at most a tenth of the timeout."""


class DualWriteCoordinator:
    """Carries out dual writes under one transactional id, one at a time.

    Two live coordinators with one id are safe but useless: each fences the other.
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
        repairability: Repairability | None = None,
        availability: Availability = NEVER_AWAY,
        policy: StorePolicy = STORES_NOTHING,
    ) -> None:
        """`kafka_follows_later`: start Kafka's commit, and wait for its response at the next use or in `confirm`.

        `repairability` is shared by the coordinators of a pool.
        """
        self.transactional_id: Final = transactional_id
        self.owned: Final = OwnedId(
            transactional_id,
            database=database,
            kafka=kafka,
            pause=pause,
            uninterrupted=uninterrupted,
            resolve_timeout_ms=resolve_timeout_ms,
            availability=availability,
            policy=policy,
        )
        self.lock_timeout_ms = lock_timeout_ms
        self._slot = self.owned.slot
        self._lost_commits = LostCommits(self.owned, sleep)
        self._blocks = BlockStore(self.owned)
        self._publishes_again_at_s = 0.0
        self._kafka_follows_later = kafka_follows_later
        self._repairability = Repairability() if repairability is None else repairability
        self._in_use = threading.Lock()
        self._user: int | None = None

    @property
    def state(self) -> SlotState:
        """The state of the transactional id, as far as this process knows."""
        return self._slot.state

    @property
    def kafka_transactional_id(self) -> str | None:
        """The transactional id as Kafka knows it; None before the database was first queried."""
        return self.owned.kafka_id

    @property
    def in_doubt(self) -> PreparedTxnState:
        """The dual write that the database committed and whose Kafka commit is not confirmed yet; else empty."""
        return self.owned.in_doubt

    @property
    def has_stored(self) -> bool:
        """Whether the database may store blocks of the id, because Kafka was away."""
        return self.owned.has_stored

    @property
    def takes_more(self) -> bool:
        """Whether blocks can be stored behind those that the database stores of the id."""
        is_free = self._slot.state in (SlotState.NEW, SlotState.READY, SlotState.IN_DOUBT)
        return self.owned.has_stored and self.owned.policy.stores_blocks and is_free

    # -- one dual write at a time ------------------------------------------------------------------------------

    needs_slot_early = False
    leases_at_commit = False

    def enter(self) -> Self:
        """Acquire the id without waiting. Raises IllegalStateError if it is in use, FencedError if it is lost."""
        if not self._in_use.acquire(blocking=False):
            raise IllegalStateError(
                f"transactional id {self.transactional_id!r} already carries a dual write; "
                "Kafka allows one open transaction per id: finish it first, or use another writer. "
                "For a part that may fail by itself, tx.savepoint() begins a block inside a block"
            )
        self._user = threading.get_ident()
        try:
            self.owned.assert_usable()
        except BaseException:
            self.leave()
            raise
        return self

    def _enter_in_turn(self) -> None:
        """Acquire the id, and wait for other threads at most as long as for the row lock.

        Raises IllegalStateError if that takes too long, or if this thread itself has the id.
        """
        timeout_s = -1 if self.lock_timeout_ms is None else self.lock_timeout_ms / 1000
        is_mine = self._user == threading.get_ident()
        if is_mine or not self._in_use.acquire(timeout=timeout_s):
            raise self.not_its_turn("thread", is_mine=is_mine)
        self._user = threading.get_ident()
        try:
            self.owned.assert_usable()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Release the id for the next user."""
        self._user = None
        self._in_use.release()

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Acquire the id without waiting, for the duration of a `with`. Raises as `enter` does."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    async def commit_in_turn(self, write: DualWriteProgress) -> None:
        """Commit a dual write of this thread when the id is free. Raises as `_enter_in_turn` does."""
        self._enter_in_turn()
        try:
            await self.commit(write)
        finally:
            self.leave()

    def not_its_turn(self, user: str, *, is_mine: bool) -> IllegalStateError:
        """Return the error for a thread or task that waited too long, or would wait for itself."""
        return IllegalStateError(
            f"transactional id {self.transactional_id!r} carries another dual write "
            + (f"of this same {user}" if is_mine else f"and was not free within {self.lock_timeout_ms} ms")
            + "; nothing was written: one DualWriter carries one dual write at a time, a DualWriterPool several"
        )

    # -- the steps of one dual write ---------------------------------------------------------------------------

    async def get_ready(self) -> None:
        """Resolve what an earlier dual write left unresolved, and create the state row; call it before a block.

        Raises KafkaUnreachableError while Kafka is known to be away, unless the block could be stored.
        """
        if not self.owned.policy.stores_blocks:
            self._assert_present()
        if self._slot.state is SlotState.UNRESOLVED:
            with suppress(PreparedTransactionLost):  # the take-over that follows publishes it again, or raises it again
                await self._lost_commits.resolve()
            self.owned.assert_usable()
        if self.owned.kafka_id is None:
            await self.owned.ensure_row()
        if self.owned.has_stored:
            await self._publish_if_kafka_is_back()

    def _assert_present(self) -> None:
        if self.owned.availability.away is not None:
            raise self.owned.availability.refusal()

    async def get_ready_for_sessions(self) -> None:
        """Create the state row while no transaction of a Session has begun. Costs nothing when repeated."""
        await self.owned.ensure_row()

    async def take_slot(self) -> None:
        """Do nothing: the block has its id from `enter` on."""

    async def confirm(self) -> None:
        """Wait for a Kafka commit that was started but not awaited. Raises PreparedTransactionLost."""
        try:
            await self.owned.confirm()
        except PreparedTransactionLost:
            await self._repair_at_once()

    async def commit(self, write: DualWriteProgress) -> None:
        """Commit both sides, or roll back both and raise the reason."""
        try:
            carries_records = await flush_block(write)
            why_stored = await self._prepare_or_store(write) if carries_records else None
        except BaseException as error:
            await self.roll_back(write)
            if isinstance(error, AbortableError) and self._slot.state is SlotState.FENCED:
                raise self.owned.fenced() from error  # brokers first refuse a zombie's records with an abortable code
            raise
        if why_stored is not None:
            await self._decide_stored(write, why_stored)
            if isinstance(why_stored, StoredBlocksError):
                with suppress(PreparedTransactionLost, DatabaseWentBackError):  # the next use of the id raises it again
                    await self._publish_if_kafka_is_back()
        elif carries_records:
            await self._decide_or_repair(write)
        else:
            await commit_database_alone(write)

    async def commit_or_let_go(self, write: DualWriteProgress) -> DualWriteError | None:
        """Commit a settled dual write with records, for a caller that can retry under another id.

        Returns the reason if this id cannot carry the dual write. Then nothing else has changed: nothing was decided;
        the row does not name the dual write, so no process can commit records of it that Kafka may hold; and the
        database transaction is still open. If the database has ended it meanwhile, locking the next id's row fails.
        """
        try:
            try:
                why_stored = await self._prepare_or_store(write)
            except (AbortableError, FencedError, PreparedTransactionLost) as error:
                if not await self.owned.uninterrupted(self._let_go(write, error)):
                    raise
                return self._why_let_go(error)
        except BaseException:
            await self.roll_back(write)
            raise
        if why_stored is not None:
            await self._decide_stored(write, why_stored)
        else:
            await self._decide_or_repair(write)
        return None

    def _why_let_go(self, error: DualWriteError) -> DualWriteError:
        if not isinstance(error, AbortableError) or self._slot.state is not SlotState.FENCED:
            return error
        fenced = self.owned.fenced()  # brokers first refuse a zombie's records with an abortable code
        fenced.__cause__ = error
        return fenced

    async def _let_go(self, write: DualWriteProgress, error: DualWriteError) -> bool:
        """End Kafka's side only. Return whether the id is lost and the row certainly does not name this dual write."""
        if not write.prepared_state.is_empty:
            return False  # the state may have been written to the row: only a rollback undoes that
        if self._slot.state is SlotState.OPEN:
            await self.owned.complete_kafka(write.locked_row, Outcome.ROLLED_BACK)
        if isinstance(error, AbortableError) and self._slot.state not in (SlotState.FENCED, SlotState.IN_DOUBT):
            return False  # the block's own records are the cause, so another id would not help
        if write.written_row != write.locked_row:
            manifest = await write.database.read_manifest(self.transactional_id)  # still the locked row's
            await self._write_state(write, write.locked_row, manifest)  # restore what the next owner may need
        write.transactional_id = None
        write.locked_row = NOTHING_PREPARED
        return True

    async def _prepare_or_store(self, write: DualWriteProgress) -> DualWriteError | None:
        """Carry out everything up to the decision.

        Return why the records are stored, to be sent when Kafka is back; None if Kafka is prepared.
        """
        try:
            await self._prepare(write)
        except (KafkaTimeoutError, StoredBlocksError) as error:
            if not self._blocks.takes(write):
                raise
            if isinstance(error, KafkaTimeoutError) and not isinstance(error, KafkaUnreachableError):
                self._publishes_again_at_s = time.monotonic() + _SECONDS_TO_NEXT_ATTEMPT
            await self._store(write, error)
            return error
        return None

    async def _store(self, write: DualWriteProgress, why: DualWriteError) -> None:
        """Store the records in the database instead of sending them. Asks nothing of Kafka."""
        await self._leave_kafka()
        if write.transactional_id is None:
            write.locked_row = write.written_row = await self._lock_row(write.database)
            write.transactional_id = self.transactional_id
        manifest = await write.database.read_manifest(self.transactional_id)  # the locked row's: none was written
        await self._blocks.append(write, why)
        await self._write_state(write, write.locked_row, manifest)  # which also proves that the lock is still held
        self.owned.reach(PausePoint.AFTER_STATE_WRITE)
        self.owned.reach(PausePoint.BEFORE_DATABASE_COMMIT)

    async def _leave_kafka(self) -> None:
        """Give the producer up. What it has begun is named by no row, and is aborted by the next take-over."""
        if self._slot.state is SlotState.OPEN and self.owned.owed:
            await self.owned.leave_in_doubt(self.owned.row)  # the row stays as it is, and with it what is owed
        elif self._slot.state is SlotState.CONFIRMING:
            await self.owned.leave_in_doubt(self.owned.in_doubt)
        elif self._slot.state in (SlotState.OPEN, SlotState.READY):
            self._slot.move(SlotState.NEW)
            await self.owned.give_up()

    async def _decide_stored(self, write: DualWriteProgress, why: DualWriteError) -> None:
        """Commit the database, which decides and stores the records."""
        try:
            await write.database.commit()
        except BaseException as error:
            await self._after_failed_commit(write, error)
        else:
            write.outcome = Outcome.STORED
            self.owned.reach(PausePoint.AFTER_DATABASE_COMMIT)
        self._blocks.note_stored(write, why)

    async def _publish_if_kafka_is_back(self) -> None:
        """Publish the stored blocks, unless Kafka is known to be away.

        Raises PreparedTransactionLost and DatabaseWentBackError, because nothing may be written then.
        """
        availability = self.owned.availability
        if availability.is_away:
            availability.keep_watching()
            return
        if time.monotonic() < self._publishes_again_at_s:
            return
        expected: tuple[type[Exception], ...] = (DualWriteError, *self.owned.database.errors)
        try:
            await self.recover()
        except (PreparedTransactionLost, DatabaseWentBackError):
            raise
        except expected as error:
            if not availability.is_away:
                self._publishes_again_at_s = time.monotonic() + _SECONDS_TO_NEXT_ATTEMPT
            _log.warning(
                "transactional id %s: its stored blocks could not be published now (%s)",
                self.transactional_id,
                first_line(error),
            )

    async def _prepare(self, write: DualWriteProgress) -> None:
        """Carry out everything up to the decision, with Kafka. Raises KafkaUnreachableError in the words of a block."""
        owned = self.owned
        self._assert_present()
        try:
            if self._slot.state is SlotState.CONFIRMING:
                with suppress(PreparedTransactionLost):  # the take-over publishes it again, or raises it again
                    await owned.confirm()
                owned.assert_usable()
            if not await self._lock_and_write(write):
                write.locked_row = write.written_row = await self._lock(write.database)
            write.transactional_id = self.transactional_id
            if owned.owed and write.records.has_offsets:
                await self._leave_owed()
                raise self._owes_records(write)
            await self._send_and_write(write)
        except KafkaUnreachableError as error:
            raise owned.availability.note(error) from error

    async def _send_and_write(self, write: DualWriteProgress, ahead: Sequence[BufferedRecord] = ()) -> None:
        """Send what is owed, what is `ahead`, and the block's records; prepare Kafka, and write the locked row.

        The row gets Kafka's prepared state and its manifest. Raises UnsupportedByBrokerError, before anything is sent,
        if Kafka may abort the block's records against the decision and they could not be published again.
        """
        owned, kafka = self.owned, self.owned.kafka
        self._slot.move(SlotState.OPEN)  # before `begin`, so that a failed or interrupted `begin` leads to a take-over
        write.sends_since_s = time.monotonic()
        await kafka.begin()
        owned.reach(PausePoint.AFTER_BEGIN)
        write.bounded_ms = kafka.bounded_ms
        unseen = () if write.bounded_ms is None else await self._repairability.check(write.records, kafka)
        if owned.owed or ahead:
            await kafka.send((*owned.owed, *ahead), lambda: owned.reach(PausePoint.AFTER_SEND))
        await kafka.send(write.records, lambda: owned.reach(PausePoint.AFTER_SEND))
        if unseen:
            await self._repairability.check_created(unseen, kafka)
        write.prepared_state = await kafka.prepare()
        owned.reach(PausePoint.AFTER_PREPARE)
        if write.prepared_state == write.locked_row:
            raise self._names_another(write)
        owned.manifest = kafka.manifest
        if owned.policy.keeps_copy:
            await keep_copy(owned, write, (*owned.owed, *ahead))
        if write.written_row == write.prepared_state:
            write.database.attach(self.transactional_id, write.prepared_state, owned.manifest)
        else:
            await self._write_state(write, write.prepared_state, owned.manifest)
            owned.reach(PausePoint.AFTER_STATE_WRITE)
        owned.reach(PausePoint.BEFORE_DATABASE_COMMIT)

    def _names_another(self, write: DualWriteProgress) -> RetriableError:
        """Return the error for a pair that the row has from another cluster: it would not show what was decided."""
        return RetriableError(
            f"the dual write has the pair {write.prepared_state}, which the state row of transactional id "
            f"{self.transactional_id!r} names already, from another Kafka cluster; neither side was changed: repeat "
            "the block, which gets another pair"
        )

    def _owes_records(self, write: DualWriteProgress) -> RetriableError:
        """Return the error for a block with consumed offsets, which could not be published again with what is owed."""
        return RetriableError(
            f"transactional id {self.transactional_id!r} has to publish again what Kafka aborted of "
            f"{write.locked_row}, and a block with consumed offsets cannot carry that; neither side was changed: call "
            "recover(), then repeat the block"
        )

    async def _lock_and_write(self, write: DualWriteProgress) -> bool:
        """Lock and write the row with one statement, if its content and the next prepared state can be predicted.

        Both predictions are verified: the row by the statement, the state when Kafka is prepared.
        """
        owned = self.owned
        if not write.database.can_lock_and_write or self._slot.state is not SlotState.READY or owned.has_stored:
            return False
        if (next_state := owned.kafka.next_state).is_empty:
            return False
        if not await write.database.lock_and_write(self.transactional_id, previous=owned.row, new=next_state):
            return False
        write.locked_row, write.written_row = owned.row, next_state
        owned.reach(PausePoint.AFTER_LOCK)
        owned.reach(PausePoint.AFTER_STATE_WRITE)
        return True

    async def _write_state(self, write: DualWriteProgress, state: PreparedTxnState, manifest: str) -> None:
        """Write the state and its manifest with the last statement before COMMIT.

        In a PostgreSQL transaction that has already failed, this statement raises. COMMIT would not raise: it would
        silently roll back.
        """
        await write.database.write(self.transactional_id, previous=write.written_row, new=state, manifest=manifest)
        write.written_row = state

    async def _lock_row(self, database: DatabaseTransaction) -> PreparedTxnState:
        """Lock the row and return its content."""
        owned = self.owned
        row = await database.lock(self.transactional_id, timeout_ms=self.lock_timeout_ms)
        owned.reach(PausePoint.AFTER_LOCK)
        if self._slot.state is SlotState.UNRESOLVED:
            # This transaction began before the lost commit could be resolved. Its row lock waited for that commit.
            with suppress(PreparedTransactionLost):  # as in get_ready()
                await self._lost_commits.resolve_in(database, row)
            owned.assert_usable()
        return row

    async def _lock(self, database: DatabaseTransaction) -> PreparedTxnState:
        """Lock the row, and take the id over unless this process already owns it. Return the content of the row.

        Raises StoredBlocksError if blocks of the id are stored, which come first.
        """
        owned = self.owned
        row = await self._lock_row(database)
        if owned.has_stored or self._slot.state is not SlotState.READY:
            await self._blocks.assert_none(database)
        if self._slot.state is SlotState.READY:
            if row == owned.row:
                return row
            await leave_to_successor(owned, row)
        return (await take_over(owned, database))[0]

    async def _decide_or_repair(self, write: DualWriteProgress) -> None:
        """Commit the database, which decides, then Kafka; publish the records again if Kafka has aborted them."""
        try:
            await self._decide(write)
        except PreparedTransactionLost:
            await self._repair_at_once()

    async def _repair_at_once(self) -> None:
        """Publish again what Kafka has aborted against the decision, or leave that to the next use of the id.

        Raises PreparedTransactionLost if it cannot be published again.
        """
        expected: tuple[type[Exception], ...] = (DualWriteError, *self.owned.database.errors)
        try:
            await self.recover()
        except PreparedTransactionLost:
            raise
        except expected as error:
            _log.warning(
                "transactional id %s: what Kafka aborted could not be published again now (%s); the next use of the "
                "id does it",
                self.transactional_id,
                first_line(error),
            )

    async def _decide(self, write: DualWriteProgress) -> None:
        """Commit the database, which decides, then Kafka."""
        self._slot.move(SlotState.DECIDING)
        try:
            self._assert_within_bound(write)
            await write.database.commit()
        except BaseException as error:
            await self._after_failed_commit(write, error)
        else:
            await self._after_commit(write)

    def _assert_within_bound(self, write: DualWriteProgress) -> None:
        """Raise BoundExceededError if Kafka may abort the transaction before it receives the decision.

        Kafka counts from the first record, which it received after `sends_since_s`.
        """
        bounded_ms = write.bounded_ms
        if bounded_ms is None:
            return
        passed_ms = (time.monotonic() - write.sends_since_s) * 1000
        if passed_ms < bounded_ms - min(bounded_ms // 10, _MOST_MARGIN_MS):
            return
        raise BoundExceededError(
            f"the dual write {write.prepared_state} of transactional id {self.transactional_id!r} has taken "
            f"{passed_ms:.0f} ms since its first record, and Kafka aborts it after "
            f"transaction.timeout.ms={bounded_ms}: committing the database now could change the database only. "
            "Neither side was changed; repeat the dual write, and if it always takes so long, make it smaller or "
            "increase transaction.timeout.ms"
        )

    async def _after_commit(self, write: DualWriteProgress) -> None:
        owned = self.owned
        write.outcome = Outcome.COMMITTED
        ours = write.prepared_state
        try:
            owned.reach(PausePoint.AFTER_DATABASE_COMMIT)
            owned.in_doubt = ours
            if self._kafka_follows_later:
                owned.let_kafka_follow()
            else:
                await owned.complete_kafka(ours, Outcome.COMMITTED)
                owned.reach(PausePoint.AFTER_KAFKA_COMMIT)
        except BaseException as error:
            if self._slot.state is SlotState.DECIDING:
                await owned.leave_in_doubt(ours)
            if not isinstance(error, PreparedTransactionLost):
                error.add_note(f"The dual write {ours} of {self.transactional_id!r} is committed anyway.")
            raise

    async def _after_failed_commit(self, write: DualWriteProgress, error: BaseException) -> None:
        """Roll back if COMMIT was not sent; after that, only the row shows the outcome.

        This transaction must be over before the row can be locked, here or in resolve().
        """
        if not write.database.commit_was_sent:
            await self.roll_back(write)
            raise error
        self._lost_commits.begin(write)
        await self.owned.uninterrupted(write.database.rollback())
        if not isinstance(error, Exception):
            raise error  # interrupted: querying the database may take long, so leave it to resolve()
        try:
            outcome = (await self._lost_commits.resolve()).outcome
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

    async def roll_back(self, write: DualWriteProgress) -> None:
        """Roll both sides back, even if the caller is interrupted."""
        await self.owned.uninterrupted(self._roll_back(write))

    async def _roll_back(self, write: DualWriteProgress) -> None:
        await roll_back_database(write)
        if write.transactional_id is not None and self._slot.state in (SlotState.OPEN, SlotState.DECIDING):
            await self.owned.complete_kafka(write.locked_row, Outcome.ROLLED_BACK)

    # -- recovery ----------------------------------------------------------------------------------------------

    async def recover(self, examine: Callable[[PreparedTxnState], bool] | None = None) -> Resolution:
        """Complete what was left open under the id, by the row; publish again what Kafka aborted against it.

        Then publish what is stored, until nothing is. The id must be acquired. `examine` is called with the locked row
        before the owner of the id is fenced. If it raises, nothing is changed; if it returns False, the row's
        transaction counts as dealt with from now on, and nothing else is changed.
        """
        owned = self.owned
        if self._slot.state is SlotState.UNRESOLVED:
            with suppress(PreparedTransactionLost):  # the take-over that follows publishes it again, or raises it again
                return await self._lost_commits.resolve()
        with suppress(PreparedTransactionLost):  # the take-over publishes it again, or raises it again
            await owned.confirm()
        owned.assert_usable()
        await owned.ensure_row()
        resolution = await self._recover(examine)
        while owned.has_stored and resolution.outcome in (Outcome.PUBLISHED, Outcome.REPAIRED):
            await self._publish_more()
        return resolution

    async def _recover(self, examine: Callable[[PreparedTxnState], bool] | None) -> Resolution:
        owned = self.owned
        database = await owned.database.begin()
        try:
            row = await database.lock(self.transactional_id, timeout_ms=self.lock_timeout_ms)
            owned.reach(PausePoint.AFTER_LOCK)
            if examine is not None and not examine(row):
                await self._settle(database, row)
                return Resolution(self.transactional_id, NOTHING_PREPARED, Outcome.NOTHING)
            if self._slot.state is SlotState.READY:  # another process may have taken the id over meanwhile
                if row != owned.row:
                    await leave_to_successor(owned, row)
                else:
                    self._slot.move(SlotState.NEW)
            row, resolution = await take_over(owned, database)
            waiting = await self._blocks.oldest(database)
            if owned.owed or waiting.blocks:
                return await self._publish(database, row, waiting)
            await self._settle(database, row)
            return resolution
        except KafkaUnreachableError as error:
            raise owned.availability.note(error) from error
        finally:
            await self._leave_owed()
            await owned.uninterrupted(end(database))

    async def _publish_more(self) -> None:
        """Publish the next stored blocks, after the first of them."""
        owned = self.owned
        with suppress(PreparedTransactionLost):  # the take-over publishes it again, or raises it again
            await owned.confirm()
        owned.assert_usable()
        database = await owned.database.begin()
        try:
            row = await self._lock_row(database)
            if self._slot.state is SlotState.READY and row != owned.row:
                await leave_to_successor(owned, row)
            if self._slot.state is not SlotState.READY:
                row = (await take_over(owned, database))[0]
            waiting = await self._blocks.oldest(database)
            if owned.owed or waiting.blocks:
                await self._publish(database, row, waiting)
        finally:
            await self._leave_owed()
            await owned.uninterrupted(end(database))

    async def _leave_owed(self) -> None:
        """Leave what is owed and could not be sent to the next take-over; an id that is READY owes nothing."""
        if self._slot.state is SlotState.READY and self.owned.owed:
            self._slot.move(SlotState.NEW)
            await self.owned.give_up()

    async def _settle(self, database: DatabaseTransaction, row: PreparedTxnState) -> None:
        """Note in the row that nothing of its transaction is left to prove, before the evidence leaves the log."""
        text = await database.read_manifest(self.transactional_id)
        if text and text != settled_text(row):
            await database.write(self.transactional_id, previous=row, new=row, manifest=settled_text(row))
            await database.commit()

    async def _publish(self, database: DatabaseTransaction, row: PreparedTxnState, waiting: Waiting) -> Resolution:
        """Publish what is owed and what is stored, by a dual write that changes the row and deletes what was stored.

        Raises RetriableError if Kafka aborts that too.
        """
        owned = self.owned
        is_repair = bool(owned.owed)
        write = DualWriteProgress(database, RecordBuffer(), owned.uninterrupted)
        write.transactional_id = self.transactional_id
        write.locked_row = write.written_row = row
        try:
            await self._blocks.delete(database, waiting)
            await self._send_and_write(write, waiting.records)
        except BaseException:
            await self.roll_back(write)
            raise
        try:
            await self._decide(write)
        except PreparedTransactionLost as error:
            raise RetriableError(
                f"Kafka has aborted {write.prepared_state} too, by which records of transactional id "
                f"{self.transactional_id!r} were to be published; they are owed now, and the next use of the id, or "
                "recover(), publishes them"
            ) from error
        self._blocks.note_published(waiting)
        if is_repair:
            return Resolution(self.transactional_id, row, Outcome.REPAIRED)
        return Resolution(self.transactional_id, write.prepared_state, Outcome.PUBLISHED)

    # -- the end -----------------------------------------------------------------------------------------------

    async def close(self, *, waits: bool = True) -> None:
        """Give up the transactional id. What is in doubt stays so, safely, until the id is next used or recovered.

        With `waits`, first wait for a Kafka commit in progress.
        """
        if not self._in_use.acquire(blocking=False):
            raise IllegalStateError("a dual write is running; leave its block before closing the writer")
        try:
            if waits:
                with suppress(PreparedTransactionLost):  # stays in doubt, which is logged next
                    await self.confirm()
            await self._close()
        finally:
            self._in_use.release()

    async def _close(self) -> None:
        if self._slot.state is SlotState.CLOSED:
            return
        if self._slot.state in (SlotState.CONFIRMING, SlotState.IN_DOUBT, SlotState.UNRESOLVED):
            unresolved = self._lost_commits.unresolved
            _log.warning(
                "transactional id %s is closed while %s is in doubt; recover() with this id completes it",
                self.transactional_id,
                unresolved.prepared_state if unresolved is not None else self.owned.in_doubt,
            )
        if self.owned.has_stored:
            _log.warning(
                "transactional id %s is closed while the database stores blocks of it; recover() publishes them",
                self.transactional_id,
            )
        self._slot.move(SlotState.CLOSED)
        await self.owned.give_up()
