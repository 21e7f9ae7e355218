"""Complete Kafka's side by the state row: for a previous owner, or after a commit whose response was lost.

`take_over` fences the previous owner of a transactional id and completes its transaction. `LostCommits` reads the
outcome of this process's own dual write from the row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from dualwrite.decisions.by_row import commit_outcome, recovery_outcome
from dualwrite.errors import (
    DatabaseWentBackError,
    FencedError,
    NotDurableError,
    OutcomeUnknown,
    PreparedTransactionLost,
    RowLockTimeoutError,
)
from dualwrite.guarded import pass_on_signal
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.availability import here
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.dual_write import NOTHING_PREPARED, DualWriteProgress, Resolution
from dualwrite.recipes.core.last_batch import instead_of_loss, note_verdict
from dualwrite.recipes.core.metrics import Counted, count
from dualwrite.recipes.core.own_transactions import in_own_transaction
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.proof import IS_OVER, Proof, cluster_of, is_elsewhere
from dualwrite.recipes.core.repair import is_of_another_cluster, prove, verify
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.store import DatabaseTransaction
from dualwrite.recipes.core.waiting import backoff_s

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one logger for all steps of a dual write


async def take_over(owned: OwnedId, database: DatabaseTransaction) -> tuple[PreparedTxnState, Resolution, Proof]:
    """Fence the previous owner and complete its transaction. `database` must have locked the row.

    Return the row, how the open transaction ended, and the proof of how the one in the row did.
    Raises PreparedTransactionLost if Kafka aborted a decided transaction that cannot be published again,
    TransactionHangsError if Kafka has left it without an end in some partition, and DatabaseWentBackError if Kafka
    shows that a later row than this one was decided. With an outbox, also NotProvenError if no evidence of its end is
    left, and VerdictNoted.
    """
    try:
        try:
            return await _take_over(owned, database)
        except _AbortedMeanwhile:
            return await _take_over(owned, database, again=True)  # this time the log is read
    except PreparedTransactionLost:
        count(Counted.LOST)
        raise


class VerdictNoted(Exception):  # noqa: N818 - it ends an attempt, and is no error
    """The row now notes how the last batch of an outbox ended, and is no longer locked: take over again.

    `resolution` is that of this attempt: it may have committed the batch.
    """

    def __init__(self, resolution: Resolution) -> None:
        super().__init__(resolution)
        self.resolution = resolution


class _AbortedMeanwhile(Exception):  # noqa: N818 - it ends an attempt, and is no error
    """The transaction in the row was aborted after its coordinator had described it as open."""


async def _take_over(
    owned: OwnedId, database: DatabaseTransaction, *, again: bool = False
) -> tuple[PreparedTxnState, Resolution, Proof]:
    """Take the id over as `take_over` does, once.

    The row is read again after initialising. Between the first read and the initialisation this process may have been
    paused and have lost its database connection, and with it the lock; another process may then have taken over and
    prepared a new transaction. Deciding that one by the outdated row would lose a committed dual write. The second
    read fails if the lock is gone.

    The third and the fourth read fail in the same case. Once the lock is lost, another process may get the same
    response from Kafka as this one. Then send nothing more, which preserves the evidence, and do not use the id.

    Where the coordinator cannot tell how the transaction in the row ended, the log is read first (`repair.py`). Where
    it can, the log is read last, when the markers are written, to check that consumers see the records. Decided records
    that Kafka aborted are owed: the next transaction of the id must begin with them.

    An outbox takes any topic, so the coordinator may be the only evidence of how its last batch ended. The verdict is
    noted before the first request that makes the coordinator forget it, and the attempt ends there.
    """
    owned.slot.note(owed=())
    owned.is_lease_known = False
    try:
        assert owned.kafka_id is not None, "the row was locked, so it exists"
        ongoing = await owned.kafka.take_over(owned.kafka_id)
        owned.telemetry.reach(PausePoint.AFTER_INIT)
        row = await database.read(owned.transactional_id)
        if ongoing == owned.in_doubt != row and not ongoing.is_empty:
            raise _went_back(owned, ongoing, row)
        await owned.make_durable(row, ongoing)
        text = await database.read_manifest(owned.transactional_id)
        stored, proof = row, IS_OVER
        if await is_of_another_cluster(owned, row, text, ongoing):
            stored = NOTHING_PREPARED
        else:
            proof = await prove(owned, database, row, text, ongoing)
        if not proof.owed and await _is_behind(owned, row, text):  # a later row would name the repair
            from dualwrite.recipes.core.judge import behind_kafka  # a writer that is refused nothing does not load it

            raise behind_kafka(owned.transactional_id, row)
        if proof.not_proven is not None:
            raise proof.not_proven
        is_open = ongoing == stored
        if not is_open and await note_verdict(owned, database, row, proof):
            raise VerdictNoted(Resolution(owned.transactional_id, NOTHING_PREPARED, Outcome.NOTHING))
        await _complete(owned, database, stored, proof, again=again)
        owned.telemetry.reach(PausePoint.AFTER_COMPLETION)
        await _assert_still_locked(owned, database, row)
        if is_open and await note_verdict(owned, database, row, proof):
            raise VerdictNoted(_resolution(owned, row, ongoing))
        await owned.kafka.own()
        if proof.is_known:
            proof = await verify(owned, database, row)
        owned.telemetry.reach(PausePoint.AFTER_TAKEOVER)
        await _assert_still_locked(owned, database, row)
    except BaseException:
        await owned.give_up()
        raise
    owned.taken_over_in = here()
    owned.note_inherited(row, cluster_of(row, text))
    owned.slot.move(SlotState.READY, row=row, owed=proof.owed, in_doubt=NOTHING_PREPARED)
    return row, _resolution(owned, stored, ongoing), proof


async def _is_behind(owned: OwnedId, row: PreparedTxnState, text: str) -> bool:
    """Return whether Kafka has committed a later transaction than the row's; pairs of two clusters have no order."""
    if not owned.kafka.memory.committed_later(row):
        return False
    return not is_elsewhere(row, text, await owned.kafka.cluster_id(owned.resolve_timeout_ms))


def _resolution(owned: OwnedId, row: PreparedTxnState, ongoing: PreparedTxnState) -> Resolution:
    """Return the resolution of the transaction that was left open; log and count it."""
    outcome = recovery_outcome(row, ongoing)
    if outcome is not Outcome.NOTHING:
        _log.info("transactional id %s: prepared transaction %s %s", owned.transactional_id, ongoing, outcome)
        count(Counted.RECOVERED, outcome=outcome)
    return Resolution(owned.transactional_id, ongoing, outcome)


async def _complete(
    owned: OwnedId, database: DatabaseTransaction, row: PreparedTxnState, proof: Proof, *, again: bool
) -> None:
    try:
        await owned.kafka.complete(row, is_over=proof.is_over)
    except PreparedTransactionLost as error:
        if proof.is_known and not again:
            raise _AbortedMeanwhile from error
        not_proven = await instead_of_loss(owned, database, row, error)
        if not_proven is None:
            raise
        raise not_proven from error


async def leave_to_successor(owned: OwnedId, row: PreparedTxnState) -> None:
    """Move to NEW, because the row has changed: another process has used the id, which raises its epoch.

    Raises DatabaseWentBackError if no other process has used it, according to Kafka.
    """
    try:
        is_current = await owned.kafka.is_current()
    except BaseException:
        owned.slot.move(SlotState.NEW)
        await owned.give_up()
        raise
    if is_current:
        raise _went_back(owned, owned.row, row)
    owned.slot.move(SlotState.NEW)


async def _assert_still_locked(owned: OwnedId, database: DatabaseTransaction, row: PreparedTxnState) -> None:
    """Read the row once more, which fails if the transaction that locked it has ended."""
    found = await database.read(owned.transactional_id)
    if found != row:
        raise FencedError(
            f"the state row of transactional id {owned.transactional_id!r} changed from {str(row)!r} to "
            f"{str(found)!r} while it was locked to take the id over: the database transaction with the lock has "
            "ended. Nothing was written; the next use takes the id over again"
        )


def _went_back(owned: OwnedId, remembered: PreparedTxnState, row: PreparedTxnState) -> DatabaseWentBackError:
    from dualwrite.recipes.core.judge import went_back  # as above

    shows = f"this process has committed {str(remembered)!r} to it, and no producer has used the id since, by Kafka"
    return went_back(owned.transactional_id, row, shows)


class LostCommits:
    """Resolves the lost commit of one transactional id; there is one at a time, while the slot is UNRESOLVED."""

    def __init__(self, owned: OwnedId, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._owned = owned
        self._sleep = sleep
        self.unresolved: DualWriteProgress | None = None

    def begin(self, write: DualWriteProgress) -> None:
        """Remember a dual write whose COMMIT was sent and got no response."""
        self.unresolved = write
        self._owned.slot.move(SlotState.UNRESOLVED)

    async def resolve(self) -> Resolution:
        """Read the row and complete Kafka accordingly. Raises OutcomeUnknown if the row cannot be read."""
        return await self.resolve_by(await self._read_row())

    @property
    def _in_question(self) -> DualWriteProgress:
        assert self.unresolved is not None, "UNRESOLVED always comes with the dual write in question"
        return self.unresolved

    async def resolve_by(self, row: PreparedTxnState) -> Resolution:
        owned, write = self._owned, self._in_question
        ours = write.prepared_state
        outcome = commit_outcome(row, ours=ours, previous=write.locked_row)
        await self._make_durable_or_stay_unresolved(row)
        if outcome is Outcome.SUPERSEDED:
            raise await self._superseded()
        _log.info(
            "transactional id %s: the commit of %s that got no response was %s", owned.transactional_id, ours, outcome
        )
        count(Counted.RECOVERED, outcome=outcome)
        write.outcome = outcome
        try:
            await owned.complete_kafka(ours, outcome)
        finally:
            if owned.slot.state is not SlotState.UNRESOLVED:  # else no request was sent
                self.unresolved = None
        return Resolution(owned.transactional_id, ours, outcome)

    async def _superseded(self) -> OutcomeUnknown:
        error = self._outcome_unknown(
            "another process has since taken the transactional id over and replaced the state row"
        )
        self._owned.slot.move(SlotState.FENCED)
        self.unresolved = None
        await self._owned.give_up()
        return error

    async def _make_durable_or_stay_unresolved(self, row: PreparedTxnState) -> None:
        """Make everything visible now durable, with `row`. Raises OutcomeUnknown if that fails.

        That a commit is not visible has to be durable too: a primary that is cut off, and whose standby took over,
        still locks its rows and does not have the commit.
        """
        expected: tuple[type[Exception], ...] = (*self._owned.database.errors, NotDurableError)
        owned = self._owned
        try:
            await owned.database.make_durable(owned.transactional_id, row, timeout_ms=owned.resolve_timeout_ms)
        except expected as error:
            pass_on_signal(error)
            why = f"the row that the database shows is not durable ({first_line(error)})"
            raise self._outcome_unknown(why) from error

    async def _read_row(self) -> PreparedTxnState:
        """Read the row under its lock, which waits until the lost commit has either happened or been dropped."""
        deadline_s = time.monotonic() + self._owned.resolve_timeout_ms / 1000
        expected: tuple[type[Exception], ...] = (*self._owned.database.errors, RowLockTimeoutError)
        failures = 0
        while True:
            remaining_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
            try:
                return await self._read_locked(remaining_ms)
            except expected as error:
                pass_on_signal(error)
                failures += 1
                pause_s = backoff_s(failures)
                if time.monotonic() + pause_s >= deadline_s:
                    raise self._outcome_unknown(f"the database cannot be queried ({first_line(error)})") from error
                count(Counted.RETRIES)
                await self._sleep(pause_s)

    async def _read_locked(self, timeout_ms: int) -> PreparedTxnState:
        owned = self._owned

        async def read(database: DatabaseTransaction) -> PreparedTxnState:
            return await database.lock(owned.transactional_id, timeout_ms=timeout_ms)

        return await in_own_transaction(owned.database.begin, read, owned.uninterrupted)

    def _outcome_unknown(self, why: str) -> OutcomeUnknown:
        transactional_id, state = self._owned.transactional_id, self._in_question.prepared_state
        return OutcomeUnknown(
            f"the database commit of dual write {state} (transactional id {transactional_id!r}) "
            f"was sent and its outcome is unknown: {why}. Database and Kafka will agree either way; do not repeat the "
            "dual write before recover(), here or in any process, has returned the outcome",
            transactional_id=transactional_id,
            prepared_state=str(state),
        )
