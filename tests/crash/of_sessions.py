"""The crash tests' dual write through a sessionmaker whose sessions the application commits by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.sqlalchemy.sessions import current_dual_write, dual_write_sessions, send
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import Scenario, Seen, event_texts
from tests.support.databases import events


class Way(StrEnum):
    """How the application commits."""

    COMMIT = "session.commit()"
    BEGIN = "with Session.begin()"


@dataclass
class SessionScenario(Scenario):
    """A `Scenario` that is written by sessions."""

    way: Way = Way.COMMIT

    def write_events(self, writer: DualWriter, number: int) -> Seen:
        return write_events_of_session(self.database.engine, writer, self.topic, number, self.way)


def write_events_of_session(engine: sa.Engine, writer: DualWriter, topic: str, number: int, way: Way) -> Seen:
    sessions = sessionmaker(engine)
    dual_write_sessions(sessions, writer)
    written: list[DualWrite] = []

    def write(session: Session) -> None:
        for index, body in enumerate(event_texts(str(number))):
            session.execute(sa.insert(events), {"id": number * 10 + index, "event_key": "k", "body": body})
            send(session, topic, value=body, key="k")
        written.append(current_dual_write(session))

    try:
        _WAYS[way](sessions, write)
    except Exception as error:
        return Seen(error, written[0].outcome if written else None)
    return Seen(None, written[0].outcome)


def _by_commit(sessions: sessionmaker[Any], write: Callable[[Session], None]) -> None:
    with sessions() as session:
        write(session)
        session.commit()
        assert not session.in_transaction()


def _by_begin(sessions: sessionmaker[Any], write: Callable[[Session], None]) -> None:
    with sessions.begin() as session:
        write(session)


_WAYS = {Way.COMMIT: _by_commit, Way.BEGIN: _by_begin}
