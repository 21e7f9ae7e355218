"""A process that forks: neither its transaction nor its pool is used by the child."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

import pytest
from django.db import connections

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.django import send
from tests.django.project import Shop


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


def forget_connection(shop: Shop) -> None:
    """Do as a worker process does that connects after the fork."""
    connections[shop.alias].connection = None


def test_a_child_has_ids_of_its_own(shop: Shop) -> None:
    """As a worker of a server that has loaded the application, and written, before it forked."""
    with shop.atomic():
        shop.put(1)

    def work() -> None:
        forget_connection(shop)
        with shop.atomic():
            assert shop.put(2).transactional_id is None
            write = shop.put(3)
        assert write.transactional_id == f"django-{shop.alias}-1"

    in_a_child(work)
    with shop.atomic():
        write = shop.put(4)
    assert write.transactional_id == f"django-{shop.alias}-0"
    assert shop.written() == ["1", "2", "3", "4"]


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
