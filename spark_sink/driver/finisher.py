"""FINISH: complete the decided and condemned transactions in Kafka, with retries.

The order matters: first Kafka, then the store. After a crash in between, the same transactions are completed again,
and Kafka responds as it did before, because their transactional ids stay leased until the store has the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dualwrite.errors import AnotherClusterError
from dualwrite.prepared_state import PreparedTxnState
from spark_sink import commands
from spark_sink.driver.phases import PhaseTimes
from spark_sink.errors import BatchLostError, SinkError, StoreWentBackError
from spark_sink.handoff import BatchName
from spark_sink.kafka_settings import in_terms_of_options
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.sink_kafka import SinkKafka
from spark_sink.store.attempt_states import Claim, Ended, Ending, Prepared, Verdict
from spark_sink.store.sink_store import ClaimStore

_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 5.0


def waits_s(retries: int) -> Iterator[float]:
    """Yield the time to wait before each retry."""
    for number in range(retries):
        yield min(_FIRST_WAIT_S * 2**number, _LONGEST_WAIT_S)


@dataclass(frozen=True)
class Tally:
    """The result of FINISH."""

    committed: int
    repaired: int
    """How many of them were published again, because Kafka had aborted them."""
    aborted: int
    unfinished: int
    """Claims without a required verdict that could not be completed; the next plan completes them."""
    committed_of: Mapping[BatchName, int]
    """`committed` by batch; 0 for a batch without committed transactions."""
    repaired_of: Mapping[BatchName, int]


@dataclass(frozen=True)
class CommitSummary:
    """The result of COMMIT or FINISH."""

    decided_anew: bool
    """False if the decision existed before, and after FINISH alone."""
    records: int
    """Records of the batch; 0 after FINISH alone."""
    committed: int
    """Kafka transactions that this call committed."""
    repaired: int
    """How many of them were published again, because Kafka had aborted them."""
    aborted: int
    """Kafka transactions that this call aborted."""
    unfinished: int
    """Kafka transactions of losers that could not be aborted yet; the next plan aborts them."""
    times: PhaseTimes
    content_digest: str | None = None
    """Of the decision that stands; see `BatchRow`."""


class StoredClaims:
    """The rows of claims in the store, for `SinkKafka.end`."""

    def __init__(
        self, store: ClaimStore, sink_id: str, claims: Sequence[Claim], pause: Pause = lambda point: None
    ) -> None:
        self._store = store
        self._sink_id = sink_id
        self._wanted = {claim.attempt_id: claim.verdict for claim in claims}
        self._durable = {claim.attempt_id: {claim.prepared_state} for claim in claims}
        """The prepared states that these rows had durably, so that Kafka may be told of them."""
        self._pause = pause

    def still_wanted(self, attempt_ids: Collection[str]) -> Mapping[str, Prepared]:
        """See `ClaimRows.still_wanted`."""
        self._pause(PausePoint.AFTER_TAKE_OVER)
        still = self._store.still_wanted(self._wanted, attempt_ids)
        if any(row.state not in self._durable[attempt_id] for attempt_id, row in still.items()):
            # Another finisher has published a transaction again, and its COMMIT may still be waiting.
            still = self._store.still_wanted(self._wanted, attempt_ids, durably=True)
            for attempt_id, row in still.items():
                self._durable[attempt_id].add(row.state)
        self._pause(PausePoint.BEFORE_COMPLETION)
        return still

    def named(self, states: Collection[PreparedTxnState], cluster_id: str) -> frozenset[PreparedTxnState]:
        """See `ClaimRows.named`."""
        return self._store.named(states, cluster_id) if states else frozenset()

    def replace(self, attempt_id: str, old: PreparedTxnState, new: Prepared) -> bool:
        """See `ClaimRows.replace`."""
        self._pause(PausePoint.BEFORE_REPLACEMENT)
        replaced = self._store.replace(self._sink_id, attempt_id, old, new)
        if replaced:
            self._durable[attempt_id].add(new.state)
        self._pause(PausePoint.AFTER_REPLACEMENT)
        return replaced


class Finisher:
    """FINISH for one sink."""

    def __init__(
        self,
        sink_id: str,
        store: ClaimStore,
        kafka: SinkKafka,
        *,
        retries: int,
        pause: Pause,
        sleep: Callable[[float], None],
    ) -> None:
        self._sink_id = sink_id
        self._store = store
        self._kafka = kafka
        self._retries = retries
        self._pause = pause
        self._sleep = sleep

    def finish(
        self, claims: Sequence[Claim] | None, verdicts: Collection[Verdict], *, required: Collection[Verdict]
    ) -> Tally:
        """Complete `claims` (None: those in the store), then retry the claims left in the store with these verdicts.

        Raises BatchLostError, StoreWentBackError, AnotherClusterError, and SinkError if a claim with a required verdict
        is left after the last retry. Completed transactions stay completed.
        """
        waits = waits_s(self._retries)
        committed: Counter[BatchName] = Counter()
        repaired: Counter[BatchName] = Counter()
        aborted = 0
        reason: Exception | None = None
        left = self._store.claims(self._sink_id, verdicts) if claims is None else claims
        while left:
            ended, reason = self._try(left)
            done = [(claim, end) for claim in left if (end := ended.get(claim.attempt_id)) is not None]
            committed.update(_batch_of(claim) for claim, end in done if end.ending is Ending.COMMITTED)
            repaired.update(_batch_of(claim) for claim, end in done if end.repaired and end.ending is Ending.COMMITTED)
            aborted += sum(end.ending is Ending.ABORTED for _, end in done)
            left = self._left(left, ended, verdicts)
            if not left or not any(claim.verdict in required for claim in left):
                break
            wait_s = next(waits, None)
            if wait_s is None:
                raise self._unfinished(left, reason)
            self._sleep(wait_s)
        return Tally(committed.total(), repaired.total(), aborted, len(left), committed, repaired)

    def _try(self, claims: Sequence[Claim]) -> tuple[Mapping[str, Ended], Exception | None]:
        """Complete the claims once. Return the endings that the store has recorded, and the first failure, if any."""
        try:
            ended = self._kafka.end(claims, StoredClaims(self._store, self._sink_id, claims, self._pause))
            self._pause(PausePoint.BEFORE_STATUSES)
            ended = self._store.record(self._sink_id, ended)
        except self._store.errors as error:
            return {}, error  # Kafka completes the same transactions again at the next try
        self._raise_what_stops(claims, ended)
        return ended, next((end.error for end in ended.values() if end.ending is Ending.FAILED), None)

    def _left(
        self, claims: Sequence[Claim], ended: Mapping[str, Ended], verdicts: Collection[Verdict]
    ) -> Sequence[Claim]:
        """Return the claims still to be completed; reads the store only if there are any."""
        if len(ended) == len(claims) and all(end.ending in _OVER for end in ended.values()):
            return ()
        return self._stored(verdicts, claims)  # the next try drops those that no longer have the same verdict

    def _stored(self, verdicts: Collection[Verdict], known: Sequence[Claim]) -> Sequence[Claim]:
        """Return the claims in the store with these verdicts, or those `known` if it fails."""
        try:
            return self._store.claims(self._sink_id, verdicts)
        except self._store.errors:
            return known

    def _raise_what_stops(self, claims: Sequence[Claim], ended: Mapping[str, Ended]) -> None:
        """Raise the error of an ending that no retry changes, with advice to operators.

        It is BatchLostError, StoreWentBackError or AnotherClusterError.
        """
        stopped = [(claim, ended[claim.attempt_id]) for claim in claims if claim.attempt_id in ended]
        for claim, end in stopped:
            if end.ending is Ending.LOST:
                raise BatchLostError(
                    f"the sink {self._sink_id!r} had decided to commit {end.judged} of the transactional id "
                    f"{claim.transactional_id!r} (attempt {claim.attempt_id}), but Kafka has aborted it, or nothing "
                    "proves that it has not, and it cannot be published again, because its row has no manifest or the "
                    f"log has lost its records: {end.error} "
                    "The rest of the batch is visible. The sink is stopped: "
                    f"{advice_if_lost(self._store, self._sink_id, _batch_of(claim))}"
                ) from end.error
        for claim, end in stopped:
            if isinstance(end.error, StoreWentBackError):
                raise StoreWentBackError(
                    f"{end.error}. The sink is stopped: "
                    f"{advice_if_it_went_back(self._store, self._sink_id, _batch_of(claim))}"
                ) from end.error
            if isinstance(end.error, AnotherClusterError):
                batch, now = _batch_of(claim), self._stored((Verdict.COMMIT,), claims)
                decided = any(each.verdict is Verdict.COMMIT and _batch_of(each) == batch for each in now)
                advice = advice_if_elsewhere(self._store, self._sink_id, batch, end.error, decided=decided)
                raise end.error.reworded(f"{end.error}. The sink is stopped: {advice}")

    def _unfinished(self, left: Sequence[Claim], reason: Exception | None) -> SinkError:
        ids = ", ".join(sorted(claim.transactional_id for claim in left)[:5])
        concurrent = "another process was completing them at the same time"
        why = concurrent if reason is None else in_terms_of_options(str(reason))
        command = commands.recover(self._sink_id, schema=self._store.schema)
        return SinkError(
            f"{len(left)} Kafka transactions of the sink {self._sink_id!r} could not be completed ({ids}): {why}. "
            f"Decided batches stay decided; the next plan, or {command}, completes them"
        )


_OVER: Final = frozenset({Ending.COMMITTED, Ending.ABORTED})


def _batch_of(claim: Claim) -> BatchName:
    return BatchName(claim.query_id, claim.batch_id)


def advice_if_lost(store: ClaimStore, sink_id: str, batch: BatchName) -> str:
    """Return an operator's next steps after a lost batch."""
    return (
        "look first whether consumers have the records; write those that are lost again by other means, then run "
        f"{commands.acknowledge_lost(sink_id, *batch, schema=store.schema)}"
    )


def advice_if_it_went_back(store: ClaimStore, sink_id: str, batch: BatchName) -> str:
    """Return an operator's next steps after the store has lost the decision of a batch."""
    return (
        f"bring the newer {store.medium} back; or accept the second copy in Kafka, and run "
        f"{commands.acknowledge_lost(sink_id, *batch, schema=store.schema)}"
    )


def advice_if_elsewhere(
    store: ClaimStore, sink_id: str, batch: BatchName, error: AnotherClusterError, *, decided: bool
) -> str:
    """Return an operator's next steps for a transaction in another Kafka cluster.

    `decided`: some of the batch is still to be committed, and Spark does not write the batch again.
    """
    first = (
        "look which records of the batch consumers have, write those that are lost again by other means, then"
        if decided
        else "this attempt is not decided: write nothing by hand, because Spark writes an undecided batch again; only"
    )
    return (
        f"connect it to the cluster {error.prepared_in!r}, where the next plan ends it. If that cluster is gone for "
        f"good: {first} run {commands.forget_cluster(sink_id, *batch, error.prepared_in, schema=store.schema)}"
    )
