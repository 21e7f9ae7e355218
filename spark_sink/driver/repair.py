"""Publish again, exactly once, the records of transactions that Kafka aborted although they are to be committed.

The records are sent again under the same transactional id, which stays leased to the attempt, and prepared under a new
pair. Then the row is changed from the old pair to the new one, and the new transaction is committed. Only that change
decides it: as long as the row has the old pair, the new transaction stays invisible, and of two processes that repair
at once only one can change the row. A crash at any point leaves a row whose transaction is open, committed or aborted,
and every completion can begin with each of these.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from dualwrite.decisions.republish import Judgement, Republished, publish_again
from dualwrite.errors import DualWriteError, PreparedTransactionLost
from dualwrite.participant_async import AsyncParticipantProducer
from spark_sink.driver.calls import AskAgainError, Calls, apart, as_described, ended_by, wait_for
from spark_sink.errors import SinkError
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.store.attempt_states import Claim, ClaimRows, Ended, Ending, Prepared

_AT_ONCE: Final = 4
"""Transactions that are published again at once; of each, the records of one partition are in memory."""

_log = logging.getLogger(__name__)


class Owed(NamedTuple):
    """A claim to be committed whose transaction Kafka has aborted; its id was taken over."""

    claim: Claim
    producer: AsyncParticipantProducer
    judgement: Judgement


class _Published(NamedTuple):
    """A transaction with the owed records: prepared, and not decided."""

    claim: Claim
    owed: Owed
    anew: Republished


class Repairs:
    """Repairs for one completion. With `pause`, one after the other."""

    def __init__(self, calls: Calls, pause: Pause | None) -> None:
        self._calls = calls
        self._pause = pause

    def repair(self, owed: Sequence[Owed], rows: ClaimRows) -> dict[str, Ended]:
        """Publish the owed transactions again, a few at a time; begin none after the time limit."""
        deadline_s = self._calls.deadline_s()
        size = _AT_ONCE if self._pause is None else 1
        endings: dict[str, Ended] = {}
        for first in range(0, len(owed), size):
            if time.monotonic() > deadline_s:
                return endings | {each.claim.attempt_id: self._calls.not_tried() for each in owed[first:]}
            endings |= self._together(owed[first : first + size], rows)
        return endings

    def _together(self, owed: Sequence[Owed], rows: ClaimRows) -> dict[str, Ended]:
        """Repair as a dual write does: take over, read the row again, fence, publish, decide by the row, commit.

        Between the two phases of a take-over another process may have got the same responses. The row shows whether it
        came first. If not, one of the two finds the id fenced, its transaction aborted, or the row changed.
        """
        self._reach(PausePoint.BEFORE_REPAIR)
        endings, taken = apart(owed, self._calls.all(owed, _end_what_else_is_open))
        current = rows.still_wanted([each.claim.attempt_id for each in taken]) if taken else {}
        unchanged: list[Owed] = []
        for each in taken:
            row = current.get(each.claim.attempt_id)
            if row is not None and row.state == each.judgement.row:
                unchanged.append(each)
            else:
                endings[each.claim.attempt_id] = ended_by(_outdated(each))
        failed, published = apart(unchanged, self._calls.all(unchanged, self._publish))
        return endings | failed | {each.claim.attempt_id: self._decide(each, rows) for each in published}

    async def _publish(self, owed: Owed) -> _Published | Ended:
        try:
            await owed.producer.fence_others()
            anew = await publish_again(owed.producer, owed.judgement, self._calls.step_timeout_ms)
        except PreparedTransactionLost:
            await _abort(owed.producer)
            return Ended(Ending.LOST, records_gone(owed.judgement), judged=owed.judgement.row)
        except DualWriteError as error:
            await _abort(owed.producer)
            return ended_by(error)
        return _Published(owed.claim, owed, anew)

    def _decide(self, published: _Published, rows: ClaimRows) -> Ended:
        """Change the row, then commit. Abort if the row had changed, because then it never names this transaction."""
        claim, owed, anew = published
        try:
            decided = rows.replace(claim.attempt_id, owed.judgement.row, Prepared(anew.state, anew.manifest))
        except Exception as error:  # only the row can tell the outcome of any error: neither commit nor abort
            return Ended(Ending.FAILED, error)
        if not decided:
            wait_for(_abort(owed.producer))
            return ended_by(_outdated(owed))
        _log.warning(
            "transactional id %s: Kafka had aborted %s, which the commit store has decided to commit; its %d records "
            "(%s) are published again as %s (%s)",
            claim.transactional_id,
            owed.judgement.row,
            anew.records,
            owed.judgement.places,
            anew.state,
            anew.places,
        )
        ended = wait_for(_commit(published))
        self._reach(PausePoint.AMONG_COMPLETIONS)
        return ended

    def _reach(self, point: PausePoint) -> None:
        if self._pause is not None:
            self._pause(point)


async def _end_what_else_is_open(owed: Owed) -> Owed | Ended:
    """Abort any other transaction of the id: the first phase of a take-over."""
    try:
        await owed.producer.complete_before_fencing(owed.judgement.row, is_over=True)
    except DualWriteError as error:
        return ended_by(error)
    return owed


async def _commit(published: _Published) -> Ended:
    try:
        await published.owed.producer.commit_transaction()
    except PreparedTransactionLost as error:  # the new transaction is now the owed one
        return ended_by(AskAgainError(str(as_described(error))))
    except DualWriteError as error:
        return ended_by(error)
    return Ended(Ending.COMMITTED, judged=published.anew.state, repaired=True)


async def _abort(producer: AsyncParticipantProducer) -> None:
    """Abort if possible; the next process that takes the id over aborts a transaction that stays open."""
    try:
        await producer.abort_transaction()
    except DualWriteError as error:
        _log.info("a transaction with records that were sent again was not aborted yet: %s", error)


def _outdated(owed: Owed) -> AskAgainError:
    return AskAgainError(f"the row of attempt {owed.claim.attempt_id} has changed: it was {owed.judgement.row}")


def records_gone(judgement: Judgement) -> SinkError:
    """Return the error for an aborted transaction whose records the log has lost."""
    return SinkError(
        f"the log shows that Kafka has aborted {judgement.row}, and no longer has all of its records "
        f"({judgement.places})."
    )
