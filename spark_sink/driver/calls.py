"""Make the Kafka calls of many claims at once, from a thread and within a time limit; classify their errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from dualwrite.async_producer import run_in_background
from dualwrite.errors import (
    DualWriteError,
    FencedError,
    KafkaTimeoutError,
    OutcomeUnknown,
    PreparedTransactionLost,
)
from dualwrite.participant_async import AsyncParticipantProducer
from spark_sink.errors import SinkError
from spark_sink.store.attempt_states import Claim, Ended, Ending


class OfClaim(Protocol):
    """An item that belongs to one claim."""

    @property
    def claim(self) -> Claim: ...


_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


class AskAgainError(SinkError):
    """The known state of a transaction no longer fits its row: read both again."""


class Calls:
    """Calls for many claims, `parallelism` at a time, begun within `step_timeout_ms`."""

    def __init__(self, *, parallelism: int, step_timeout_ms: int) -> None:
        self._parallelism = parallelism
        self.step_timeout_ms: Final = step_timeout_ms

    def all(
        self, given: Sequence[_Given], call: Callable[[_Given], Awaitable[_Result | Ended]]
    ) -> list[_Result | Ended]:
        """Call `call` for each, and wait for the results in this thread."""
        return wait_for(self.each(given, call)) if given else []

    async def each(
        self, given: Sequence[_Given], call: Callable[[_Given], Awaitable[_Result | Ended]]
    ) -> list[_Result | Ended]:
        """Call `call` for each, in order; begin no call after the time limit."""
        room = asyncio.Semaphore(self._parallelism)
        deadline_s = self.deadline_s()

        async def one(item: _Given) -> _Result | Ended:
            async with room:
                return self.not_tried() if time.monotonic() > deadline_s else await call(item)

        return await asyncio.gather(*map(one, given))

    def deadline_s(self) -> float:
        """Return the time limit of a step that begins now."""
        return time.monotonic() + self.step_timeout_ms / 1000

    def not_tried(self) -> Ended:
        """Return the ending of a claim that was not tried for lack of time."""
        return ended_by(
            KafkaTimeoutError(
                f"not tried: the transactions before it took longer than kafka.max.block.ms={self.step_timeout_ms}; "
                "nothing was changed: repeat the call"
            )
        )


def apart(given: Sequence[OfClaim], results: Sequence[_Result | Ended]) -> tuple[dict[str, Ended], list[_Result]]:
    """Return the endings of the claims that have ended, by attempt id, and the results of the others."""
    pairs = list(zip(given, results, strict=True))
    ended = {each.claim.attempt_id: result for each, result in pairs if isinstance(result, Ended)}
    return ended, [result for result in results if not isinstance(result, Ended)]


def ended_by(error: DualWriteError) -> Ended:
    """Return the ending of a claim whose completion failed."""
    is_another_s = isinstance(error, FencedError | AskAgainError)
    return Ended(Ending.LEFT if is_another_s else Ending.FAILED, error)


def as_described(error: PreparedTransactionLost) -> PreparedTransactionLost:
    """Return the error with Kafka's description only, without its advice, which is for producers and dual writes."""
    pair = f"{error.described_producer_id}:{error.described_producer_epoch}"
    return error.reworded(
        f"Kafka describes the transactional id {error.transactional_id!r} as {error.described_state} at {pair}, so "
        f"{error.prepared_state} was not committed."
    )


def may_retry(ended: Ended) -> bool:
    """Return whether another process has intervened, or the outcome is unknown; the next owner finds it out."""
    return isinstance(ended.error, FencedError | OutcomeUnknown | AskAgainError)


def wait_for(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Wait for the coroutine in this thread. If the wait is interrupted, cancel the coroutine."""
    future = run_in_background(coroutine)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def release(producers: Iterable[AsyncParticipantProducer]) -> None:
    """Close the producers at once; prepared transactions stay as they are."""
    await asyncio.gather(*(producer.close(timeout_s=0, hand_over=True) for producer in producers))
