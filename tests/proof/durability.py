"""The fate of commits: visible is not always durable, and durable is not for ever.

The database's log is one sequence. A commit whose COMMIT got its response is on the standby, with all commits before
it. One whose wait for the standby ended in another way (a lost connection, a killed process) is visible on the primary,
and a failover may drop it, with all commits behind it. A restore takes back even durable commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.proof.outbox_model import EMPTY, Outbox


class Snapshot(NamedTuple):
    """The visible contents of the database at one moment."""

    row: tuple[str, str]
    table: frozenset[bytes]
    outbox: Outbox = EMPTY
    beside: tuple[tuple[str, str], ...] = ()
    """The rows of the other ids of a pool; those that are missing are empty."""


class Past(NamedTuple):
    """The states that the database may go back to, and its losses by a restore. Empty where no fault needs it."""

    undurable: tuple[Snapshot, ...] = ()
    """The states before each commit that is visible and not durable, oldest first."""
    backups: tuple[Snapshot, ...] = ()
    """All earlier states, oldest first."""
    gone: frozenset[bytes] = frozenset()
    """The commits that a restore has lost."""
    is_restored: bool = False
    must_tell: bool = False
    """Whether the restore has to be reported, if Kafka still shows some of the lost commits."""


def after_commit(past: Past, before: Snapshot, *, confirmed: bool, may_fail_over: bool, may_restore: bool) -> Past:
    """Return the past after a commit. `confirmed`: the standby has it, and so everything before it."""
    undurable = () if confirmed or not may_fail_over else (*past.undurable, before)
    backups = (*past.backups, before) if may_restore and before not in past.backups else past.backups
    return past._replace(undurable=undurable, backups=backups)


def failovers(past: Past, now: Snapshot) -> Iterator[tuple[Snapshot, Past]]:
    """Yield the states in which the standby may take over, each with its past."""
    yield now, past._replace(undurable=())
    for at, state in enumerate(past.undurable):
        yield state, past._replace(undurable=past.undurable[:at])


def restores(past: Past, now: Snapshot) -> Iterator[tuple[Snapshot, Past]]:
    """Yield the older states that may be restored."""
    for state in past.backups:
        if state != now:
            yield state, Past(gone=past.gone | (now.table - state.table), is_restored=True)
