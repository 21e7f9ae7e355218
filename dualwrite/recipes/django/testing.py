"""For tests of applications: see the records that would be published, without Kafka.

    with captured_records() as records:
        self.client.post("/orders/", {"item": "lamp"})
    self.assertEqual([(record.topic, record.value) for record in records], [("orders", b"lamp")])

In a `TestCase` nothing is ever committed, so nothing is published either, and records share the fate of their
savepoints. In a `TransactionTestCase` the database commits, and inside `captured_records()` it does so alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS

from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.django.sending import connection_of
from dualwrite.recipes.django.transaction import captured

__all__ = ["captured_records"]


@contextmanager
def captured_records(using: str = DEFAULT_DB_ALIAS) -> Iterator[list[BufferedRecord]]:
    """Collect the records of the transactions inside the block, of all threads, instead of publishing them.

    The list is complete when the block has ended. Raises TransactionDoomedError at the end of the block if, in a
    TestCase, the transaction could not have been committed: a `send` failed, and the error was swallowed. Raises
    ConfigError for a database without dual writes.
    """
    connection = connection_of(using)
    around = connection.open_dual_write
    before = [] if around is None else around.entries
    records: list[BufferedRecord] = []
    of_alias = captured.setdefault(using, [])
    of_alias.append(records)
    try:
        yield records
    finally:
        of_alias[:] = [each for each in of_alias if each is not records]
    connection.assert_begun()
    around = connection.open_dual_write
    if around is not None:
        around.assert_intact()
        records.extend(record for record in around.entries if not any(record is old for old in before))
