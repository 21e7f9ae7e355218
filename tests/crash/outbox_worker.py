"""Processes with an outbox that write blocks 1, 2, ... and kill or stop themselves; see `killed.py`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from dualwrite.delivery import Outbox
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.styles import Style

LEASE_MS: Final = 300
BLOCKS: Final = 4
_PATIENCE_S: Final = 30.0


def is_publisher() -> bool:
    """Return whether the current thread, or task, is an outbox's publisher."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    name = threading.current_thread().name if task is None else task.get_name()
    return name.endswith("-publisher")


class AtPointOf:
    """A pause hook that acts once: when blocks, or else the publisher, come to a point while it is armed."""

    def __init__(
        self, point: PausePoint, act: Callable[[], None], *, of_publisher: bool, is_armed: bool = True
    ) -> None:
        self._point = point
        self._act = act
        self._of_publisher = of_publisher
        self.is_armed = is_armed

    def __call__(self, point: PausePoint) -> None:
        if self.is_armed and point is self._point and is_publisher() is self._of_publisher:
            self.is_armed = False
            self._act()


def main(options: list[str]) -> None:
    """Write blocks until it is killed at a point, by blocks or by the publisher, at the first or a later time."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name in ("--style", "--database-url", "--bootstrap-servers", "--prefix", "--topic", "--point"):
        parser.add_argument(name, required=True)
    parser.add_argument("--publisher", action="store_true", help="kill it where the publisher is at the point")
    parser.add_argument("--later", action="store_true", help="not before something was published")
    parser.add_argument("--first", type=int, default=1, help="the number of the first block")
    arguments = parser.parse_args(options)
    kill = AtPointOf(
        PausePoint(arguments.point),
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        of_publisher=arguments.publisher,
        is_armed=not arguments.later,
    )
    style = Style(
        arguments.style,
        sa.make_url(arguments.database_url),
        arguments.topic,
        prefix=arguments.prefix,
        bootstrap_servers=arguments.bootstrap_servers,
        lease_ms=LEASE_MS,
        delivery=Outbox(),
        pause=kill,
    )
    with style:
        if arguments.later:
            style.write(100)
            style.recover()
            kill.is_armed = True
        for number in range(arguments.first, arguments.first + BLOCKS):
            style.write(number)
        time.sleep(_PATIENCE_S)  # the publisher is on its way
    raise SystemExit(f"still alive after {arguments.point}")
