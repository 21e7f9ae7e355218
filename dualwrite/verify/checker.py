"""Check a history: the one verdict of the simulator, of the chaos runs, and of `dualwrite verify`."""

from __future__ import annotations

from collections.abc import Iterable

from dualwrite.verify.anomalies import Report
from dualwrite.verify.at_rest import differences, falsehoods
from dualwrite.verify.book import Book
from dualwrite.verify.dependencies import dependencies, swapped
from dualwrite.verify.history import Event
from dualwrite.verify.polls import offsets_going_back, seen_by_readers


def check(events: Iterable[Event]) -> Report:
    """Return all findings in a history. Raises HistoryError if it contradicts itself.

    It has to be complete: rows and records at rest are read from the beginning, after all processes have ended.
    """
    book = Book(events)
    findings = (
        *differences(book),
        *falsehoods(book),
        *seen_by_readers(book),
        *offsets_going_back(book),
        *swapped(book),
        *dependencies(book),
    )
    committed = sum(known.is_committed for known in book.known.values())
    return Report(
        findings,
        dual_writes=len(book.known),
        committed=committed,
        rolled_back=len(book.known) - committed,
        records=sum(len(known.records) for known in book.known.values()),
        read=sum(len(poll.records) for poll in book.committed_polls()),
    )
