"""Phase two: commit or abort the transactions of a batch in parallel, with `dualwrite.AsyncProducer`.

First every id is taken over, then the store is queried once for what is still wanted, then everything is completed.
Repeating this, or doing it in several processes at once, gives the same result: Kafka lets only the last process that
took an id over complete the transaction, and reports a transaction that is already completed.

Compared with threads that each have a blocking `Producer`, over open connections: 2 ms instead of 4 ms for 2 claims,
30 ms instead of 45 ms for 50.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from dualwrite.async_producer import AsyncProducer, run_in_background
from dualwrite.errors import DualWriteError, FencedError, KafkaTimeoutError, OutcomeUnknown, PreparedTransactionLost
from dualwrite.prepared_state import PreparedTxnState
from spark_sink.attempt.states import Claim, Ended, Ending, Verdict
from spark_sink.pause_points import Pause, PausePoint

_NOTHING: Final = PreparedTxnState()

_TRIES: Final = 3
"""A process that was suspended may take an id over between the two steps, find that it is not its own, and leave it."""

_DONE: Final = {Verdict.COMMIT: Ending.COMMITTED, Verdict.ABORT: Ending.ABORTED}

_log = logging.getLogger(__name__)

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")

StillWanted = Callable[[Collection[str]], Collection[str]]
"""See `SinkKafka.end`."""


class _Taken(NamedTuple):
    """A claim whose transactional id this process has taken over."""

    claim: Claim
    producer: AsyncProducer


class Completion:
    """`SinkKafka.end`. Several threads may call it at the same time."""

    def __init__(
        self, settings: Mapping[str, Any], *, parallelism: int, step_timeout_ms: int, pause: Pause | None = None
    ) -> None:
        """Use a producer's `settings`, without its id.

        Taking over and completing may each take `step_timeout_ms`, or twice that if there are more claims than
        `parallelism` and the broker becomes unreachable in between.

        With `pause`, transactions are completed one after the other, and it is called after each.
        """
        self._settings = {**settings, "max.block.ms": step_timeout_ms}
        self._parallelism = parallelism
        self._step_timeout_ms = step_timeout_ms
        self._pause = pause

    def end(self, claims: Sequence[Claim], still_wanted: StillWanted) -> dict[str, Ended]:
        """See `SinkKafka.end`. An exception of `still_wanted` is passed on, and nothing is completed after it.

        If another process has taken over some of the ids, `still_wanted` is called for those again, before and after
        they are taken over once more: they may belong to another attempt by now, which must not be disturbed.
        """
        endings = self._try(claims, still_wanted)
        for _ in range(_TRIES - 1):
            again = [claim for claim in claims if _may_retry(endings[claim.attempt_id])]
            wanted = set(still_wanted([claim.attempt_id for claim in again])) if again else ()
            endings |= self._try([claim for claim in again if claim.attempt_id in wanted], still_wanted)
        return endings

    def _try(self, claims: Sequence[Claim], still_wanted: StillWanted) -> dict[str, Ended]:
        if not claims:
            return {}
        endings, taken = _wait_for(self._take_over(claims))
        try:
            wanted = set(still_wanted([each.claim.attempt_id for each in taken])) if taken else set()
            endings |= {each.claim.attempt_id: Ended(Ending.LEFT) for each in taken}
            endings |= self._complete([each for each in taken if each.claim.attempt_id in wanted])
        finally:
            _wait_for(_release([each.producer for each in taken]))
        return endings

    # ---- taking over ----------------------------------------------------------------------------------------

    async def _take_over(self, claims: Sequence[Claim]) -> tuple[dict[str, Ended], list[_Taken]]:
        """Take the ids over; return the endings of the claims that failed, and the rest."""
        producers: list[AsyncProducer] = []
        try:
            results = await self._each(claims, lambda claim: self._take_one_over(claim, producers))
        except BaseException:
            await _release(producers)
            raise
        not_taken = {
            claim.attempt_id: result for claim, result in zip(claims, results, strict=True) if isinstance(result, Ended)
        }
        return not_taken, [result for result in results if isinstance(result, _Taken)]

    async def _take_one_over(self, claim: Claim, producers: list[AsyncProducer]) -> _Taken | Ended:
        producer = AsyncProducer({**self._settings, "transactional.id": claim.transactional_id})
        producers.append(producer)
        try:
            await producer.init_transactions(keep_prepared_txn=True)
        except DualWriteError as error:
            await _release([producer])
            return _ended_by(error)
        return _Taken(claim, producer)

    # ---- completing -----------------------------------------------------------------------------------------

    def _complete(self, wanted: Sequence[_Taken]) -> dict[str, Ended]:
        if self._pause is None:
            endings = _wait_for(self._each(wanted, _complete_one))
            return {each.claim.attempt_id: ended for each, ended in zip(wanted, endings, strict=True)}
        one_by_one: dict[str, Ended] = {}
        for each in wanted:
            one_by_one[each.claim.attempt_id] = _wait_for(_complete_one(each))
            self._pause(PausePoint.AMONG_COMPLETIONS)
        return one_by_one

    async def _each(
        self, given: Sequence[_Given], call: Callable[[_Given], Awaitable[_Result]]
    ) -> list[_Result | Ended]:
        """Call `call` for each, `parallelism` at a time; begin none once the time is over."""
        room = asyncio.Semaphore(self._parallelism)
        deadline_s = time.monotonic() + self._step_timeout_ms / 1000

        async def one(item: _Given) -> _Result | Ended:
            async with room:
                return self._not_tried() if time.monotonic() > deadline_s else await call(item)

        return await asyncio.gather(*map(one, given))

    def _not_tried(self) -> Ended:
        return _ended_by(
            KafkaTimeoutError(
                f"not tried: the transactions before it took longer than kafka.max.block.ms={self._step_timeout_ms}; "
                "nothing was changed, and it has to be repeated"
            )
        )


async def _complete_one(taken: _Taken) -> Ended:
    claim = taken.claim
    state = claim.prepared_state if claim.verdict is Verdict.COMMIT else _NOTHING
    try:
        await taken.producer.complete_transaction(state, take_over=False)
    except DualWriteError as error:
        return _ended_by(error)
    _log.debug("%s %s of %s", claim.verdict.value, claim.prepared_state, claim.transactional_id)
    return Ended(_DONE[claim.verdict])


def _ended_by(error: DualWriteError) -> Ended:
    if isinstance(error, PreparedTransactionLost):
        return Ended(Ending.LOST, error)
    if isinstance(error, FencedError):
        return Ended(Ending.LEFT, error)
    return Ended(Ending.FAILED, error)


def _may_retry(ended: Ended) -> bool:
    """Return whether another process has intervened, or the outcome is unknown, which the next owner finds out."""
    return isinstance(ended.error, FencedError | OutcomeUnknown)


def _wait_for(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Wait for the coroutine in this thread. If the wait is interrupted, cancel the coroutine."""
    future = run_in_background(coroutine)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _release(producers: Iterable[AsyncProducer]) -> None:
    """Close the producers at once; prepared transactions stay as they are."""
    await asyncio.gather(*(producer.close(timeout_s=0, hand_over=True) for producer in producers))
