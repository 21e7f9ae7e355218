"""A process that does dual writes 1, 2, ... and kills itself at a pause point; see `killed.py`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from typing import Any

import sqlalchemy as sa

from dualwrite.recipes.asyncpg.writer import AsyncpgDualWriter
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter
from tests.crash.asyncpg_scenario import insert_by_asyncpg
from tests.crash.awaited import insert_by_session, write_awaited_events
from tests.crash.django_scenario import add_django_alias, write_django_events
from tests.crash.of_sessions import Way, write_events_of_session
from tests.crash.psycopg_scenario import conninfo_of, insert_by_psycopg, write_psycopg_events
from tests.crash.scenario import AtPoint, Seen, make, write_events
from tests.support.awaited_databases import awaited_engine


def main(options: list[str]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name in ("--database-url", "--bootstrap-servers", "--transactional-id", "--topic", "--point"):
        parser.add_argument(name, required=True)
    parser.add_argument("--awaited", metavar="DRIVER", help="with AsyncDualWriter and this driver")
    parser.add_argument("--psycopg", choices=["blocking", "awaited"], help="with a writer that has no SQLAlchemy")
    parser.add_argument("--asyncpg", action="store_true", help="with AsyncpgDualWriter")
    parser.add_argument("--sessions", type=Way, metavar="WAY", help="with sessions that are committed in this way")
    parser.add_argument("--django", action="store_true", help="in transaction.atomic() of Django")
    parser.add_argument("--ready", action="store_true", help="not before it has written 0 (no SQLAlchemy)")
    arguments = parser.parse_args(options)
    point = PausePoint(arguments.point)
    kill = AtPoint(point, lambda: os.kill(os.getpid(), signal.SIGKILL), armed=not arguments.ready)
    if arguments.django:
        seen = _write_django(arguments, kill)
    elif arguments.awaited or arguments.asyncpg or arguments.psycopg == "awaited":
        seen = asyncio.run(_write_awaited(arguments, kill))
    else:
        seen = _write(arguments, kill)
    raise SystemExit(f"still alive after {arguments.point}: {seen}")


def _write(arguments: argparse.Namespace, pause: AtPoint) -> Seen:
    given = (arguments.bootstrap_servers, arguments.transactional_id, pause)
    if arguments.psycopg:
        of_psycopg = make(PsycopgDualWriter, conninfo_of(sa.make_url(arguments.database_url)), *given)
        if arguments.ready:
            write_psycopg_events(of_psycopg, arguments.topic, number=0)
            pause.arm()
        return write_psycopg_events(of_psycopg, arguments.topic, number=1)
    engine = sa.create_engine(arguments.database_url)
    writer = make(DualWriter, engine, *given)
    if arguments.sessions:
        return write_events_of_session(engine, writer, arguments.topic, 1, arguments.sessions)
    return write_events(writer, arguments.topic, number=1)


def _write_django(arguments: argparse.Namespace, pause: AtPoint) -> Seen:
    url = sa.make_url(arguments.database_url)
    add_django_alias("shop", url, arguments.bootstrap_servers, arguments.transactional_id, pause=pause)
    if arguments.ready:
        write_django_events("shop", arguments.topic, number=0)
        pause.arm()
    return write_django_events("shop", arguments.topic, number=1)


async def _write_awaited(arguments: argparse.Namespace, pause: AtPoint) -> Seen:
    url = sa.make_url(arguments.database_url)
    kinds: tuple[Any, Any, Any] = (
        (AsyncDualWriter, awaited_engine(url, arguments.awaited), insert_by_session)
        if arguments.awaited
        else (AsyncpgDualWriter, conninfo_of(url), insert_by_asyncpg)
        if arguments.asyncpg
        else (AsyncPsycopgDualWriter, conninfo_of(url), insert_by_psycopg)
    )
    kind, source, insert = kinds
    writer = make(kind, source, arguments.bootstrap_servers, arguments.transactional_id, pause)
    if arguments.ready:
        await write_awaited_events(writer, insert, arguments.topic, number=0)
        pause.arm()
    return await write_awaited_events(writer, insert, arguments.topic, number=1)
