"""How SQLAlchemy's COMMIT is waited for where it decides: nothing hurries it, and a warning is heard.

The one place that operates on drivers' connections past SQLAlchemy for that. `psycopg_commit.py` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dualwrite.recipes.sql.postgres import GIVEN_UP_IN

ResultT = TypeVar("ResultT")


class CommitWait:
    """What was heard while COMMIT was under way."""

    __slots__ = ("was_given_up",)

    def __init__(self) -> None:
        self.was_given_up = False
        """Whether the server gave up waiting for a synchronous standby, and answered all the same."""

    def hear(self, connection: Any, message: Any) -> None:
        """A log listener of asyncpg's."""
        if getattr(message, "server_source_function", None) == GIVEN_UP_IN:
            self.was_given_up = True


@contextmanager
def deciding(driver: str, connection: Any) -> Iterator[CommitWait]:
    """Around the call that sends COMMIT on a driver's connection."""
    wait = CommitWait()
    if driver == "psycopg":
        from dualwrite.recipes.psycopg.commit import StandbyWait, uncancelled

        with StandbyWait(connection) as heard, uncancelled(connection):
            yield wait
        wait.was_given_up = heard.was_given_up
    elif driver == "asyncpg":
        connection.add_log_listener(wait.hear)
        try:
            yield wait
        finally:
            if not connection.is_closed():
                connection.remove_log_listener(wait.hear)
    else:
        yield wait


async def interrupted_by(interrupt: Callable[[], bool], steps: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Carry `steps` out in a task that no cancellation reaches unless `interrupt` says so.

    asyncpg sends a cancel request whenever what waits for it is cancelled. So a cancellation calls `interrupt` instead,
    which drops the connection and returns True; where it returns False, the steps are cancelled as usual.
    """
    task = asyncio.get_running_loop().create_task(steps)
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancelled:
            interruption = cancelled
            if not interrupt():
                task.cancel()
    if interruption is not None:
        raise interruption from (None if task.cancelled() else task.exception())
    return task.result()
