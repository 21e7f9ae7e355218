"""A process with Django whose threads write until it kills itself at a pause point."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import threading
from contextlib import suppress

import sqlalchemy as sa
from django.db import connections, transaction

from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.django_scenario import add_django_alias
from tests.crash.scenario import OrdinaryError
from tests.django.project import INSERT

THREADS = 3
LEASE_MS = 500
DROPPED = "dropped"
"""Marks the bodies of rows that are rolled back with a savepoint."""


def main(options: list[str]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name in ("--database-url", "--bootstrap-servers", "--transactional-id", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--life", type=int, required=True)
    parser.add_argument("--points", type=int, required=True, help="how many are passed before the one that kills")
    given = parser.parse_args(options)
    left = itertools.count(given.points, -1)

    def pause(point: PausePoint) -> None:
        if next(left) <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    url = sa.make_url(given.database_url)
    add_django_alias("shop", url, given.bootstrap_servers, given.transactional_id, pause=pause, lease_ms=LEASE_MS)
    numbers = itertools.count(given.life * 100_000)
    threads = [threading.Thread(target=_write_on, args=(given.topic, numbers)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _write_on(topic: str, numbers: itertools.count[int]) -> None:
    while True:
        with transaction.atomic(using="shop"):
            _put(topic, number := next(numbers), str(number))
            with suppress(OrdinaryError), transaction.atomic(using="shop"):
                _put(topic, next(numbers), DROPPED)
                raise OrdinaryError


def _put(topic: str, number: int, body: str) -> None:
    from dualwrite.recipes.django import send

    with connections["shop"].cursor() as cursor:
        cursor.execute(INSERT, (number, body))
    send(topic, value=body, key="k", using="shop")
