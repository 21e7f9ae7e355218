"""FINISH: Kafka is told what the store has decided, until it has been told everything.

The order is the protocol: first Kafka, then the store. A crash in between ends the same transactions once more, which
Kafka answers in the same way, because their ids are leased until the store knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import DBAPIError

from spark_sink.errors import BatchLostError, SinkError
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.sink_kafka import Claim, Ended, Ending, SinkKafka, Verdict
from spark_sink.store.commit_store import CommitStore

_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 5.0


def waits_s(retries: int) -> Iterator[float]:
    """How long to wait before each of so many tries after the first one."""
    for number in range(retries):
        yield min(_FIRST_WAIT_S * 2**number, _LONGEST_WAIT_S)


@dataclass(frozen=True)
class Tally:
    """What FINISH did."""

    committed: int
    aborted: int
    unfinished: int
    """Claims that nobody had to wait for, and that are left to the next plan."""


class Finisher:
    """FINISH for one sink."""

    def __init__(
        self, sink_id: str, store: CommitStore, kafka: SinkKafka, *, retries: int, pause: Pause, sleep: _Sleep
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
        """End `claims` (None: what the store says), and what is left with these verdicts, in several tries.

        Raises BatchLostError, and SinkError where one with a required verdict is left; what was ended stays so.
        """
        waits = waits_s(self._retries)
        committed = aborted = 0
        reason: Exception | None = None
        left = self._store.claims(self._sink_id, verdicts) if claims is None else claims
        while left:
            ended, reason = self._try(left)
            committed += _count(ended, Ending.COMMITTED)
            aborted += _count(ended, Ending.ABORTED)
            left = self._left(left, ended, verdicts)
            if not left or not any(claim.verdict in required for claim in left):
                break
            wait_s = next(waits, None)
            if wait_s is None:
                raise self._unfinished(left, reason)
            self._sleep(wait_s)
        return Tally(committed, aborted, len(left))

    def _try(self, claims: Sequence[Claim]) -> tuple[Mapping[str, Ended], Exception | None]:
        """What Kafka answered and the store knows, and the first reason why it is not everything."""
        wanted = {claim.attempt_id: claim.verdict for claim in claims}
        try:
            ended = self._kafka.end(claims, lambda attempt_ids: self._still_wanted(wanted, attempt_ids))
            self._pause(PausePoint.BEFORE_STATUSES)
            self._store.record(self._sink_id, ended)
        except DBAPIError as error:
            return {}, error  # what Kafka has ended it ends again
        self._raise_lost(claims, ended)
        return ended, next((end.error for end in ended.values() if end.ending is Ending.FAILED), None)

    def _still_wanted(self, wanted: Mapping[str, Verdict], attempt_ids: Collection[str]) -> set[str]:
        self._pause(PausePoint.AFTER_TAKE_OVER)
        still = self._store.still_wanted(wanted, attempt_ids)
        self._pause(PausePoint.BEFORE_COMPLETION)
        return still

    def _left(
        self, claims: Sequence[Claim], ended: Mapping[str, Ended], verdicts: Collection[Verdict]
    ) -> Sequence[Claim]:
        """What is still to be ended: asked only where not everything was."""
        if len(ended) == len(claims) and all(end.ending in _OVER for end in ended.values()):
            return ()
        try:
            return self._store.claims(self._sink_id, verdicts)
        except DBAPIError:
            return claims  # who is not wanted any more is found out when they are ended

    def _raise_lost(self, claims: Sequence[Claim], ended: Mapping[str, Ended]) -> None:
        for claim in claims:
            end = ended.get(claim.attempt_id)
            if end is not None and end.ending is Ending.LOST:
                raise BatchLostError(
                    f"the sink {self._sink_id!r} had decided to commit {claim.prepared_state} of the transactional id "
                    f"{claim.transactional_id!r} (attempt {claim.attempt_id}), and Kafka has dropped it: {end.error} "
                    "The rest of the batch is visible. The sink stands still: write the lost records again by other "
                    "means, then call acknowledge_lost (`dualwrite spark acknowledge-lost`)"
                ) from end.error

    def _unfinished(self, left: Sequence[Claim], reason: Exception | None) -> SinkError:
        ids = ", ".join(sorted(claim.transactional_id for claim in left)[:5])
        why = "another process was ending them at the same time" if reason is None else str(reason)
        return SinkError(
            f"{len(left)} Kafka transactions of the sink {self._sink_id!r} could not be ended ({ids}): {why}. What is "
            "decided stays decided; the next plan, or `dualwrite spark recover`, ends them"
        )


_Sleep = Callable[[float], None]
_OVER: Final = frozenset({Ending.COMMITTED, Ending.ABORTED})


def _count(ended: Mapping[str, Ended], ending: Ending) -> int:
    return sum(end.ending is ending for end in ended.values())
