"""Two workers that consume, transform and dual-write are killed again and again, so that partitions move all the time.

Afterwards each input record is in the table and in the output topic exactly once, and in the order of its partition.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.producer import Producer
from tests.crash.consuming_worker import Task, carried, work
from tests.crash.scenario import make_writer
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase
from tests.support.forked_processes import processes
from tests.support.topics import read_topic

PARTITIONS = 4
RECORDS = 500
KILLS = 5
PAUSE_S = (0.1, 0.5)


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
        """With SIGKILL, and start it again."""
        assert not self.has_failed, "see what it wrote to stderr"
        self._running[number].kill()
        self._running[number].join()
        self._running[number] = self._start(self.tasks[number])

    @property
    def has_failed(self) -> bool:
        return any(process.exitcode is not None for process in self._running)

    def stop(self) -> list[int]:
        """In order; their exit statuses."""
        self._end.send("end")  # that something is there is all they look at
        for process in self._running:
            process.join(15)
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
def test_every_record_is_carried_once(emulator: Emulator, postgres_server: object, library: str, place: str) -> None:
    database = PostgresDatabase(postgres_server)  # type: ignore[arg-type]
    engine = sa.create_engine(database.url)
    carried.metadata.create_all(engine)
    with Producer(bootstrap_servers=emulator.bootstrap_servers) as producer:
        for number in range(RECORDS):
            producer.send("in", f"record {number}", partition=number % PARTITIONS)
        producer.flush()
    given = [(f"{number % PARTITIONS}/{number // PARTITIONS}", f"record {number}") for number in range(RECORDS)]

    url = database.url.render_as_string(hide_password=False)
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
        with make_writer(engine, emulator.bootstrap_servers, task.transactional_id) as writer:
            writer.recover()

    in_table, in_topic = rows(engine), read_topic(emulator.bootstrap_servers, "out")
    assert Counter(in_table) == Counter(given)
    assert Counter(in_topic) == Counter(given)
    for found in (in_table, in_topic) if place == "transaction" else (in_table,):
        assert all(offsets == sorted(offsets) for offsets in places_by_partition(found).values())
    engine.dispose()
    database.close()
