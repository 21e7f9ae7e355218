"""A Delta table beside the model of a sink: how it is made, and what its readers see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from spark_sink.lake.files import file_name
from spark_sink.options import DualMode, DualTable
from spark_sink.store.commit_store import CommitStore
from tests.spark.sink_model import World
from tests.support.databases import unique

deltalake: Any = pytest.importorskip("deltalake")

COLUMNS: Final = pa.schema([("value", pa.string())])


def new_table(directory: Path, columns: pa.Schema = COLUMNS, **settings: str) -> Path:
    """Create a Delta table in a new directory."""
    path = directory / unique("lake")
    configuration = {name.replace("__", "."): value for name, value in settings.items()}
    schema = deltalake.Schema.from_arrow(columns)
    deltalake.DeltaTable.create(str(path), schema=schema, configuration=configuration)
    return path


def dual(path: Path, columns: tuple[str, ...] | None = ("value",)) -> DualTable:
    """Return what `dual.table=delta:<path>` is parsed to."""
    return DualTable(f"delta:{path}", columns, DualMode.INSERT, None, lake=str(path))


def read(path: Path) -> pa.Table:
    """Return what a reader of the table sees now."""
    return deltalake.DeltaTable(str(path)).to_pyarrow_table()


class LakeWorld(World):
    """One sink with a Delta table, to which the column `value` goes, too."""

    def __init__(self, store: CommitStore, directory: Path, **options: Any) -> None:
        self.path = new_table(directory)
        super().__init__(store, **({"dual": dual(self.path)} | options))

    @property
    def lake_rows(self) -> list[int]:
        """Return the rows of the Delta table."""
        return sorted(int(value) for value in read(self.path)["value"].to_pylist())

    def assert_exactly_once(self, expected: Sequence[int]) -> None:
        """Check the Delta table as well: each row once, nothing owed, and each batch one commit."""
        super().assert_exactly_once(expected)
        assert self.lake_rows == sorted(expected)
        assert self.store.lake.owed(self.options.sink_id) == ()
        generations = self.generations()
        assert generations == sorted(set(generations))

    def generations(self) -> list[int]:
        """Return the generations in the table's log, in the order of its versions."""
        logged = [each.read_text() for each in sorted(Path(self.path, "_delta_log").glob("*.json"))]
        actions = [json.loads(line) for text in logged for line in text.splitlines()]
        return [action["txn"]["version"] for action in actions if "txn" in action]

    def files(self) -> set[str]:
        """Return the data files in the directory."""
        return {each.name for each in self.path.glob("*.parquet")}

    def file_of(self, attempt_id: str) -> Path:
        """Return the path of the file of an attempt."""
        return self.path / file_name(attempt_id)
