"""The faults of `tests/support/databases.py` strike the request that a test means, after any others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.testing.network_proxy import NetworkProxy
from tests.support.conditions import until
from tests.support.databases import MariaDbDatabase, PostgresDatabase, event_bodies, events

Lose = Callable[[NetworkProxy, Callable[[bytes], bool]], None]

_SESSION = {"postgresql": "pg_backend_pid()", "mysql": "connection_id()", "mariadb": "connection_id()"}
_SESSIONS = {
    "postgresql": "SELECT pid FROM pg_stat_activity",
    "mysql": "SELECT id FROM information_schema.processlist",
    "mariadb": "SELECT id FROM information_schema.processlist",
}


@pytest.mark.parametrize("lose", [NetworkProxy.swallow_answer_to, NetworkProxy.cut_at])
def test_the_farewell_of_a_closed_connection_is_no_request(
    store: PostgresDatabase | MariaDbDatabase, lose: Lose
) -> None:
    """It has no response that a client waits for, and a relay may receive it late: after the loss was armed."""
    with store.engine.connect() as staying:
        pooled = store.engine.raw_connection()
        pooled.detach()
        leaving: Any = pooled.dbapi_connection
        with leaving.cursor() as cursor:
            cursor.execute(f"SELECT {_SESSION[store.engine.dialect.name]}")
            (session,) = cursor.fetchone()
        leaving.rollback()
        lose(store.proxy, lambda request: True)
        leaving.close()
        until(lambda: session not in _sessions(store))
        with pytest.raises(sa.exc.OperationalError):
            staying.execute(sa.select(events))


def _sessions(store: PostgresDatabase | MariaDbDatabase) -> list[int]:
    with store.aside.connect() as connection:
        return list(connection.scalars(sa.text(_SESSIONS[store.engine.dialect.name])))


@pytest.mark.parametrize("applied", [True, False])
def test_a_statement_that_says_committed_is_no_commit(postgres: PostgresDatabase, applied: bool) -> None:
    """BEGIN ISOLATION LEVEL READ COMMITTED, as the background of a pool sends it."""
    with postgres.engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        postgres.lose_commit(applied=applied)
        connection.execute(sa.insert(events), {"id": 1, "event_key": "k", "body": "1"})
        with pytest.raises(sa.exc.OperationalError):
            connection.commit()
    assert event_bodies(postgres) == ["1"] * applied
