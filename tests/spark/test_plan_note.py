"""An abort without results gives up the generation that the planner of the same application has planned; no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkFiles
from pyspark.sql.types import StringType, StructField, StructType

from spark_sink import DualWriteKafka, face, open_sinks
from spark_sink.driver.protocol import Sink
from spark_sink.handoff import Plan
from spark_sink.options import SinkOptions
from spark_sink.store.commit_store import CommitStore
from tests.spark.sink_model import Process, World

SCHEMA = StructType([StructField("value", StringType())])


class Application:
    """The driver of an application: the planner and the committer of one query."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: World, directory: Path, query: str = "query-1") -> None:
        self._monkeypatch = monkeypatch
        self._directory = directory
        self._sink_id = world.options.sink_id
        self._query = query
        checkpoint = directory / "checkpoints" / query
        (checkpoint / "offsets").mkdir(parents=True)
        (checkpoint / "offsets" / "0").touch()
        (checkpoint / "metadata").write_text(json.dumps({"id": query}))
        self._checkpoint = str(checkpoint)
        self.process: Process = world.process()

    def _writer(self, *, plans: bool) -> Any:
        process = self.process

        class Format(DualWriteKafka):
            @staticmethod
            def open_sink(options: SinkOptions) -> Sink:
                return process.sink

        self._monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(self._directory / "userFiles"))
        self._monkeypatch.setattr(face, "_is_planner", lambda: plans)
        self._monkeypatch.setattr(open_sinks, "_sinks", type(open_sinks._sinks)())
        options = {
            "sinkid": self._sink_id,
            "topic": "orders",
            "kafka.bootstrap.servers": "nowhere:1",
            "commitstore.url": "sqlite:////none.db",
            "checkpointlocation": self._checkpoint,
        }
        return Format(options).streamWriter(SCHEMA, False)

    def plan(self) -> Plan:
        plan: Plan = self._writer(plans=True)._plan
        return plan

    def prepare(self, plan: Plan, value: int) -> None:
        self.process.write(plan, 0, 0, [value], self._query)

    def abort(self) -> None:
        self._writer(plans=False).abort([None], 0)


def test_the_first_and_any_later_note(monkeypatch: pytest.MonkeyPatch, store: CommitStore, tmp_path: Path) -> None:
    world = World(store)
    mine = Application(monkeypatch, world, tmp_path)
    for value in range(3):
        mine.prepare(mine.plan(), value)
        mine.abort()
        assert world.broker.open_ids == []
    assert world.broker.committed == []


def test_a_late_abort_leaves_another_driver_alone(
    monkeypatch: pytest.MonkeyPatch, store: CommitStore, tmp_path: Path
) -> None:
    """Whether the two have one checkpoint, in two applications, or one application, and one sink by mistake."""
    world = World(store)
    for query, directory in (("query-1", "other application"), ("query-2", "one application")):
        old = Application(monkeypatch, world, tmp_path / query / "one application")
        new = Application(monkeypatch, world, tmp_path / query / directory, query)
        new.process = world.process(on_new_checkpoint="adopt")
        old.plan()
        new.prepare(new.plan(), 1)
        old.abort()
        assert len(world.broker.open_ids) == 1, query
        new.abort()
        assert world.broker.open_ids == [], query


def test_a_note_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, store: CommitStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch can do without it."""
    world = World(store)
    mine = Application(monkeypatch, world, tmp_path)
    (tmp_path / "userFiles").touch()
    mine.prepare(mine.plan(), 1)
    assert "generation 1 could not be noted" in caplog.text
    mine.abort()
    assert len(world.broker.open_ids) == 1
    mine.plan()
    assert world.broker.open_ids == []
