"""Dual writes for coroutines that commit their AsyncSessions themselves: `sessions` with `await`.

    await send(session, "orders", key=..., value=...)
    await session.commit()

The rules are those of `dualwrite.recipes.sqlalchemy.sessions`. Hooks and mapper events of an AsyncSession receive its
synchronous Session, and send with the functions of that module, without `await`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.util import greenlet_spawn

from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.sqlalchemy import sessions
from dualwrite.recipes.sqlalchemy.sessions import dual_write_sessions

__all__ = ["current_dual_write", "dual_write_sessions", "send"]

AnyAsyncSession = AsyncSession | async_scoped_session[Any]


async def send(
    session: AnyAsyncSession,
    topic: str,
    value: Any = None,
    key: Any = None,
    headers: Any = None,
    partition: int | None = None,
    timestamp_ms: int | None = None,
) -> BufferedRecord:
    """Publish one record with the AsyncSession's current transaction, as `sessions.send`.

    Awaits at most the connection, if the transaction has none yet.
    """
    write = await current_dual_write(session)
    return write.send(topic, value, key, headers, partition, timestamp_ms)


async def current_dual_write(session: AnyAsyncSession) -> DualWrite:
    """Return the dual write of the AsyncSession's current transaction, as `sessions.current_dual_write`."""
    bound = session() if isinstance(session, async_scoped_session) else session
    return await greenlet_spawn(sessions.current_dual_write, bound.sync_session)
