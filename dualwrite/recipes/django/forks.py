"""The connections that a forked child must not use: its parent's, whose sockets it inherits.

Django leaves them as they are. If a server forks after the application has queried the database (gunicorn with
`--preload`), its workers would write in one session, and the COMMIT of one would make half of another's transaction
visible.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Final

_connected: Final[weakref.WeakSet[Any]] = weakref.WeakSet()

_abandoned: Final[list[Any]] = []
"""The parent's connections, kept from the garbage collector: a closing driver may send a farewell on their sockets."""


def leave_at_fork(connected: Any) -> None:
    """Call `leave_to_parent` of the object in each child that is forked from now on. Harmless when repeated."""
    _connected.add(connected)


def abandon(connection: Any) -> None:
    """Keep a connection of the parent for as long as this process lives, without using it."""
    _abandoned.append(connection)


def in_each_child(do: Callable[[], object]) -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=do)


def _leave_all() -> None:
    for each in list(_connected):
        each.leave_to_parent()


in_each_child(_leave_all)
