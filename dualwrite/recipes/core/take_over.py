"""The take-over of a transactional id: fence the previous owner and complete what it left, by the state row."""

from __future__ import annotations

import logging

from dualwrite.errors import DatabaseWentBackError, FencedError, PreparedTransactionLost
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.decisions import Outcome, recovery_outcome
from dualwrite.recipes.core.dual_write import NOTHING_PREPARED, Resolution
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.store import DatabaseTransaction

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one logger for all steps of a dual write


async def take_over(owned: OwnedId, database: DatabaseTransaction) -> tuple[PreparedTxnState, Resolution]:
    """Fence the previous owner and complete what it left. The row must be locked by this transaction.

    The row is read again after initialising. Between the first read and the initialisation this process may have been
    paused and have lost its database connection, and with it the lock; another process may then have taken over and
    prepared a new transaction. Deciding that one by the outdated row would lose a committed dual write. The second
    read fails if the lock is gone.

    The third and the fourth read fail in the same case. Once the lock is lost, another process may get the same
    response from Kafka as this one. Then send nothing more, which preserves the evidence, and do not use the id.
    """
    try:
        assert owned.kafka_id is not None, "the row was locked, so it exists"
        ongoing = await owned.kafka.take_over(owned.kafka_id)
        owned.reach(PausePoint.AFTER_INIT)
        row = await database.read(owned.transactional_id)
        if ongoing == owned.in_doubt != row and not ongoing.is_empty:
            raise _went_back(owned, ongoing, row)
        await owned.make_durable(row, ongoing)
        await owned.kafka.complete(row)
        owned.reach(PausePoint.AFTER_COMPLETION)
        await _assert_still_locked(owned, database, row)
        await owned.kafka.own()
        owned.reach(PausePoint.AFTER_TAKEOVER)
        await _assert_still_locked(owned, database, row)
    except BaseException as error:
        if isinstance(error, PreparedTransactionLost):
            owned.telemetry.lost()
        await owned.give_up()
        raise
    outcome = recovery_outcome(row, ongoing)
    if outcome is not Outcome.NOTHING:
        _log.info("transactional id %s: prepared transaction %s %s", owned.transactional_id, ongoing, outcome)
        owned.telemetry.recovered(outcome)
    owned.slot.move(SlotState.READY)
    owned.row = row
    owned.in_doubt = NOTHING_PREPARED
    return row, Resolution(owned.transactional_id, ongoing, outcome)


async def leave_to_successor(owned: OwnedId, row: PreparedTxnState) -> None:
    """Move to NEW, because the row has changed: another process has used the id, which raises its epoch.

    Raises DatabaseWentBackError if Kafka reports that no other process has.
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
    """Read the row once more, which fails if the transaction that locked it is over."""
    found = await database.read(owned.transactional_id)
    if found != row:
        raise FencedError(
            f"the state row of transactional id {owned.transactional_id!r} has changed from {str(row)!r} to "
            f"{str(found)!r} under its lock, while the id was taken over: its database transaction is no longer the "
            "one that locked it. Nothing was written; the next use takes the id over anew"
        )


def _went_back(owned: OwnedId, remembered: PreparedTxnState, row: PreparedTxnState) -> DatabaseWentBackError:
    return DatabaseWentBackError(
        f"the state row of transactional id {owned.transactional_id!r} holds {str(row)!r}, and this process knows "
        f"that {str(remembered)!r} was committed to it, while Kafka reports that no producer has used the id since: "
        "the database was restored or failed over to an earlier state, or the row was edited. Nothing was changed on "
        "either side. Kafka still holds the records of the changes that the database lost: find out which, and repair "
        "one side; then close this writer, and a new one goes on from what the row holds"
    )
