"""`synchronous_commit=off`, by whichever way, and a server that crashes right after the dual write."""

from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.sql.postgres import RAISE
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.durability.faces import AWAITED, TABLE, TOPIC, Face, rows
from tests.support.postgres_pair import PostgresNode
from tests.support.topics import read_topic

WAYS = ("role", "database", "url", "in the block")
_numbers = itertools.count(1)


def url_with_it_off(node: PostgresNode, way: str, name: str) -> sa.URL:
    node.ask(f"CREATE DATABASE {name}")
    node.ask(f"CREATE ROLE {name} SUPERUSER LOGIN")
    url = node.url.set(database=name, username=name)
    if way == "role":
        node.ask(f"ALTER ROLE {name} SET synchronous_commit = off")
    elif way == "database":
        node.ask(f"ALTER DATABASE {name} SET synchronous_commit = off")
    elif way == "url":
        url = url.update_query_dict({"options": "-csynchronous_commit=off"})
    return url


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *(("psycopg", way) for way in WAYS),
        *((kind, "in the block") for kind in ("sqlalchemy", *AWAITED)),
    ],
)
def test_a_crash_right_after_the_decision_loses_neither_side(
    kind: str, way: str, one_node: PostgresNode, emulator: Emulator
) -> None:
    url = url_with_it_off(one_node, way, f"test_{next(_numbers)}")
    lowered = ("SET LOCAL synchronous_commit = off",) if way == "in the block" else ()
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
        connection.exec_driver_sql(TABLE)
    face = Face(kind, url, emulator.bootstrap_servers, "writer")
    face.write(1, *lowered)
    face.write(2, *lowered)
    one_node.crash()
    one_node.start()
    found = rows(url)
    records = [int(value) for _, value in read_topic(emulator.bootstrap_servers, TOPIC)]
    face.close()
    assert found == records == [1, 2]


def test_a_hook_that_lowers_synchronous_commit_after_the_state_was_written_is_overruled(
    one_node: PostgresNode, emulator: Emulator
) -> None:
    url = url_with_it_off(one_node, "role", f"test_{next(_numbers)}")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(TABLE)
    lower = sa.text("SET LOCAL synchronous_commit = off")
    with DualWriter(engine, bootstrap_servers=emulator.bootstrap_servers, transactional_id="writer") as writer:
        for number in (1, 2):
            with writer.transaction() as tx:
                sa.event.listen(tx.session, "before_commit", lambda session: session.execute(lower))
                tx.session.execute(sa.text("INSERT INTO events VALUES (:id)"), {"id": number})
                tx.send(TOPIC, value=str(number))
        one_node.crash()
        one_node.start()
        records = [int(value) for _, value in read_topic(emulator.bootstrap_servers, TOPIC)]
        assert rows(url) == records == [1, 2]
    engine.dispose()


@pytest.mark.parametrize(
    ("before", "raised"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")],
)
def test_a_weaker_synchronous_commit_is_raised_and_a_stronger_one_kept(
    one_node: PostgresNode, before: str, raised: str
) -> None:
    with sa.create_engine(one_node.url).begin() as connection:
        connection.exec_driver_sql(f"SET LOCAL synchronous_commit = {before}")
        assert connection.exec_driver_sql(f"SELECT {RAISE}").scalar() == raised
