"""A process that forks: neither its transaction nor its pool is used by the child."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

import django
import pytest
from django.db import ProgrammingError, connections

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import IllegalStateError
from dualwrite.recipes.django import send
from tests.django.project import Shop, shop_on
from tests.support.databases import PostgresDatabase

SESSION = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}


def in_a_child(do: Callable[[], object]) -> None:
    """Fork, and fail if the child does. It ends without the exit handlers of the tests."""
    child = os.fork()
    if not child:
        try:
            do()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def session(shop: Shop) -> int:
    """The process of the server that serves this thread's connection."""
    with connections[shop.alias].cursor() as cursor:
        cursor.execute(SESSION[connections[shop.alias].vendor])
        return int(cursor.fetchone()[0])


def test_a_child_has_ids_of_its_own(shop: Shop) -> None:
    """As a worker of a server that has loaded the application, and written, before it forked."""
    with shop.atomic():
        shop.put(1)

    def work() -> None:
        with shop.atomic():
            assert shop.put(2).transactional_id is None
            write = shop.put(3)
        assert write.transactional_id == f"django-{shop.alias}-1"

    in_a_child(work)
    with shop.atomic():
        write = shop.put(4)
    assert write.transactional_id == f"django-{shop.alias}-0"
    assert shop.written() == ["1", "2", "3", "4"]


def write_in_a_new_session(shop: Shop, before: int) -> None:
    assert session(shop) != before
    with shop.atomic():
        shop.put(1)


def test_a_child_connects_anew(shop: Shop) -> None:
    """As a worker of a server that has queried the database before it forked: a socket is of one process."""
    before = session(shop)
    in_a_child(lambda: write_in_a_new_session(shop, before))
    assert session(shop) == before
    with shop.atomic():
        shop.put(2)
    assert shop.written() == ["1", "2"]


@pytest.mark.skipif(django.VERSION < (5, 1), reason="Django has pools since 5.1")
@pytest.mark.parametrize("is_in_pool", [True, False])
@pytest.mark.parametrize("engine", ["dualwrite.recipes.django.postgresql", "tests.django.engine"])
def test_a_child_makes_a_pool_of_connections_of_its_own(
    postgres: PostgresDatabase, emulator: Emulator, is_in_pool: bool, engine: str
) -> None:
    options = {"pool": {"min_size": 1, "max_size": 1}}
    with shop_on(postgres, emulator, ENGINE=engine, OPTIONS=options) as shop:
        before = session(shop)
        if is_in_pool:
            connections[shop.alias].close()
        in_a_child(lambda: write_in_a_new_session(shop, before))
        assert session(shop) == before
        with shop.atomic():
            shop.put(2)
        assert shop.written() == ["1", "2"]
        connections[shop.alias].close()
        connections[shop.alias].close_pool()  # type: ignore[attr-defined]


@pytest.mark.parametrize("has_sent", [True, False])
def test_a_child_inside_the_block_sends_no_statement(shop: Shop, has_sent: bool) -> None:
    def write() -> None:
        with pytest.raises(IllegalStateError if has_sent else ProgrammingError):
            shop.insert(2)

    with shop.atomic():
        shop.insert(1)
        if has_sent:
            send(shop.topic, "1", using=shop.alias)
        in_a_child(write)
        if not has_sent:
            send(shop.topic, "1", using=shop.alias)
    assert shop.written() == ["1"]


@pytest.mark.parametrize("ends_with", ["commit", "rollback", "send"])
def test_a_child_inside_the_block_cannot_touch_the_parents_transaction(shop: Shop, ends_with: str) -> None:
    def leave_block() -> None:
        connection = connections[shop.alias]
        if ends_with == "send":
            with pytest.raises(IllegalStateError, match="process that forked"):
                send(shop.topic, "x", using=shop.alias)
            return
        connection.in_atomic_block = False
        if ends_with == "commit":
            with pytest.raises(IllegalStateError, match="process that forked"):
                connection.commit()
        else:
            connection.rollback()
        assert connection.connection is None

    with shop.atomic():
        shop.put(1)
        in_a_child(leave_block)
        shop.put(2)
    assert shop.written() == ["1", "2"]
