"""The writers of two databases' backends behind one set of names, so that a test is written once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.psycopg_scenario import conninfo_of, write_psycopg_events
from tests.crash.scenario import Seen, write_events

SQL: Final = "sqlalchemy"
PSYCOPG: Final = "psycopg"


@dataclass(frozen=True)
class Backend:
    """How writers are made from the URL of a database, and used."""

    make: Callable[[str, dict[str, Any], PauseHook | None], Any]
    write: Callable[[Any, str, int], Seen]
    """One dual write of the events with a number, by a writer or a pool."""


def _sqlalchemy(url: str, settings: dict[str, Any], pause: PauseHook | None = None) -> DualWriter:
    return DualWriter(sa.create_engine(url), pause=pause, **settings)


def _psycopg(url: str, settings: dict[str, Any], pause: PauseHook | None = None) -> PsycopgDualWriter:
    return PsycopgDualWriter(conninfo_of(sa.make_url(url)), pause=pause, **settings)


BACKENDS: Final[Mapping[str, Backend]] = {
    SQL: Backend(_sqlalchemy, write_events),
    PSYCOPG: Backend(_psycopg, write_psycopg_events),
}
