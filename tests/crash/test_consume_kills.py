"""Two workers that consume, transform and dual-write are killed again and again, so that partitions move all the time.

Afterwards each input record is in the table and in the output topic exactly once, and in the order of its partition.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.producer import Producer
from tests.crash.consuming_worker import carried
from tests.crash.scenario import make_writer
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase
from tests.support.topics import read_topic

PARTITIONS = 4
RECORDS = 1_200
KILLING_S = 3.5
PAUSE_S = (0.2, 0.9)


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(
        offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1, group_min_session_timeout_ms=500
    )
    with Emulator(config=config, topics={"in": PARTITIONS, "out": 1}) as running:
        yield running


class Workers:
    """Two of them, each started again when it was killed."""

    def __init__(self, options: Sequence[str]) -> None:
        self._options = options
        self.ids = ("carrier-0", "carrier-1")
        self._running = {transactional_id: self._start(transactional_id) for transactional_id in self.ids}

    def _start(self, transactional_id: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.crash.consuming_worker", "--transactional-id", transactional_id]
        return subprocess.Popen([*command, *self._options], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill(self, transactional_id: str) -> None:
        """With SIGKILL, and start it again."""
        self.assert_alive()
        self._running[transactional_id].kill()
        self._running[transactional_id].communicate()
        self._running[transactional_id] = self._start(transactional_id)

    def assert_alive(self) -> None:
        for process in self._running.values():
            assert process.poll() is None, process.communicate()[1]

    def stop(self) -> list[int]:
        """In order; their exit statuses."""
        for process in self._running.values():
            assert process.stdin is not None
            process.stdin.close()
        try:
            return [process.wait(15) for process in self._running.values()]
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()
                assert process.stderr is not None
                process.stderr.close()


def rows(engine: sa.Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        return [(place, body) for place, body in connection.execute(sa.select(carried))]


def places_by_partition(records: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, _ in records:
        partition, offset = place.split("/")
        found.setdefault(partition, []).append(int(offset))
    return found


@pytest.mark.parametrize("place", ["database", "transaction"])
@pytest.mark.parametrize("library", ["kafka-python", "confluent-kafka"])
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
    options = ["--database-url", url, "--bootstrap-servers", emulator.bootstrap_servers]
    workers = Workers([*options, "--library", library, "--place", place])
    chance = random.Random(f"{library} {place}")
    try:
        killing_until_s = time.monotonic() + KILLING_S
        while time.monotonic() < killing_until_s:
            time.sleep(chance.uniform(*PAUSE_S))
            workers.kill(chance.choice(workers.ids))
        until(lambda: workers.assert_alive() is None and len(rows(engine)) >= RECORDS, 30)
    finally:
        statuses = workers.stop()
    assert statuses == [0, 0]
    for transactional_id in workers.ids:
        with make_writer(engine, emulator.bootstrap_servers, transactional_id) as writer:
            writer.recover()

    in_table, in_topic = rows(engine), read_topic(emulator.bootstrap_servers, "out")
    assert Counter(in_table) == Counter(given)
    assert Counter(in_topic) == Counter(given)
    for found in (in_table, in_topic) if place == "transaction" else (in_table,):
        assert all(offsets == sorted(offsets) for offsets in places_by_partition(found).values())
    engine.dispose()
    database.close()
