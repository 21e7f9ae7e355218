"""Find the transactions that belong to a test, which gets their records instead of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from dualwrite.recipes.core.buffer import BufferedRecord


class Capture(NamedTuple):
    """The destination of a transaction's records that are not published."""

    keep: Callable[[Iterable[BufferedRecord]], object] | None
    """Called with the records when the database has committed; None if it never does."""


captured: Final[dict[str, list[list[BufferedRecord]]]] = {}
"""By alias, the lists of the open `captured_records()`, for all threads: a live server has its own."""


def capture_of(connection: BaseDatabaseWrapper) -> Capture | None:
    """Return the capture of a transaction that sends its first record now; None if its records are published."""
    if any(getattr(atomic, "_from_testcase", False) for atomic in connection.atomic_blocks):
        return Capture(None)
    lists = captured.get(connection.alias)
    return Capture(lists[-1].extend) if lists else None
