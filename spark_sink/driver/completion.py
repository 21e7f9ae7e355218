"""Phase two: commit or abort the transactions of a batch in parallel, with `dualwrite.AsyncProducer`.

A transaction of another Kafka cluster is left alone. Then the decided ones are committed by their pairs, with one
request each: most batches need no more. For the rest, and for those that an earlier call has decided, first every id
is taken over, then the rows are read once, then everything is completed. Repeating this, or doing it in several
processes at once, gives the same result: Kafka lets only the last process that took an id over complete the
transaction, and reports a transaction that is already completed.

Unless the coordinator describes a transaction that is to be committed as open, the log is read
(`dualwrite/decisions/republish.py`), and records that Kafka has aborted are published again (`repair.py`).

Compared with threads that each have a blocking `Producer`, over open connections: 2 ms instead of 4 ms for 2 claims,
30 ms instead of 45 ms for 50.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from dualwrite.admin import AsyncTransactionAdmin, TransactionDescription
from dualwrite.decisions.republish import Fate, Judgement, judge, judge_by_log
from dualwrite.errors import AnotherClusterError, DualWriteError, KafkaTimeoutError, PreparedTransactionLost
from dualwrite.participant_async import AsyncParticipantProducer
from dualwrite.prepared_state import PreparedTxnState
from spark_sink.driver.calls import AskAgainError, Calls, apart, as_described, ended_by, may_retry, release, wait_for
from spark_sink.driver.repair import Owed, Repairs, records_gone
from spark_sink.errors import SinkError, StoreWentBackError
from spark_sink.kafka_settings import admin_settings
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.store.attempt_states import Claim, ClaimRows, Ended, Ending, Prepared, Verdict

_NOTHING: Final = PreparedTxnState()

_ONGOING: Final = "Ongoing"

_TRIES: Final = 3
"""A suspended process may take an id over between the two steps, find that it is not its own, and leave it."""

_FORESEE_MS: Final = 5_000
"""Time limit for reading the log in a report that changes nothing."""

_log = logging.getLogger(__name__)


class _Taken(NamedTuple):
    """A claim whose transactional id this process has taken over."""

    claim: Claim
    producer: AsyncParticipantProducer


class _Wanted(NamedTuple):
    """A claim that is still wanted, with its row as it was read after the take-over."""

    claim: Claim
    producer: AsyncParticipantProducer
    row: Prepared
    others: frozenset[PreparedTxnState] = frozenset()
    """Transactions of other attempts, which look like its repair."""


class _Judged(NamedTuple):
    """A claim with the fate of its transaction; None if it is to be aborted in any case."""

    claim: Claim
    producer: AsyncParticipantProducer
    judgement: Judgement | None


class Completion:
    """`SinkKafka.end`. Several threads may call it at the same time."""

    def __init__(
        self, settings: Mapping[str, Any], *, parallelism: int, step_timeout_ms: int, pause: Pause | None = None
    ) -> None:
        """Use a producer's `settings`, without its id.

        Each step (taking over, reading the log, completing, publishing again) may take `step_timeout_ms`, or twice that
        if there are more claims than `parallelism` and the broker becomes unreachable in between.

        With `pause`, transactions are completed one after the other, and it is called before each repair and after each
        completion.
        """
        self._settings = {**settings, "max.block.ms": step_timeout_ms}
        self._admin_settings = admin_settings(settings)
        self._calls = Calls(parallelism=parallelism, step_timeout_ms=step_timeout_ms)
        self._pause = pause
        self._repairs = Repairs(self._calls, pause)

    def end(self, claims: Sequence[Claim], rows: ClaimRows) -> dict[str, Ended]:
        """See `SinkKafka.end`. An exception of `rows.still_wanted` is passed on, and completes nothing after it.

        If another process has taken over some of the ids, or has changed their rows, the rows are read again, before
        and after the ids are taken over once more: an id may belong to another attempt by now, which must not be
        disturbed.
        """
        endings = self._at_once(claims, rows) if claims else {}
        endings |= self._try([claim for claim in claims if claim.attempt_id not in endings], rows)
        for _ in range(_TRIES - 1):
            again = {claim.attempt_id: claim for claim in claims if may_retry(endings[claim.attempt_id])}
            current = rows.still_wanted(list(again)) if again else {}
            renewed = [replace(again[each], prepared_state=row.state) for each, row in current.items()]
            endings |= self._try(renewed, rows)
        return endings

    def not_open(self, prepared: Mapping[str, PreparedTxnState]) -> list[str]:
        """See `SinkKafka.not_open`. Raises the errors of an admin client."""
        found = wait_for(self._described(prepared))
        return [each for each, state in prepared.items() if not _is_open(found[each], state)]

    async def _described(self, ids: Collection[str]) -> Mapping[str, TransactionDescription | None]:
        async with AsyncTransactionAdmin(self._admin_settings) as admin:
            return await admin.describe_transactions(ids, timeout_ms=self._calls.step_timeout_ms)

    def foresee(self, claim: Claim, row: Prepared) -> Judgement:
        """Return the fate, by the log, of a transaction that is to be committed. Changes nothing.

        Call it for a transaction that is not open: the id is not taken over, and its coordinator is not asked. Raises
        the errors of a producer, and ValueError for an unreadable manifest.
        """
        return wait_for(self._foresee(claim, row))

    async def _foresee(self, claim: Claim, row: Prepared) -> Judgement:
        producer = AsyncParticipantProducer({**self._settings, "transactional.id": claim.transactional_id})
        try:
            return await judge_by_log(producer, row.state, row.manifest, _FORESEE_MS)
        finally:
            await release([producer])

    async def _cluster_id(self) -> str:
        """Return the id of the cluster that responds; "" if it does not report one."""
        async with AsyncTransactionAdmin(self._admin_settings) as admin:
            return (await admin.describe_cluster(timeout_ms=self._calls.step_timeout_ms)).cluster_id or ""

    def _at_once(self, claims: Sequence[Claim], rows: ClaimRows) -> dict[str, Ended]:
        """Return the endings that need no take-over: of other clusters' transactions, and of `_by_pair`.

        Every cluster assigns the same producer ids, so a pair says nothing of a transaction of another cluster.
        """
        try:
            cluster_id = wait_for(self._cluster_id())
        except DualWriteError as error:
            return {claim.attempt_id: ended_by(error) for claim in claims}
        current = rows.still_wanted([claim.attempt_id for claim in claims])
        wanted = {claim: current[claim.attempt_id] for claim in claims if claim.attempt_id in current}
        endings = elsewhere(wanted, cluster_id)
        here = {claim: row.state for claim, row in wanted.items() if claim.attempt_id not in endings}
        return endings | self._by_pair(here)

    def _by_pair(self, wanted: Mapping[Claim, PreparedTxnState]) -> dict[str, Ended]:
        """Commit the transactions that their pairs alone can commit; return the endings of those just decided.

        The others are judged once more, by the log: an operator may have aborted one in a partition.

        It takes one request for each transaction, and works if another process has the id by now. Kafka refuses it if
        the transaction is no longer open, or if a process has taken the id over since (with KeepPreparedTxn, for
        example).
        """
        states = {claim: state for claim, state in wanted.items() if claim.verdict is Verdict.COMMIT}
        pairs = {claim.transactional_id: state for claim, state in states.items() if state}
        committed = self._committed(pairs) if pairs else set()
        return {
            claim.attempt_id: Ended(Ending.COMMITTED, judged=state)
            for claim, state in states.items()
            if claim.transactional_id in committed and not claim.is_left
        }

    def _committed(self, pairs: Mapping[str, PreparedTxnState]) -> set[str]:
        if self._pause is None:
            return wait_for(self._commit_pairs(pairs))
        committed: set[str] = set()
        for transactional_id, pair in pairs.items():
            committed |= wait_for(self._commit_pairs({transactional_id: pair}))
            self._pause(PausePoint.AMONG_COMPLETIONS)
        return committed

    async def _commit_pairs(self, pairs: Mapping[str, PreparedTxnState]) -> set[str]:
        try:
            async with AsyncTransactionAdmin(self._admin_settings) as admin:
                return await admin.commit_prepared_transactions(pairs, timeout_ms=self._calls.step_timeout_ms)
        except DualWriteError as error:
            _log.info("no transaction was committed by its pair alone: %s", error)
            return set()

    def _try(self, claims: Sequence[Claim], rows: ClaimRows) -> dict[str, Ended]:
        if not claims:
            return {}
        endings, taken = wait_for(self._take_over(claims))
        try:
            current = rows.still_wanted([each.claim.attempt_id for each in taken]) if taken else {}
            endings |= {each.claim.attempt_id: Ended(Ending.LEFT) for each in taken}
            wanted = [
                _Wanted(each.claim, each.producer, current[each.claim.attempt_id])
                for each in taken
                if each.claim.attempt_id in current
            ]
            return endings | self._end(wanted, rows)
        finally:
            wait_for(release([each.producer for each in taken]))

    def _end(self, wanted: Sequence[_Wanted], rows: ClaimRows) -> dict[str, Ended]:
        endings, judged = self._judged(wanted, rows)
        others: list[_Judged] = []
        owed: list[Owed] = []
        for each in judged:
            if each.judgement is not None and each.judgement.fate is Fate.ABORTED:
                owed.append(Owed(each.claim, each.producer, each.judgement))
            else:
                others.append(each)
        return endings | self._complete(others) | self._repairs.repair(owed, rows)

    # ---- taking over ----------------------------------------------------------------------------------------

    async def _take_over(self, claims: Sequence[Claim]) -> tuple[dict[str, Ended], list[_Taken]]:
        """Take the ids over; return the endings of the claims that failed, and the rest."""
        producers: list[AsyncParticipantProducer] = []

        async def take_one_over(claim: Claim) -> _Taken | Ended:
            producer = AsyncParticipantProducer({**self._settings, "transactional.id": claim.transactional_id})
            producers.append(producer)
            try:
                await producer.init_transactions(keep_prepared_txn=True)
            except DualWriteError as error:
                await release([producer])
                return ended_by(error)
            return _Taken(claim, producer)

        try:
            results = await self._calls.each(claims, take_one_over)
        except BaseException:
            await release(producers)
            raise
        not_taken = {
            claim.attempt_id: result for claim, result in zip(claims, results, strict=True) if isinstance(result, Ended)
        }
        return not_taken, [result for result in results if isinstance(result, _Taken)]

    # ---- judging --------------------------------------------------------------------------------------------

    def _judged(self, wanted: Sequence[_Wanted], rows: ClaimRows) -> tuple[dict[str, Ended], list[_Judged]]:
        """Judge the claims. Where the log shows a repair by another attempt, judge once more without that repair.

        Two tasks may write equal records at the same time. Every committed transaction is in a row before.
        """
        endings, judged = apart(wanted, self._calls.all(wanted, self._judge))
        by_log = {each.claim.attempt_id: each.judgement for each in judged if each.judgement is not None}
        repairs = {attempt_id: each.repair for attempt_id, each in by_log.items() if each.repair is not None}
        cluster_id = max(
            (each.manifest.cluster_id for each in by_log.values() if each.manifest is not None), default=""
        )
        taken = rows.named(list(repairs.values()), cluster_id)
        if not taken:
            return endings, judged
        doubted = [each for each in wanted if repairs.get(each.claim.attempt_id) in taken]
        again = {each.claim.attempt_id for each in doubted}
        more, anew = self._judged([each._replace(others=each.others | taken) for each in doubted], rows)
        return endings | more, [*(each for each in judged if each.claim.attempt_id not in again), *anew]

    async def _judge(self, wanted: _Wanted) -> _Judged | Ended:
        """Find the fate of a transaction. Changes nothing."""
        claim, producer, row, others = wanted
        if claim.verdict is Verdict.ABORT:
            if _is_used_later(producer, row):
                return ended_by(_forgot(claim, row.state, producer.prepared_txn_state))
            if await self._is_committed(producer, row):
                return ended_by(_went_back(claim, row))
            return _Judged(claim, producer, None)
        if row.state != claim.prepared_state and not producer.memory.knows(row.state):
            # The coordinator may have been asked before that transaction existed, and would make it look lost.
            return ended_by(AskAgainError(f"the row of attempt {claim.attempt_id} has changed to {row.state}"))
        try:
            judgement = await judge(producer, row.state, row.manifest, self._calls.step_timeout_ms, others)
            if judgement.gone:
                # A loss is recorded for good, and a broker that has just started may not know all topics.
                judgement = await judge(producer, row.state, row.manifest, self._calls.step_timeout_ms, others)
        except ValueError as error:
            return ended_by(SinkError(f"the row of attempt {claim.attempt_id} cannot be used: {error}"))
        except DualWriteError as error:
            if type(error) is not KafkaTimeoutError:  # its subclasses say more than that time has passed
                return ended_by(error)
            limit = f"not known within kafka.max.block.ms={self._calls.step_timeout_ms}, which a long log may exceed"
            return ended_by(error.reworded(f"{error} ({limit}; nothing was changed)"))
        return _Judged(claim, producer, judgement)

    async def _is_committed(self, producer: AsyncParticipantProducer, row: Prepared) -> bool:
        """Return whether Kafka is known to have committed the transaction; an unknown fate does not hinder an abort.

        Only transactions of COMMITTING rows are committed, and that status never becomes ABORTING: so the store has
        lost that row.
        """
        if row.state.is_empty or row.state == producer.prepared_txn_state or producer.memory.aborted(row.state):
            return False
        if producer.memory.knows(row.state):
            return True
        try:
            judgement = await judge_by_log(producer, row.state, row.manifest, _FORESEE_MS)
        except (DualWriteError, ValueError) as error:
            _log.info("the end of %s, which is to be aborted, is unknown: %s", row.state, error)
            return False
        return judgement.fate is Fate.COMMITTED

    # ---- completing -----------------------------------------------------------------------------------------

    def _complete(self, judged: Sequence[_Judged]) -> dict[str, Ended]:
        if self._pause is None:
            endings, _ = apart(judged, self._calls.all(judged, _complete_one))
            return endings
        one_by_one: dict[str, Ended] = {}
        for each in judged:
            one_by_one[each.claim.attempt_id] = wait_for(_complete_one(each))
            self._pause(PausePoint.AMONG_COMPLETIONS)
        return one_by_one


def _is_open(found: TransactionDescription | None, state: PreparedTxnState) -> bool:
    pair = (state.producer_id, state.producer_epoch)
    return found is not None and found.state == _ONGOING and (found.producer_id, found.producer_epoch) == pair


async def _complete_one(judged: _Judged) -> Ended:
    claim, producer, judgement = judged
    try:
        if judgement is None:
            await producer.complete_transaction(_NOTHING, take_over=False)
            return Ended(Ending.ABORTED)
        return await _commit(claim, producer, judgement)
    except DualWriteError as error:
        return ended_by(error)


async def _commit(claim: Claim, producer: AsyncParticipantProducer, judgement: Judgement) -> Ended:
    row, fate = judgement.row, judgement.fate
    if fate is Fate.LOST:
        return Ended(Ending.LOST, records_gone(judgement), judged=row)
    if fate is Fate.COMMITTED:
        if not producer.prepared_txn_state.is_empty:  # of another transaction; else no request is needed
            if judgement.repair is None:
                return ended_by(_forgot(claim, row, producer.prepared_txn_state))
            await producer.complete_before_fencing(row, is_over=True)
            await producer.fence_others()
        return Ended(Ending.COMMITTED, judged=row)
    if fate is Fate.UNREADABLE:
        return ended_by(SinkError(_NOT_READABLE % (row, claim.transactional_id, judgement.error)))
    if fate is Fate.NOT_PROVEN and not producer.memory.aborted(row):
        stops = _unproven(claim, producer, judgement)
        if stops is not None:
            return stops
    was_open = not producer.prepared_txn_state.is_empty
    try:
        await producer.complete_transaction(row, take_over=False)
    except PreparedTransactionLost as error:
        return _lost(judgement, as_described(error))
    if was_open and claim.is_left:
        return ended_by(AskAgainError(f"{row} was committed just now, and is to be verified"))
    return Ended(Ending.COMMITTED, _doubt(claim, judgement), judged=row)


def elsewhere(wanted: Mapping[Claim, Prepared], cluster_id: str) -> dict[str, Ended]:
    """Return the endings, by attempt id, of transactions of other Kafka clusters than the one that responds."""
    return {
        claim.attempt_id: ended_by(_elsewhere(claim, row, cluster_id))
        for claim, row in wanted.items()
        if row.is_elsewhere(cluster_id)
    }


def _elsewhere(claim: Claim, row: Prepared, cluster_id: str) -> AnotherClusterError:
    return AnotherClusterError(
        f"{row.state} of the transactional id {claim.transactional_id!r} was prepared in the Kafka cluster "
        f"{row.prepared_in!r}, and this is {cluster_id!r}; nothing was changed",
        prepared_in=row.prepared_in,
        found=cluster_id,
    )


def _went_back(claim: Claim, row: Prepared) -> StoreWentBackError:
    return StoreWentBackError(
        f"Kafka has committed {row.state} of the transactional id {claim.transactional_id!r}, but by the row "
        f"of its attempt {claim.attempt_id} must be aborted: the commit store has lost the decision, by a "
        "failover to a replica that did not have it, or by a restore. Nothing was changed; the batch would "
        "be written to Kafka again"
    )


def _is_used_later(producer: AsyncParticipantProducer, row: Prepared) -> bool:
    """Return whether another transaction than the row's is open under the id.

    An id is leased again only after the end of its row is recorded, so the store has forgotten that it was.
    """
    found = producer.prepared_txn_state
    return not row.state.is_empty and not found.is_empty and found != row.state


def _forgot(claim: Claim, row: PreparedTxnState, found: PreparedTxnState) -> StoreWentBackError:
    return StoreWentBackError(
        f"the transactional id {claim.transactional_id!r} has the open transaction {found}, but the row of its "
        f"attempt {claim.attempt_id} has an older one, {row}, {_ENDS[claim.verdict]}: the commit store has lost later "
        "changes, by a failover to a replica that did not have them, or by a restore. Nothing was changed; the open "
        "transaction may have been decided"
    )


def _unproven(claim: Claim, producer: AsyncParticipantProducer, judgement: Judgement) -> Ended | None:
    """Return the ending of a transaction whose end neither log nor coordinator shows; None if it counts as committed.

    Another transaction that is open under the id may be its repair, by a process that was killed: then it was aborted.
    """
    row, found = judgement.row, producer.prepared_txn_state
    if not found.is_empty:
        return ended_by(SinkError(_ANOTHER_IS_OPEN % (row, claim.transactional_id, judgement.places, found)))
    if producer.guarantee.bounded_ms is not None or producer.memory.aborted_later(row):
        return Ended(Ending.LOST, SinkError(_UNPROVEN % (row, claim.transactional_id, judgement.places)), judged=row)
    return None


def _lost(judgement: Judgement, error: DualWriteError) -> Ended:
    """Return the ending of a transaction that the coordinator reports as aborted."""
    if judgement.fate is Fate.KNOWN:  # it was aborted since the coordinator was asked first
        return ended_by(AskAgainError(str(error)))
    return Ended(Ending.LOST, error, judged=judgement.row)


def _doubt(claim: Claim, judgement: Judgement) -> SinkError | None:
    """Return the error for a commit that nothing proves, and log it; None if there is proof."""
    if judgement.fate is not Fate.NOT_PROVEN:
        return None
    doubt = SinkError(_EVIDENCE_GONE % (claim.transactional_id, judgement.row, judgement.places))
    _log.error("%s", doubt)
    return doubt


_ENDS: Final = {Verdict.ABORT: "to be aborted", Verdict.COMMIT: "which Kafka has committed"}

_UNPROVEN: Final = (
    "nothing proves that %s of %s was committed: neither the log nor a manifest has evidence (%s), and the "
    "broker's timeout, an operator or another producer may have aborted it. Check the topic for its records."
)
_ANOTHER_IS_OPEN: Final = (
    "nothing proves that %s of %s was committed: neither the log nor a manifest has evidence (%s), and %s is "
    "open under the id. It may be a repair that a killed process has left, with the only copy of the records. Nothing "
    "was changed on either side. Copy what it has in the topic (read it with isolation.level=read_uncommitted), end it "
    "with `dualwrite transactions force-terminate`, and start the sink again"
)
_EVIDENCE_GONE: Final = (
    "transactional id %s: can no longer prove that Kafka committed %s: neither the log nor a manifest has evidence "
    "(%s), and the coordinator has forgotten it; assuming that it is committed, which is wrong only if an operator or "
    "another program aborted it"
)
_NOT_READABLE: Final = (
    "the coordinator does not prove that %s of %s was committed, and its records cannot be read to prove that, or to "
    "publish them again (%s). Nothing was changed: grant READ on the topic to the client of the sink; the next try "
    "completes or repairs it"
)
