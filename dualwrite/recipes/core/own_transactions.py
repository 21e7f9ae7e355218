"""Database transactions outside of blocks, which end together with their steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from dualwrite.guarded import cleaning_up_after
from dualwrite.recipes.core.store import DatabaseTransaction
from dualwrite.recipes.core.waiting import Uninterrupted, direct

TransactionT = TypeVar("TransactionT", bound=DatabaseTransaction)
ResultT = TypeVar("ResultT")


async def in_own_transaction(
    begin: Callable[[], Awaitable[TransactionT]],
    steps: Callable[[TransactionT], Awaitable[ResultT]],
    uninterrupted: Uninterrupted = direct,
) -> ResultT:
    """Carry out `steps` in a new transaction; then roll back what they have not committed, and close it.

    A signal's exception may strike in the rollback too. The transaction and its connection refer to each other, so the
    row would stay locked until the garbage collector finds them.
    """
    database = await begin()
    try:
        return await steps(database)
    finally:
        try:
            await uninterrupted(_end(database))
        except BaseException as error:
            with cleaning_up_after(error):
                await uninterrupted(_end(database))
            raise


async def _end(database: DatabaseTransaction) -> None:
    try:
        await database.rollback()
    finally:
        await database.close()
