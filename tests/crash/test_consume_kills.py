"""Two workers of consume-transform-dual-write are killed and frozen again and again, so that partitions move.

Afterwards each input record is in the table and in the output topic exactly once, and in the order of its partition.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.guarantee import Tier
from dualwrite.producer import Producer
from dualwrite.recipes.consume.consume import forget_consumed_offsets
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.consuming_worker import ANOTHER_LOG, Task, carried, shelves, work
from tests.crash.scenario import make
from tests.producer.tiers import TIERS
from tests.support import topics
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase
from tests.support.forked_processes import processes
from tests.support.topics import read_topic

PARTITIONS = 4
RECORDS = 500
KILLS = 5
PAUSE_S = (0.1, 0.5)
SECONDS = float(os.environ.get("CONSUME_SECONDS", "2"))
"""How long workers are killed and frozen on each tier; with more than the default, in every combination."""

COMBINATIONS = [
    (Tier.STORED_PAIR, "aiokafka", "transaction"),
    (Tier.BOUNDED, "confluent-kafka, KIP-848", "database"),
    (Tier.BOUNDED_V1, "confluent-kafka", "database"),
]
if "CONSUME_SECONDS" in os.environ:
    COMBINATIONS = [
        (tier, library, place)
        for tier in (Tier.STORED_PAIR, Tier.BOUNDED, Tier.BOUNDED_V1)
        for library in ("kafka-python", "confluent-kafka", "confluent-kafka, KIP-848", "aiokafka")
        for place in ("database", "transaction")
        if (tier, library) != (Tier.BOUNDED_V1, "confluent-kafka, KIP-848")  # Kafka 4.0 has it
        and (place == "database" or tier is Tier.STORED_PAIR)  # on others such a block is refused
    ]


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(
        offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1, group_min_session_timeout_ms=500
    )
    with Emulator(config=config, topics={"in": PARTITIONS, "out": 1}) as running:
        yield running


class Workers:
    """Two of them, each started again when it was killed; forked from a process that has loaded everything."""

    def __init__(self, task: Task) -> None:
        self._context = processes()
        self._end, self._told_to_end = self._context.Pipe()
        self.tasks = [task._replace(transactional_id=f"carrier-{number}") for number in range(2)]
        self._running = [self._start(each) for each in self.tasks]

    def _start(self, task: Task) -> Any:
        process = self._context.Process(target=work, args=(task, self._told_to_end))
        process.start()
        return process

    def kill(self, number: int) -> None:
        """Kill with SIGKILL, and start it again."""
        assert not self.has_failed, "see what it wrote to stderr"
        self._running[number].kill()
        self._running[number].join()
        self._running[number] = self._start(self.tasks[number])

    def freeze(self, number: int, seconds: float) -> None:
        """Freeze with SIGSTOP, for longer than its session lasts: another one has its partitions when it wakes up."""
        os.kill(self._running[number].pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self._running[number].pid, signal.SIGCONT)

    def start_again(self) -> None:
        """Start workers again that have ended by themselves."""
        self._running = [
            process if process.exitcode is None else self._start(task)
            for process, task in zip(self._running, self.tasks, strict=True)
        ]

    @property
    def statuses(self) -> list[int | None]:
        """None for one that lives."""
        return [process.exitcode for process in self._running]

    @property
    def has_failed(self) -> bool:
        return any(process.exitcode is not None for process in self._running)

    def stop(self) -> list[int]:
        """Stop them in order; return their exit statuses."""
        self._end.send("end")  # they only look whether there is a message
        for process in self._running:
            process.join(60)
            process.kill()
            process.join()
        return [process.exitcode for process in self._running]


def rows(engine: sa.Engine) -> list[tuple[str, str]]:
    in_order = sa.select(carried.c.place, carried.c.body).order_by(carried.c.number)
    with engine.connect() as connection:
        return [(place, body) for place, body in connection.execute(in_order)]


def places_by_partition(records: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, _ in records:
        partition, offset = place.split("/")
        found.setdefault(partition, []).append(int(offset))
    return found


@pytest.mark.parametrize("place", ["database", "transaction"])
@pytest.mark.parametrize("library", ["kafka-python", "confluent-kafka", "aiokafka"])
def test_every_record_is_carried_once(emulator: Emulator, postgres: PostgresDatabase, library: str, place: str) -> None:
    engine = sa.create_engine(postgres.url)
    carried.metadata.create_all(engine)
    with Producer(bootstrap_servers=emulator.bootstrap_servers) as producer:
        for number in range(RECORDS):
            producer.send("in", f"record {number}", partition=number % PARTITIONS)
        producer.flush()
    given = [(f"{number % PARTITIONS}/{number // PARTITIONS}", f"record {number}") for number in range(RECORDS)]

    url = postgres.url.render_as_string(hide_password=False)
    workers = Workers(Task(url, emulator.bootstrap_servers, "", library, place))
    chance = random.Random(f"{library} {place}")
    try:
        until(lambda: len(rows(engine)) > 0)
        for _ in range(KILLS):
            time.sleep(chance.uniform(*PAUSE_S))
            workers.kill(chance.randrange(2))
        until(lambda: len(rows(engine)) >= RECORDS or workers.has_failed, 30)
    finally:
        statuses = workers.stop()
    assert statuses == [0, 0]
    for task in workers.tasks:
        with make(DualWriter, engine, emulator.bootstrap_servers, task.transactional_id) as writer:
            writer.recover()

    in_table, in_topic = rows(engine), read_topic(emulator.bootstrap_servers, "out")
    assert Counter(in_table) == Counter(given)
    assert Counter(in_topic) == Counter(given)
    for found in (in_table, in_topic) if place == "transaction" else (in_table,):
        assert all(offsets == sorted(offsets) for offsets in places_by_partition(found).values())
    engine.dispose()


class Site:
    """A broker of one tier, a database, a producer that fills the one and a transaction that locks the other."""

    def __init__(self, emulator: Emulator, engine: sa.Engine, chance: random.Random) -> None:
        self.emulator = emulator
        self.engine = engine
        self.given: list[tuple[str, str]] = []
        self._chance = chance
        self._filled = [0] * PARTITIONS
        self._ended = threading.Event()

    def fill(self, count: int, name: str) -> None:
        """Fill it by transactions, some of them aborted: a log with gaps."""
        with Producer(bootstrap_servers=self.emulator.bootstrap_servers, transactional_id="filler") as producer:
            producer.init_transactions()
            for number in range(0, count, 10):
                producer.begin_transaction()
                sent = [
                    (f"{name} {each}", producer.send("in", f"{name} {each}", partition=each % PARTITIONS))
                    for each in range(number, number + 10)
                ]
                if number + 10 < count and self._chance.random() < 0.2:
                    producer.abort_transaction()
                    continue
                producer.commit_transaction()
                stored = [(body, future.result()) for body, future in sent]
                self.given += [(f"{record.partition}/{record.offset}", body) for body, record in stored]

    def lock_shelves(self) -> None:
        """One after the other, each for longer than a handler waits."""
        with self.engine.connect() as connection:
            while not self._ended.wait(0.05):
                shelf = sa.select(shelves).where(shelves.c.shelf == self._chance.randrange(PARTITIONS))
                connection.execute(shelf.with_for_update())
                self._ended.wait(0.1)
                connection.rollback()

    def end(self) -> None:
        self._ended.set()


def assert_carried_once(site: Site, workers: Workers) -> None:
    for task in workers.tasks:
        with make(DualWriter, site.engine, site.emulator.bootstrap_servers, task.transactional_id) as writer:
            writer.recover()
    assert Counter(rows(site.engine)) == Counter(site.given)
    assert Counter(read_topic(site.emulator.bootstrap_servers, "out")) == Counter(site.given)


@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    ("tier", "library", "place"), COMBINATIONS, ids=[f"tier {tier}-{rest[0]}-{rest[1]}" for tier, *rest in COMBINATIONS]
)
def test_every_record_is_in_effect_once_on_the_kafka_of_today(
    postgres: PostgresDatabase, tier: Tier, library: str, place: str
) -> None:
    """Under kills, freezes, lock timeouts, errors of the consumer, and with a topic that is created anew."""
    engine = sa.create_engine(postgres.url)
    carried.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(shelves), [{"shelf": number} for number in range(PARTITIONS)])
    config = dataclasses.replace(
        TIERS[tier],
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        group_min_session_timeout_ms=500,
        group_consumer_session_timeout_ms=1_000,
        group_consumer_heartbeat_interval_ms=200,
    )
    chance = random.Random(f"{tier} {library} {place}")
    with Emulator(config=config, topics={"in": PARTITIONS, "out": 1}) as emulator:
        site = Site(emulator, engine, chance)
        site.fill(RECORDS // 10, "before")
        url = postgres.url.render_as_string(hide_password=False)
        workers = Workers(Task(url, emulator.bootstrap_servers, "", library, place, has_trouble=True))
        locking = threading.Thread(target=site.lock_shelves)
        locking.start()
        try:
            until(lambda: len(rows(engine)) > 0, 60)
            trouble_workers(workers, site, chance)
            until(lambda: len(rows(engine)) >= len(site.given) or workers.has_failed, 120)
            if place == "database":
                create_anew(workers, site)
        finally:
            site.end()
            locking.join()
            statuses = workers.stop()
        assert statuses == [0, 0]
        assert_carried_once(site, workers)
    engine.dispose()


def trouble_workers(workers: Workers, site: Site, chance: random.Random) -> None:
    end_s = time.monotonic() + SECONDS
    while time.monotonic() < end_s:
        site.fill(RECORDS // 25, f"{len(site.given)}:")
        time.sleep(chance.uniform(*PAUSE_S))
        if chance.random() < 0.6:
            workers.kill(chance.randrange(2))
        else:
            assert not workers.has_failed, "see what it wrote to stderr"
            workers.freeze(chance.randrange(2), chance.uniform(0.3, 1.5))


def create_anew(workers: Workers, site: Site) -> None:
    """All workers refuse to go on with another log, and go on once that is allowed.

    The new log is shorter than the old one, so that every worker has to read it from its beginning: one that happened
    to stand behind its last record would have nothing to compare before another one came.
    """
    topics.create_anew(site.emulator, "in", PARTITIONS)
    site.fill(RECORDS // 25, "anew")
    until(lambda: workers.statuses == [ANOTHER_LOG, ANOTHER_LOG], 60)
    assert forget_consumed_offsets(site.engine, "carriers", "in") == PARTITIONS
    workers.start_again()
    until(lambda: len(rows(site.engine)) >= len(site.given) or workers.has_failed, 120)
