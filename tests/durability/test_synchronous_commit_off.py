"""`synchronous_commit=off`, by whichever way, and a server that crashes right after the dual write."""

from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from tests.durability.faces import FACES, TABLE, TOPIC, rows
from tests.support.postgres_pair import PostgresNode
from tests.support.topics import read_topic

WAYS = ("role", "database", "url", "in the block", "remote_write in the block")
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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", FACES)
def test_a_crash_right_after_the_decision_loses_neither_side(
    kind: str, way: str, one_node: PostgresNode, emulator: Emulator
) -> None:
    if kind == "asyncpg" and way == "url":
        pytest.skip("asyncpg takes no options in its URL")
    url = url_with_it_off(one_node, way, f"test_{next(_numbers)}")
    before = {"in the block": "off", "remote_write in the block": "remote_write"}.get(way)
    lowered = () if before is None else (f"SET LOCAL synchronous_commit = {before}",)
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
        connection.exec_driver_sql(TABLE)
    face = FACES[kind](url, emulator.bootstrap_servers, "writer")
    face.write(1, *lowered)
    face.write(2, *lowered)
    one_node.crash()
    one_node.start()
    found = rows(url)
    records = [int(value) for _, value in read_topic(emulator.bootstrap_servers, TOPIC)]
    face.close()
    assert found == records == [1, 2]
