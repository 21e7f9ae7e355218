"""Engines for a commit store, on each database, without waiting for disks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.databases import unique


@contextmanager
def sqlite_engine(directory: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{directory / 'store.db'}")

    @sa.event.listens_for(engine, "connect")
    def _do_not_wait(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    yield engine
    engine.dispose()


@contextmanager
def postgres_engine(server_url: sa.URL) -> Iterator[sa.Engine]:
    """Return an engine in a schema of its own."""
    schema = unique("store").replace("-", "_")
    with sa.create_engine(server_url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    url = server_url.update_query_dict({"options": f"-csearch_path={schema} -csynchronous_commit=off"})
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


@contextmanager
def engine_on(name: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[sa.Engine]:
    """Return an engine on sqlite, postgres or mariadb, with the servers that all tests share."""
    if name == "sqlite":
        with sqlite_engine(directory) as engine:
            yield engine
    elif name == "postgres":
        with postgres_engine(request.getfixturevalue("postgres_server").url) as engine:
            yield engine
    else:
        url = request.getfixturevalue("mariadb_server").create_database(unique("store").replace("-", "_"))
        engine = sa.create_engine(url)
        yield engine
        engine.dispose()
