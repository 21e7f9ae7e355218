"""A process that does dual writes 1, 2, ... and kills itself at a pause point; see `killed.py`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal

import sqlalchemy as sa

from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.asyncpg_scenario import make_asyncpg_writer, write_asyncpg_events
from tests.crash.awaited import make_awaited_writer, write_awaited_events
from tests.crash.django_scenario import add_django_alias, write_django_events
from tests.crash.of_sessions import Way, write_events_of_session
from tests.crash.psycopg_scenario import (
    make_awaited_psycopg_writer,
    make_psycopg_writer,
    write_awaited_psycopg_events,
    write_psycopg_events,
)
from tests.crash.scenario import AtPoint, Seen, make_writer, write_events
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
    elif arguments.psycopg == "blocking":
        seen = _write_psycopg(arguments, kill)
    elif arguments.psycopg == "awaited":
        seen = asyncio.run(_write_awaited_psycopg(arguments, kill))
    elif arguments.asyncpg:
        seen = asyncio.run(_write_asyncpg(arguments, kill))
    elif arguments.awaited:
        seen = asyncio.run(_write_awaited(arguments, kill))
    else:
        seen = _write(arguments, kill)
    raise SystemExit(f"still alive after {arguments.point}: {seen}")


def _write(arguments: argparse.Namespace, pause: AtPoint) -> Seen:
    engine = sa.create_engine(arguments.database_url)
    writer = make_writer(engine, arguments.bootstrap_servers, arguments.transactional_id, pause=pause)
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
    engine = awaited_engine(sa.make_url(arguments.database_url), arguments.awaited)
    writer = make_awaited_writer(engine, arguments.bootstrap_servers, arguments.transactional_id, pause=pause)
    return await write_awaited_events(writer, arguments.topic, number=1)


def _write_psycopg(arguments: argparse.Namespace, pause: AtPoint) -> Seen:
    url = sa.make_url(arguments.database_url)
    writer = make_psycopg_writer(url, arguments.bootstrap_servers, arguments.transactional_id, pause=pause)
    if arguments.ready:
        write_psycopg_events(writer, arguments.topic, number=0)
        pause.arm()
    return write_psycopg_events(writer, arguments.topic, number=1)


async def _write_awaited_psycopg(arguments: argparse.Namespace, pause: AtPoint) -> Seen:
    url = sa.make_url(arguments.database_url)
    writer = make_awaited_psycopg_writer(url, arguments.bootstrap_servers, arguments.transactional_id, pause=pause)
    return await write_awaited_psycopg_events(writer, arguments.topic, number=1)


async def _write_asyncpg(arguments: argparse.Namespace, pause: AtPoint) -> Seen:
    url = sa.make_url(arguments.database_url)
    writer = make_asyncpg_writer(url, arguments.bootstrap_servers, arguments.transactional_id, pause=pause)
    if arguments.ready:
        await write_asyncpg_events(writer, arguments.topic, number=0)
        pause.arm()
    return await write_asyncpg_events(writer, arguments.topic, number=1)
