"""Kill drivers with SIGKILL, at pause points and at any time; after a recovery, topic and table of files are equal.

`DUALWRITE_SEED` repeats a run as far as its choices go, and `DUALWRITE_KILLS` is how many there are of each store.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from spark_sink.lake.files import file_name
from spark_sink.lake.strays import Strays
from spark_sink.pause_points import PausePoint
from spark_sink.store.attempt_states import LIVE, AttemptStatus
from spark_sink.store.commit_store import CommitStore
from tests.spark import lake_driver
from tests.spark.applications import recovery
from tests.spark.lake_driver import Drive, done, values_of
from tests.spark.lake_tables import KINDS, IcebergLake, LakeTable
from tests.support.databases import unique
from tests.support.topics import read_topic

pytestmark = pytest.mark.timeout(1200)

KILLS = {"delta": 100, "iceberg": 25}
"""Kills per store; up to the log of the table, the paths are the same for both."""
_POINTS = 75
"""The last pause point at which a driver kills itself, in its third batch or so."""
_ENDLESS = 1 << 30
_PATIENCE_S = 60.0
_URL_ENV = "LAKE_CATALOG_URL"

_processes: Any = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [lake_driver.__name__, "deltalake", "pyiceberg.catalog.sql", "sqlalchemy", "pyarrow.parquet"]
)


class Site:
    """A topic, a table of files and a store, with drivers that die."""

    def __init__(
        self, broker: Emulator, store_url: str, table: LakeTable, directory: Path, environment: Mapping[str, str]
    ) -> None:
        self.topic, self.sink_id = unique("topic"), unique("sink").replace("-", "_")
        self.table = table
        self._environment = environment
        self.commit_log = directory / "done"
        self.store = CommitStore(sa.create_engine(store_url))
        self.store.create_tables()
        self._broker = broker
        broker.create_topic(self.topic, 2)
        self._options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "kafka.retry.backoff.ms": "5",
            "sinkId": self.sink_id,
            "topic": self.topic,
            "commitStore.url": store_url,
            **table.options,
            "dual.columns": "value",
        }

    def drive(
        self, batches: int, kill_at: int | PausePoint | None = None, kill_after_s: float | None = None
    ) -> int | None:
        """Let a driver live until so many batches are done, or until it is killed; return its exit code."""
        life = Drive(self._options, self.commit_log, batches, kill_at, self._environment)
        process = _processes.Process(target=life.run)
        process.start()
        if kill_after_s is not None:
            process.join(kill_after_s)
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
        process.join(_PATIENCE_S)
        code: int | None = process.exitcode
        return code

    def recover(self) -> None:
        """Do the work of `dualwrite spark recover --apply --condemn`, until no batch is left."""
        servers = self._broker.bootstrap_servers
        with TransactionAdmin(bootstrap_servers=servers) as admin:
            report = recovery(self.store, admin, servers, condemn=[self.sink_id]).recover()
        assert report.is_clean, (report.left, report.unseen)

    def assert_both_sides_agree(self) -> int:
        """Check that topic and table have whole batches, each row once; return how many batches."""
        in_topic = sorted((value for _, value in read_topic(self._broker.bootstrap_servers, self.topic)), key=int)
        in_table = sorted(self.table.read()["value"].to_pylist(), key=int)
        batches = len(in_table) // len(values_of(0))
        assert in_table == [value for batch in range(batches) for value in values_of(batch)]
        assert in_topic == in_table
        assert self.store.lake.owed(self.sink_id) == ()
        assert self.store.attempts(self.sink_id, LIVE) == []
        return batches


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgres"])
def site(
    request: pytest.FixtureRequest, emulator: Emulator, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """Yield a site with its store, and the catalog of an Iceberg table, in one kind of database."""
    url, table = f"sqlite:///{tmp_path / 'store.db'}", KINDS[kind](tmp_path)
    environment: dict[str, str] = {}
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        schema = unique("store").replace("-", "_")
        with sa.create_engine(server.url, poolclass=sa.NullPool).begin() as connection:
            connection.execute(sa.schema.CreateSchema(schema))
        with_schema = server.url.update_query_dict({"options": f"-csearch_path={schema}"})
        url = with_schema.render_as_string(hide_password=False)
        if kind == "iceberg":
            table, environment = IcebergLake(tmp_path, catalog_url=url, url_env=_URL_ENV), {_URL_ENV: url}
            monkeypatch.setenv(_URL_ENV, url)
    made = Site(emulator, url, table, tmp_path, environment)
    assert made.drive(1) == 0, "recovery complains about a sink that the store does not have"
    yield made
    made.store.engine.dispose()


def test_the_file_of_a_killed_task_is_deleted_in_the_end(site: Site) -> None:
    assert site.drive(2, kill_at=PausePoint.AFTER_FILE) == -signal.SIGKILL
    (attempt,) = site.store.attempts(site.sink_id, [AttemptStatus.OPEN])
    file = site.table.directory / file_name(site.store.lake.owner(site.sink_id), attempt.attempt_id)
    strays = Strays(site.sink_id, site.store, min_age_s=86_400)
    assert site.drive(4) == 0
    site.store.prune(site.sink_id, 1)
    assert attempt.attempt_id not in site.store.lake.attempts(site.sink_id)
    assert strays.find() == [], "it is young"
    old = time.time() - 2 * 86_400
    for each in site.table.directory.glob("*.parquet"):
        os.utime(each, (old, old))
    assert (strays.find(), strays.delete()) == ([file], 1)
    assert not file.exists()
    assert site.drive(5) == 0
    assert site.assert_both_sides_agree() == 5


def test_whenever_a_driver_is_killed_both_sides_agree_after_a_recovery(site: Site, kind: str) -> None:
    kills = int(os.environ.get("DUALWRITE_KILLS", KILLS[kind]))
    seed = int(os.environ.get("DUALWRITE_SEED", random.SystemRandom().randrange(2**32)))
    print(f"DUALWRITE_SEED={seed}")
    chance = random.Random(seed)
    compared = 0
    for _ in range(kills):
        if chance.random() < 0.7:
            code = site.drive(_ENDLESS, kill_at=chance.randint(1, _POINTS))
        else:
            code = site.drive(_ENDLESS, kill_after_s=chance.uniform(0.05, 1.0))
        assert code == -signal.SIGKILL
        if chance.random() < 0.5:
            site.recover()
            assert site.assert_both_sides_agree() >= done(site.commit_log)
            compared += 1
    goal = done(site.commit_log) + 2
    assert site.drive(goal) == 0
    site.recover()
    assert site.assert_both_sides_agree() == goal
    assert compared
    print(f"{kills} kills, {compared} recoveries compared, {goal} batches")
