"""Kill the JVM at the points at which only the store knows the outcome of a batch; the next driver finds out.

Each driver is a process with a JVM of its own, and the next one gets ready while it works.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from spark_sink.pause_points import PausePoint as At
from tests.spark.chaos_driver import Job
from tests.spark.driver_process import DriverProcess
from tests.spark.faults import Action, Fault, Process
from tests.support.topics import read_topic

pytestmark = pytest.mark.timeout(420)

_DEADLINE_S = 150.0
_KILLS = [
    (Fault(At.AFTER_SEND, Action.ORPHAN, Process.TASK), False),
    (Fault(At.AFTER_PREPARED, Action.KILL_JVM, Process.TASK), False),
    (Fault(At.AMONG_COMPLETIONS, Action.ORPHAN, Process.COMMITTER), True),
    (Fault(At.AFTER_FINISH, Action.KILL_JVM, Process.COMMITTER), True),
]
"""Faults, each with whether a batch is decided then: the new one, or the previous one, which Spark replays.

Orphans live until their daemon notices that the JVM is gone.
"""


class Supervisor:
    """Starts a driver whenever one has died."""

    def __init__(self, broker: Emulator, directory: Path) -> None:
        self._directory = directory
        self._broker = broker
        broker.create_topic("kills", 2)
        self._url = f"sqlite:///{directory / 'store.db'}"
        self._engine = sa.create_engine(self._url, poolclass=sa.NullPool)
        with self._engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE target (id TEXT NOT NULL)"))
        self._job = Job(str(directory), self._options(), stall_s=0)
        self._job.input.mkdir()
        self._job.calm.touch()
        self._job.save(directory / "job")
        self.faults = self._job.faults()
        self.written: list[str] = []
        self._drivers: list[DriverProcess] = []
        self._standby = self._new_driver()

    def _options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._broker.bootstrap_servers,
            "sinkId": "kills",
            "topic": "kills",
            "commitStore.url": self._url,
            "dual.table": "target",
            "checkpointLocation": str(self._directory / "checkpoint"),
        }

    def _new_driver(self) -> DriverProcess:
        log = self._directory / f"driver-{len(self._drivers)}.log"
        driver = DriverProcess("tests.spark.chaos_driver", str(self._directory / "job"), log=log)
        self._drivers.append(driver)
        return driver

    def add_batch(self) -> None:
        values = [f"{len(self.written) + number}" for number in range(6)]
        partial = self._directory / "partial"
        partial.write_text("".join(json.dumps({"value": value}) + "\n" for value in values))
        partial.rename(self._job.input / f"{len(self.written):03}.json")
        self.written += values

    def kill_at(self, fault: Fault) -> list[str]:
        """Add a batch, run until the fault strikes, and return the table's rows, which are those of whole batches."""
        self.add_batch()
        self.faults.arm(fault)
        self._run_until_the_jvm_dies()
        assert self.faults.struck() == [fault]
        in_table = self.in_table()
        assert in_table == self.written[: len(in_table)], "whole batches, and in their order"
        return in_table

    def _run_until_the_jvm_dies(self) -> None:
        driver = self._standby
        driver.wait_until_ready()
        driver.go()
        self._standby = self._new_driver()
        driver.wait_until_the_jvm_dies(_DEADLINE_S)
        driver.kill()

    def run_to_the_end(self) -> None:
        """Run until all is written, and check that both sides have it, and nothing is open."""
        self._standby.wait_until_ready()
        self._standby.go()
        assert self._standby.wait(_DEADLINE_S) == 0
        assert self.in_topic() == self.in_table() == self.written
        assert self.open_transactions() == []

    def in_topic(self) -> list[str]:
        return sorted((value for _, value in read_topic(self._broker.bootstrap_servers, "kills")), key=int)

    def in_table(self) -> list[str]:
        return sorted(self.column("SELECT id FROM target"), key=int)

    def column(self, sql: str) -> list[str]:
        with self._engine.connect() as connection:
            return list(connection.scalars(sa.text(sql)))

    def open_transactions(self) -> list[str]:
        over = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
        return [each.transactional_id for each in self._broker.transactions() if each.state not in over]

    def close(self) -> None:
        for driver in self._drivers:
            driver.kill()


@pytest.fixture
def supervisor(emulator: Emulator, tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(emulator, tmp_path)
    yield made
    made.close()


def test_whenever_the_jvm_is_killed_every_row_is_written_once(supervisor: Supervisor) -> None:
    for fault, decided in _KILLS:
        before = len(supervisor.in_table())
        in_table = supervisor.kill_at(fault)
        assert decided or len(in_table) == before, fault
        assert set(supervisor.in_topic()) <= set(in_table), fault

    supervisor.run_to_the_end()
    assert set(supervisor.column("SELECT status FROM dw_attempt")) == {"COMMITTED", "ABORTED"}
    assert supervisor.column("SELECT txn_id FROM dw_attempt WHERE live_txn_id IS NOT NULL") == []
    assert set(supervisor.column("SELECT status FROM dw_batch")) == {"DONE"}
