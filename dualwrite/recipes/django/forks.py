"""What a forked child must not use: the connections of its parent, whose sockets it has too.

Django leaves them as they are. A server that forks after the application has asked the database something (gunicorn
with `--preload`) would have its workers write in one session, where the COMMIT of one makes half of another's
transaction visible.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol


class Connected(Protocol):
    """What may have a connection to a database."""

    def leave_to_parent(self) -> None:
        """Give up the connection in a forked child, and send nothing on it."""


_connected: Final[weakref.WeakSet[Connected]] = weakref.WeakSet()

_abandoned: Final[list[Any]] = []
"""Connections of the parent, kept from the garbage collector, with which a driver may say goodbye on their sockets."""


def leave_at_fork(connected: Connected) -> None:
    """Call `leave_to_parent` in each child that is forked from now on. Harmless when repeated."""
    _connected.add(connected)


def abandon(connection: Any) -> None:
    """Keep something of the parent for as long as this process lives, without using it."""
    _abandoned.append(connection)


def in_each_child(do: Callable[[], object]) -> None:
    """Call `do` in each child that is forked from now on, before anything else happens there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=do)


def _leave_all() -> None:
    for each in list(_connected):
        each.leave_to_parent()


in_each_child(_leave_all)
