"""Helpers for tests of repair: processes that fall asleep in a dual write, and ways in which Kafka aborts it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.errors import TransactionalIdNotFoundError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.core.proof import manifest_of
from dualwrite.recipes.core.publishing import Publishing
from dualwrite.recipes.recovery.service import Action, RecoveryReport, RecoveryService
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.producer.tiers import BOUNDED, TIERS, World
from tests.recipes.tiers import ROWS, rows, write, writer_of
from tests.support.conditions import until
from tests.support.databases import Database, SqliteDatabase
from tests.support.kafka_ids import kafka_id_of
from tests.support.topics import create_anew, read_topic

DEADLINE_S: Final = 30
EIGHT_DAYS_MS: Final = 8 * 24 * 3_600_000
FOREIGN: Final = "foreign"
"""The value of records that another program writes under the same transactional id."""

Use = Callable[[DualWriter], object]


async def leaves_unsettled(publishing: Publishing, timeout_ms: int) -> None:
    """Close as a process does that is killed, in place of `Publishing.settle_before_leaving`."""


@contextmanager
def site_of(
    tier: Tier, store: Database, *, nodes: int = 1, clock: VirtualClock | None = None, **settings: Any
) -> Iterator[Site]:
    """One dual-writing application on a broker of one tier, whose clock stands still."""
    topics = {"orders": 2, "others": 2}
    with Emulator(
        topics=topics, config=TIERS[tier], clock=clock or VirtualClock(), nodes=nodes, **settings
    ) as emulator:
        world = World(emulator, tier)
        site = Site(world, store)
        yield site
        for sleeper in site.asleep:
            sleeper.wake()
        for producer in world.made:
            producer.close(timeout_s=0)


def delete_records(bootstrap_servers: str, topic: str, partition: int = 0, before: int = -1) -> None:
    """Delete the records below an offset (-1: below the high watermark), as retention does."""
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    admin: Any = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        admin.delete_records({TopicPartition(topic, partition): before})
    finally:
        admin.close()


def lose_decided(bootstrap_servers: str, topic: str) -> None:
    """Abort a prepared transaction, as an operator does, and delete its records: it cannot be published again."""
    with TransactionAdmin(bootstrap_servers=bootstrap_servers) as admin:
        for each in admin.list_transactions(states=["Ongoing"]):
            admin.force_terminate_transaction(each.transactional_id)
    delete_records(bootstrap_servers, topic)


class Site:
    """Processes of an application with one transactional id, one database and one Kafka."""

    def __init__(self, world: World, store: Database) -> None:
        self.world = world
        self.emulator = world.emulator
        self.store = store
        self.kafka_id = kafka_id_of(store.aside, "tid")
        self.asleep: list[Sleeper] = []
        for topic in ("orders", "others"):  # an id expires before the records do
            self.emulator.set_config({"retention.ms": "-1"}, topic=topic)

    def writer(self, pause: PauseHook | None = None, **settings: Any) -> Any:
        """Return a new process's writer, to be used in a `with`."""
        return writer_of(self.world, self.store.aside, pause=pause, **settings)

    def writer_through_faults(self, pause: PauseHook | None = None, **settings: Any) -> Any:
        """Return a new process's writer, which faults of the store concern."""
        return writer_of(self.world, self.store.engine, pause=pause, **settings)

    def write(self, *values: str, **settings: Any) -> None:
        """Write each value by a dual write of a new process."""
        with self.writer(**settings) as writer:
            for value in values:
                write(writer, value)

    def recover(self, **settings: Any) -> Outcome:
        """Recover in a new process."""
        with self.writer(**settings) as writer:
            outcome: Outcome = next((found.outcome for found in writer.recover()), Outcome.NOTHING)
            return outcome

    def serviced(self, *, apply: bool = True, **settings: Any) -> RecoveryReport:
        """Return the report of a round of the recovery service."""
        given: dict[str, Any] = {"transactional_ids": ["tid"], "min_age_ms": 0, "timeout_ms": 10_000} | settings
        where = {"bootstrap_servers": self.emulator.bootstrap_servers}
        with RecoveryService(self.store.aside, **where | given) as service:
            return service.recover() if apply else service.plan()

    def falls_asleep(self, at: PausePoint, use: Use) -> Sleeper:
        """Let a process use its writer as far as `at`, and lose its database connection there."""
        sleeper = Sleeper(self, at, use)
        self.asleep.append(sleeper)
        sleeper.fall_asleep()
        return sleeper

    def decided(self, value: str = "decided") -> Sleeper:
        """Leave a decided dual write, by a process that sleeps before Kafka's commit."""
        return self.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, lambda writer: write(writer, value))

    def committed(self, topic: str = "orders") -> list[str]:
        """Return the application's values that consumers with read_committed see, in the order of the log."""
        self.world.settle()
        found = [value for _, value in read_topic(self.emulator.bootstrap_servers, topic)]
        return [value for value in found if value != FOREIGN]

    def assert_agreed(self, *expected: str) -> None:
        """Both sides have these values; Kafka has each once, and in this order."""
        assert self.committed() == list(expected)
        assert rows(self.store.aside) == sorted(expected)

    # ---- the state row ---------------------------------------------------------------------------------------

    def row(self) -> PreparedTxnState:
        """Return the prepared state in the row."""
        return PreparedTxnState(self._column("prepared_transaction_state"))

    def text(self) -> str | None:
        """Return the text beside the prepared state."""
        return self._column("manifest")

    def manifest(self) -> Manifest:
        """Return the manifest in the row."""
        found = manifest_of(self.row(), self.text() or "")
        assert found is not None
        return found

    def change_row(self, **values: str | None) -> None:
        """Change the row as an operator does, or another version of the library."""
        with self.store.aside.begin() as connection:
            connection.execute(kafka_transaction_state.update().values(values))

    def _column(self, name: str) -> str | None:
        with self.store.aside.connect() as connection:
            found: str | None = connection.scalar(sa.select(kafka_transaction_state.c[name]))
            return found

    # ---- the log ---------------------------------------------------------------------------------------------

    def delete_records(self, topic: str = "orders", partition: int = 0, *, before: int = -1) -> None:
        """Delete the records below an offset (-1: below the high watermark), as retention does."""
        delete_records(self.emulator.bootstrap_servers, topic, partition, before)

    def recreate(self, topic: str = "orders") -> None:
        """Delete a topic, and create it anew."""
        create_anew(self.emulator, topic, 2)


class Sleeper:
    """A process that uses its writer in a thread, and sleeps at a pause point; its database connection is lost then."""

    def __init__(self, site: Site, at: PausePoint, use: Use) -> None:
        self._site = site
        self._at = at
        self._use = use
        self._database = site.store.another_client()
        self._reached = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            settings = {"max_block_ms": 60_000, "pause": self._pause}
            with writer_of(self._site.world, self._database.engine, **settings) as writer:
                self._use(writer)
        except BaseException as error:
            self.error = error

    def _pause(self, point: PausePoint) -> None:
        if point is self._at and not self._reached.is_set():
            self._reached.set()
            self._woken.wait(DEADLINE_S)

    def fall_asleep(self) -> None:
        """Return when it sleeps, and has no connection to the database any more."""
        self._thread.start()
        until(lambda: self._reached.is_set() or not self._thread.is_alive())
        assert self._reached.is_set(), f"it has ended before {self._at}: {self.error!r}"
        self._database.cut()
        if self._at is PausePoint.AFTER_SEND:
            until(self._is_sent)  # by the I/O thread, which does not sleep

    def _is_sent(self) -> bool:
        found = self._site.emulator.transactions()
        return any(each.transactional_id == self._site.kafka_id and each.state == "Ongoing" for each in found)

    def rouse(self) -> None:
        """Let it go on where it was, beside other processes."""
        self._woken.set()

    def wake(self) -> None:
        """Let it go on where it was, and wait for its end. Harmless when repeated."""
        self.rouse()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


# ---- ways in which a transaction ends without its owner -------------------------------------------------------------


class Way(StrEnum):
    """A way in which a process's leftover transaction ends, and the trace that it leaves."""

    TIMEOUT = "the broker's timeout"
    OPERATOR = "an operator aborts it"
    INITIALISED = "another program initialises the id, which erases the trace"
    USED = "another program commits a transaction of its own under the id, in the same partition"
    MISUSED = "another program aborts a transaction of its own under the id, in the same partition"
    EXPIRED = "an operator aborts it, and then the id expires"
    USED_AFTER_EXPIRY = "the id expires, and another program uses it"
    MOVED = "an operator aborts it, and its coordinator fails over"
    KILLED = "an operator aborts it, and the broker is killed and started again"


def ways_of(tier: Tier) -> list[Way]:
    """Return the possible ways on brokers of a tier; without a bound, time aborts no transaction."""
    return [way for way in Way if way is not Way.TIMEOUT or tier in BOUNDED]


def nodes_for(way: Way) -> int:
    """Return how many brokers it takes."""
    return 3 if way is Way.MOVED else 1


def let_end(site: Site, way: Way) -> None:
    """Let the id's open transaction be aborted in that way."""
    _WAYS[way](site)
    site.world.settle()


def _by_timeout(site: Site) -> None:
    site.world.abort_by_timeout()


def _by_operator(site: Site) -> None:
    with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
        try:
            admin.force_terminate_transaction(site.kafka_id)
        except TransactionalIdNotFoundError:
            assert not [each for each in site.emulator.transactions() if each.transactional_id == site.kafka_id]


def _by_initialising(site: Site) -> None:
    site.world.ready(transactional_id=site.kafka_id).close(timeout_s=0)


def _by_using(site: Site, *, commits: bool = True) -> None:
    producer = site.world.ready(transactional_id=site.kafka_id)
    producer.begin_transaction()
    producer.send("orders", FOREIGN, partition=0).result(60)
    if commits:
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    producer.close(timeout_s=0)


def _by_misusing(site: Site) -> None:
    _by_using(site, commits=False)


def _and_expiry(site: Site) -> None:
    _by_operator(site)
    site.world.settle()
    site.emulator.advance_clock(EIGHT_DAYS_MS)
    until(lambda: not site.emulator.transactions())


def _and_expiry_and_using(site: Site) -> None:
    _and_expiry(site)
    _by_misusing(site)


def _and_failover(site: Site) -> None:
    _by_operator(site)
    site.world.settle()
    coordinator = site.emulator.coordinator(transactional_id=site.kafka_id)
    site.emulator.crash_node(coordinator)
    assert site.emulator.coordinator(transactional_id=site.kafka_id) != coordinator


def _and_restart(site: Site) -> None:
    _by_operator(site)
    site.world.settle()
    site.emulator.crash_node(0)
    site.emulator.start_node(0)


_WAYS: Final[dict[Way, Callable[[Site], None]]] = {
    Way.TIMEOUT: _by_timeout,
    Way.OPERATOR: _by_operator,
    Way.INITIALISED: _by_initialising,
    Way.USED: _by_using,
    Way.MISUSED: _by_misusing,
    Way.EXPIRED: _and_expiry,
    Way.USED_AFTER_EXPIRY: _and_expiry_and_using,
    Way.MOVED: _and_failover,
    Way.KILLED: _and_restart,
}


def acknowledge(store: Database, emulator: Emulator, transactional_id: str = "tid") -> None:
    """Acknowledge that the row is older than Kafka's state, as an operator does after repairing one side."""
    settings: dict[str, Any] = {"acknowledge_lost": [transactional_id], "min_age_ms": 0, "timeout_ms": 10_000}
    with RecoveryService(store.aside, bootstrap_servers=emulator.bootstrap_servers, **settings) as service:
        (found,) = service.recover().found
    assert (found.action, found.changed) == (Action.ACKNOWLEDGE, True)


def sqlite_store(directory: Any) -> SqliteDatabase:
    """Return an empty database with the table of the application."""
    store = SqliteDatabase(directory)
    ROWS.metadata.create_all(store.aside)
    return store
