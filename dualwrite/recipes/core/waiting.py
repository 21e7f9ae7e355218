"""The two ways of waiting: a thread that blocks, or a task of an event loop, whose cleanup is shielded.

Rolling back, or giving a connection up, must not stop halfway when a task is cancelled: the next use of the id would
find the row locked by a transaction that no task ends, or an inconsistent state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from dualwrite.errors import AnotherClusterError, NotProvenError, RecordsRefusedError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.availability import IoThreadWatch, KafkaWatch, TaskWatch
from dualwrite.recipes.core.kafka_participant import AsyncKafkaParticipant, KafkaParticipant
from dualwrite.recipes.core.turns import IdUsers, used_by_tasks

ResultT = TypeVar("ResultT")
AnyContext = AbstractContextManager[ResultT] | AbstractAsyncContextManager[ResultT]


def backoff_s(failures: int) -> float:
    """Return how long to wait before the next attempt: twice as long after each failure, up to 1.6 s."""
    return 0.05 * 2.0 ** min(failures, 5)


_PAUSES_S: Final[dict[type[Exception], float]] = {
    AnotherClusterError: 5.0,
    NotProvenError: 60.0,
    RecordsRefusedError: 60.0,
}
"""How long to wait after an error that each attempt meets, and takes the id over, until a person removes the cause."""

NEED_A_PERSON: Final = tuple(_PAUSES_S)


def pause_after(error: BaseException, failures: int = 0) -> float:
    """Return how long to wait after an error, the last one of a number of failures."""
    return next((pause for kind, pause in _PAUSES_S.items() if isinstance(error, kind)), backoff_s(failures))


async def settled(value: Any) -> Any:
    """Return the result of a call, awaited if it is awaitable: one code serves threads and asyncio."""
    return await value if hasattr(value, "__await__") else value


def entered(context: AnyContext[ResultT]) -> AbstractAsyncContextManager[ResultT]:
    """Return a context manager of either kind as an asynchronous one; a blocking one never suspends."""
    return context if isinstance(context, AbstractAsyncContextManager) else _entered(context)


@asynccontextmanager
async def _entered(context: AbstractContextManager[ResultT]) -> AsyncIterator[ResultT]:
    with context as value:
        yield value


class Uninterrupted(Protocol):
    """Carries out all steps and returns their result; an interruption meanwhile is raised afterwards."""

    def __call__(self, steps: Coroutine[Any, Any, ResultT]) -> Awaitable[ResultT]: ...


async def direct(steps: Coroutine[Any, Any, ResultT]) -> ResultT:
    return await steps


async def shield(steps: Coroutine[Any, Any, ResultT], on_cancellation: Callable[[], object] = lambda: None) -> ResultT:
    """Carry out steps in a task of their own; each cancellation meanwhile calls `on_cancellation`."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return await steps  # a forked child has no running loop, and none of these steps waits there
    task = loop.create_task(steps)
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancelled:
            interruption = cancelled
            on_cancellation()
    if interruption is not None:
        raise interruption from (None if task.cancelled() else task.exception())
    return task.result()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The means by which the steps of a dual write wait."""

    new_kafka: Callable[[Mapping[str, Any]], KafkaParticipant]
    """Creates Kafka's side of one transactional id from the settings of its producer."""
    sleep: Callable[[float], Awaitable[None]]
    uninterrupted: Uninterrupted
    new_watch: Callable[[], KafkaWatch]
    """Creates the watch for Kafka's return."""
    new_users: Callable[[], IdUsers]
    """Creates the queue of one transactional id."""


THREADS: Final = Waiting(KafkaParticipant, blocking.sleep, direct, IoThreadWatch, IdUsers)
TASKS: Final = Waiting(AsyncKafkaParticipant, asyncio.sleep, shield, TaskWatch, used_by_tasks)
