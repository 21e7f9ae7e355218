"""A database commit whose response was lost: read the outcome from the state row, and complete Kafka accordingly."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from dualwrite.errors import NotDurableError, OutcomeUnknown, RowLockTimeoutError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.decisions import Outcome, commit_outcome
from dualwrite.recipes.core.dual_write import DualWriteProgress, Resolution
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.store import DatabaseTransaction

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one name for the steps of a dual write

_RESOLVE_BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)


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
        return await self.resolve_by(await self._read_row(self._in_question))

    @property
    def _in_question(self) -> DualWriteProgress:
        assert self.unresolved is not None, "UNRESOLVED always comes with the dual write in question"
        return self.unresolved

    async def resolve_by(self, row: PreparedTxnState) -> Resolution:
        """Complete Kafka by the row, which was read under its lock."""
        owned, write = self._owned, self._in_question
        ours = write.prepared_state
        outcome = commit_outcome(row, ours=ours, previous=write.locked_row)
        if outcome is Outcome.SUPERSEDED:
            self.unresolved = None
            owned.slot.move(SlotState.FENCED)
            await owned.give_up()
            raise self._outcome_unknown(
                write, "another process has since taken the transactional id over and replaced the state row"
            )
        if outcome is Outcome.COMMITTED:
            await self._make_durable_or_stay_unresolved(write)
        _log.info("transactional id %s: lost commit of %s was %s", owned.transactional_id, ours, outcome)
        owned.telemetry.recovered(outcome)
        write.outcome = outcome
        try:
            await owned.complete_kafka(ours, outcome)
        finally:
            self.unresolved = None
        return Resolution(owned.transactional_id, ours, outcome)

    async def _make_durable_or_stay_unresolved(self, write: DualWriteProgress) -> None:
        expected: tuple[type[Exception], ...] = (*self._owned.database.errors, NotDurableError)
        try:
            await self._owned.make_durable(write.prepared_state)
        except expected as error:
            raise self._outcome_unknown(
                write, f"it is visible in the database but not durable yet ({first_line(error)})"
            ) from error

    async def _read_row(self, write: DualWriteProgress) -> PreparedTxnState:
        """Read the row under its lock, which waits until the lost commit has either happened or been dropped."""
        deadline_s = time.monotonic() + self._owned.resolve_timeout_ms / 1000
        expected: tuple[type[Exception], ...] = (*self._owned.database.errors, RowLockTimeoutError)
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
                        write, f"the database cannot be queried ({first_line(error)})"
                    ) from error
                self._owned.telemetry.retried()
                await self._sleep(backoff_s)

    async def _locked_row(self, timeout_ms: int) -> PreparedTxnState:
        database = await self._owned.database.begin()
        try:
            return await database.lock(self._owned.transactional_id, timeout_ms=timeout_ms)
        finally:
            await self._owned.uninterrupted(end(database))

    def _outcome_unknown(self, write: DualWriteProgress, why: str) -> OutcomeUnknown:
        transactional_id = self._owned.transactional_id
        return OutcomeUnknown(
            f"the database commit of dual write {write.prepared_state} (transactional id {transactional_id!r}) "
            f"was sent and its outcome is unknown: {why}. Database and Kafka will agree either way; do not repeat the "
            "dual write before resolve(), or recover() in any process, has returned the outcome",
            transactional_id=transactional_id,
            prepared_state=str(write.prepared_state),
        )


async def end(database: DatabaseTransaction) -> None:
    """Roll a database transaction back and close what it opened."""
    await database.rollback()
    await database.close()
