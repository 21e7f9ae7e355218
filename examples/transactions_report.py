"""Report open and hanging transactions: `python -m examples.transactions_report HOST:PORT`.

Exits with status 1 if a transaction hangs, or if a broker could not be queried.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from dualwrite.admin import HangingTransaction, TransactionAdmin, TransactionDescription
from dualwrite.errors import IncompleteAnswerError

T = TypeVar("T")

OPEN_STATES = ["Ongoing", "PrepareCommit", "PrepareAbort"]


def report(admin: TransactionAdmin) -> tuple[list[str], bool]:
    """Return the lines of the report, and whether all is well."""
    unseen: list[str] = []
    listed = _partial_if_incomplete(lambda: admin.list_transactions(states=OPEN_STATES), unseen)
    ids = [row.transactional_id for row in listed]
    described = _partial_if_incomplete(lambda: admin.describe_transactions(ids), unseen)
    hanging = _partial_if_incomplete(admin.find_hanging, unseen)
    lines = [_open(found) for found in described.values() if found is not None]
    lines += [_hanging(found) for found in hanging]
    lines += [f"not seen: {reason}" for reason in dict.fromkeys(unseen)]
    return lines or ["no transaction is open"], not hanging and not unseen


def _partial_if_incomplete(query: Callable[[], T], unseen: list[str]) -> T:
    try:
        return query()
    except IncompleteAnswerError as error:
        unseen.extend(map(str, error.failures.values()))
        partial: T = error.partial
        return partial


def _open(found: TransactionDescription) -> str:
    where = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(found.topic_partitions))
    started_ms = found.transaction_start_time_ms
    age = "" if started_ms is None else f" for {time.time() - started_ms / 1000:.0f} s"
    limit = f"times out after {found.transaction_timeout_ms / 1000:.0f} s" if found.has_timeout else "has no timeout"
    producer = f"producer {found.producer_id} epoch {found.producer_epoch}"
    return f"{found.transactional_id}: {found.state}{age} on {where or 'nothing yet'}, {limit}, {producer}"


def _hanging(found: HangingTransaction) -> str:
    topic, partition = found.topic_partition
    age_s = time.time() - found.last_timestamp_ms / 1000
    return (
        f"HANGING on {topic}-{partition} since offset {found.start_offset}: "
        f"producer {found.producer_id} epoch {found.producer_epoch}, "
        f"id {found.transactional_id or 'unknown'}, last record {age_s:.0f} s ago"
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m examples.transactions_report HOST:PORT")
    with TransactionAdmin(bootstrap_servers=sys.argv[1]) as administration:
        written, all_is_well = report(administration)
    print("\n".join(written))
    sys.exit(0 if all_is_well else 1)
