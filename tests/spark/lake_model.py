"""A Delta or Iceberg table beside the model of a sink, and the view of its readers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_sink.errors import SinkOptionError
from spark_sink.lake.files import file_name
from spark_sink.lake.publishing import Publisher
from spark_sink.options import DualTable
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.tables import OwedBatch
from tests.spark.lake_tables import LakeTable, copy_database
from tests.spark.sink_model import Crash, World, run_batch


class LakeWorld(World):
    """One sink with a table of files, to which the column `value` goes, too."""

    def __init__(self, store: CommitStore, table: LakeTable, **options: Any) -> None:
        self.table = table
        super().__init__(store, **({"dual": table.dual()} | options))

    @property
    def lake_rows(self) -> list[int]:
        """Return the rows of the table."""
        return sorted(int(value) for value in self.table.read()["value"].to_pylist())

    def assert_exactly_once(self, expected: Sequence[int]) -> None:
        """Check the table as well: each row once, nothing owed, and each batch one commit."""
        super().assert_exactly_once(expected)
        assert self.lake_rows == sorted(expected)
        assert self.store.lake.owed(self.options.sink_id) == ()
        generations = self.table.generations()
        assert generations == sorted(set(generations))

    @property
    def store_file(self) -> str:
        """The store's database, on SQLite."""
        return str(self.database.engine.url.database)

    def restore_store(self, backup: Path) -> None:
        """Let the store go back to a copy of its database."""
        self.database.engine.dispose()
        copy_database(backup, self.store_file)

    def file_of(self, attempt_id: str) -> Path:
        """Return the path of the file of an attempt."""
        return self.table.directory / file_name(self.store.lake.owner(self.options.sink_id), attempt_id)


def die_at(point: PausePoint) -> Pause:
    """Return a pause that kills its process at this point."""

    def die(reached: PausePoint) -> None:
        if reached is point:
            raise Crash(point)

    return die


def owe(world: LakeWorld, batch_id: int, values: Sequence[int]) -> None:
    """Decide a batch, and die before it is in the table."""
    with pytest.raises(Crash):
        run_batch(world.process(die_at(PausePoint.BEFORE_ADDITION)), batch_id, values)
    assert owed(world)


def owed(world: LakeWorld) -> tuple[OwedBatch, ...]:
    """Return the batches that are owed, by the store."""
    return world.store.lake.owed(world.options.sink_id)


def publisher(world: LakeWorld, pause: Pause = lambda point: None, **options: Any) -> Publisher:
    """Make a publisher for the sink, as any process can."""
    return Publisher(world.options.sink_id, world.store.lake, schema=None, pause=pause, **options)


def refusal(world: LakeWorld, dual: DualTable) -> str:
    """Return the error of a refused plan, and check that it has fenced no process."""
    process = world.process(dual=dual)
    before = world.store.sinks()
    with pytest.raises(SinkOptionError) as refused:
        process.plan()
    assert world.store.sinks() == before
    assert re.search("nothing was written|no new batch has begun", str(refused.value))
    return str(refused.value)
