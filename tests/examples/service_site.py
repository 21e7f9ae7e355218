"""A database and a broker after the kills of their services, and the side that lags.

The test that they agree waits for a limit. If they do not, its error is evidence: missing and superfluous entries of
each side, transactions open or in doubt, the records that they hide from readers, the progress of the group, waits of
the database, and the last log of the last life.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.examples.service_lives import Surroundings
from tests.support.conditions import until
from tests.support.topics import read_log

TOPICS: Final = ("orders", "invoices", "orders-refused")
LAST: Final = "last"
"""The name of the life during which both sides have to come to agree."""

Entries = Counter[tuple[str, str]]


@dataclass(frozen=True)
class Side:
    """One of the places that have to have the same entries in the end."""

    name: str
    found: Callable[[], Entries]
    expected: Entries

    @property
    def agrees(self) -> bool:
        return self.found() == self.expected

    @property
    def lacks(self) -> int:
        """How many entries are missing."""
        return (self.expected - self.found()).total()

    def difference(self) -> str:
        found = self.found()
        missing, extra = self.expected - found, found - self.expected
        return (
            f"{self.name}: {found.total()} of {self.expected.total()}; {missing.total()} missing {_some(missing)}, "
            f"{extra.total()} too many {_some(extra)}"
        )


def _some(entries: Entries) -> str:
    return str([*entries.elements()][:5])


class Site:
    """A database and a broker that outlive the services."""

    def __init__(self, postgres: PostgresServer, emulator: Emulator, name: str, logs: Path) -> None:
        url = postgres.create_database(name)
        servers = emulator.bootstrap_servers
        self.around: Final = Surroundings(url.render_as_string(hide_password=False), servers, logs)
        self.servers: Final = servers
        self._engine = sa.create_engine(url, poolclass=sa.NullPool)
        for topic in TOPICS:
            emulator.create_topic(topic, 2)

    def create_tables(self, metadata: sa.MetaData) -> None:
        """Create the tables of a service, as a migration does before several processes start."""
        metadata.create_all(self._engine)

    # ---- both sides -----------------------------------------------------------------------------------------

    def rows(self, query: str, expected: Entries) -> Side:
        """Return the side of the database: the pairs that a query has."""

        def found() -> Entries:
            return Counter((str(row[0]), str(row[1])) for row in self._select(query))

        return Side("rows", found, expected)

    def records(self, topic: str, expected: Entries) -> Side:
        """Return the side of Kafka: key and value of the records that readers see in a topic."""
        return Side(f"records of {topic}", lambda: self._records(topic, "read_committed"), expected)

    def _records(self, topic: str, isolation_level: str) -> Entries:
        log = read_log(self.servers, topic, isolation_level=isolation_level)
        return Counter((record.key, record.value) for record in log)

    def await_agreement(self, *sides: Side, limit_s: float) -> float:
        """Wait until all sides have the expected entries, and return for how many seconds. Fails with the evidence."""
        started_s = time.monotonic()
        try:
            until(lambda: all(side.agrees for side in sides), limit_s)
        except AssertionError as error:
            raise AssertionError("\n".join([f"the sides differ: {error}", *self.evidence(*sides)])) from None
        return time.monotonic() - started_s

    # ---- evidence -------------------------------------------------------------------------------------------

    def evidence(self, *sides: Side) -> Iterator[str]:
        """Describe the side that lags, and its possible reasons."""
        yield from (side.difference() for side in sides)
        yield from self._transactions()
        yield from self._hidden()
        yield from self._group()
        for query in (
            "SELECT * FROM kafka_transaction_lease",
            "SELECT transactional_id, prepared_transaction_state, updated_at FROM kafka_transaction_state",
            "SELECT * FROM kafka_consumed_offset",
            "SELECT pid, state, wait_event_type, wait_event, now() - xact_start AS age, left(query, 100)"
            " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        ):
            yield from self._table(query)
        yield self.around.end_of(LAST)

    def _transactions(self) -> Iterator[str]:
        with TransactionAdmin(bootstrap_servers=self.servers) as admin:
            for listed in admin.list_transactions():
                yield f"transaction {admin.describe_transaction(listed.transactional_id)}"

    def _hidden(self) -> Iterator[str]:
        for topic in TOPICS:
            hidden = self._records(topic, "read_uncommitted") - self._records(topic, "read_committed")
            yield f"{topic}: {hidden.total()} records aborted or not yet visible {_some(hidden)}"

    def _group(self) -> Iterator[str]:
        admin = AdminClient({"bootstrap.servers": self.servers})
        for name in [each.group_id for each in admin.list_consumer_groups().result().valid]:
            described = admin.describe_consumer_groups([name])[name].result()
            members = [
                f"{each.member_id} {[f'{at.topic}-{at.partition}' for at in each.assignment.topic_partitions]}"
                for each in described.members
            ]
            yield f"group {name}: {described.state.name}, members {members}"
            offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result()
            yield f"group {name}: offsets in Kafka {offsets.topic_partitions}"

    def _table(self, query: str) -> Iterator[str]:
        try:
            rows = self._select(query)
        except sa.exc.ProgrammingError:
            return  # this service has no such table
        yield query
        yield from (f"  {row}" for row in rows)

    def _select(self, query: str) -> list[tuple[object, ...]]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]
