"""The crash tests' dual write through an async_sessionmaker whose sessions the application commits by itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.sqlalchemy.sessions_async import current_dual_write, dual_write_sessions, send
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter
from tests.crash.awaited import AwaitedScenario, AwaitedWriter
from tests.crash.scenario import Seen, event_texts
from tests.support.databases import events


@dataclass
class AwaitedSessionScenario(AwaitedScenario):
    """An `AwaitedScenario` that is written by AsyncSessions."""

    def write_events(self, writer: AwaitedWriter[AsyncDualWriter], number: int) -> Seen:
        return self.run(write_events_of_async_session(self.engine, writer.awaited, self.topic, number))


async def write_events_of_async_session(engine: AsyncEngine, writer: AsyncDualWriter, topic: str, number: int) -> Seen:
    """Write like `write_events`. A cancellation ends here, which only a test may do."""
    sessions = async_sessionmaker(engine)
    dual_write_sessions(sessions, writer)
    write: DualWrite | None = None
    is_behind = False
    try:
        async with sessions() as session:
            for index, body in enumerate(event_texts(str(number))):
                await session.execute(sa.insert(events), {"id": number * 10 + index, "event_key": "k", "body": body})
                await send(session, topic, value=body, key="k")
            write = await current_dual_write(session)
            await session.commit()
            is_behind = True
    except (Exception, asyncio.CancelledError) as error:
        return Seen(error, write.outcome if write else None, is_behind)
    return Seen(None, write.outcome)
