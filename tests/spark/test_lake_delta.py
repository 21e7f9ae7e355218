"""The Delta tables that a sink writes to; it refuses others before writing anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_sink.errors import SinkError
from spark_sink.lake.delta_log import DeltaLog
from spark_sink.lake.delta_support import WRITER_FEATURES
from spark_sink.lake.place import LakePlace
from spark_sink.options import DualMode, DualTable
from spark_sink.store.commit_store import CommitStore
from tests.spark.lake_model import LakeWorld, owed, refusal
from tests.spark.lake_tables import DeltaLake, deltalake
from tests.spark.sink_model import run_batch
from tests.support.databases import unique


@pytest.fixture
def sqlite_world(store: CommitStore, tmp_path: Path) -> LakeWorld:
    return LakeWorld(store, DeltaLake(tmp_path))


def dual(path: Path) -> DualTable:
    """Return the parsed option `dual.table=delta:<path>`."""
    return DualTable(f"delta:{path}", ("value",), DualMode.INSERT, None, lake=LakePlace(str(path)))


def test_tables_that_are_not_supported(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    schema = deltalake.Schema.from_arrow(pa.schema([pa.field("value", pa.string()), ("day", pa.string())]))
    parts = tmp_path / "parts"
    deltalake.DeltaTable.create(str(parts), schema=schema, partition_by=["day"])
    assert "partitioned by day" in refusal(sqlite_world, dual(parts))

    checked = DeltaLake(tmp_path)
    checked.open().alter.add_constraint({"short": "value <> 'long'"})
    assert "CHECK constraint short" in refusal(sqlite_world, checked.dual())

    forgetful = DeltaLake(tmp_path, delta__setTransactionRetentionDuration="interval 7 days")
    assert "forget its batches" in refusal(sqlite_world, forgetful.dual())


_READERS_TOO = {"columnMapping", "deletionVectors", "timestampNtz"}


def _table_with(directory: Path, protocol: dict[str, Any]) -> Path:
    """Create a table with this protocol, as another engine may have."""
    path = directory / unique("lake")
    (path / "_delta_log").mkdir(parents=True)
    column = {"name": "value", "type": "string", "nullable": True, "metadata": {}}
    metadata = {
        "id": unique("table"),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [column]}),
        "partitionColumns": [],
        "configuration": {},
    }
    actions = [{"protocol": protocol}, {"metaData": metadata}]
    (path / "_delta_log" / f"{0:020}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return path


def _with_feature(directory: Path, feature: str) -> Path:
    readers = (
        {"minReaderVersion": 3, "readerFeatures": [feature]} if feature in _READERS_TOO else {"minReaderVersion": 1}
    )
    return _table_with(directory, {**readers, "minWriterVersion": 7, "writerFeatures": [feature]})


def _with_version(directory: Path, version: int) -> Path:
    return _table_with(directory, {"minReaderVersion": 2 if version >= 5 else 1, "minWriterVersion": version})


@pytest.mark.parametrize("feature", sorted(WRITER_FEATURES))
def test_the_library_commits_to_tables_with_supported_features(
    store: CommitStore, tmp_path: Path, feature: str
) -> None:
    """Otherwise a decided batch would be owed for ever."""
    _assert_published(store, tmp_path, _with_feature(tmp_path, feature))


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_the_library_commits_to_older_versions(store: CommitStore, tmp_path: Path, version: int) -> None:
    _assert_published(store, tmp_path, _with_version(tmp_path, version))


def _assert_published(store: CommitStore, directory: Path, path: Path) -> None:
    world = LakeWorld(store, DeltaLake(directory), dual=dual(path))
    run_batch(world.process(), 0, [1, 2])
    state = DeltaLog(LakePlace(str(path)), world.options.sink_id).read()
    assert (state.mark.generation, owed(world)) == (1, ())


@pytest.mark.parametrize("feature", ["identityColumns", "rowTracking", "domainMetadata", "newer"])
def test_other_features_are_refused(sqlite_world: LakeWorld, tmp_path: Path, feature: str) -> None:
    assert f"has the table feature {feature}" in refusal(sqlite_world, dual(_with_feature(tmp_path, feature)))


def test_other_versions_are_refused(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    assert "minWriterVersion=6" in refusal(sqlite_world, dual(_with_version(tmp_path, 6)))


def test_a_directory_without_a_table(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    assert "there is no Delta table" in refusal(sqlite_world, dual(tmp_path / "nothing"))


# ---- beside other writers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_cleaned_up", [True, False])
def test_a_log_that_another_writer_cleans_up_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cleaned_up: bool
) -> None:
    table = DeltaLake(tmp_path)
    old, opened = table.root / "_delta_log" / "old.checkpoint.parquet", deltalake.DeltaTable
    old.touch()

    def open_while_it_is_cleaned_up(path: str) -> Any:
        if not old.exists():
            return opened(path)
        if is_cleaned_up:
            old.unlink()
        raise deltalake.exceptions.DeltaError("no file old.checkpoint.parquet")

    monkeypatch.setattr(deltalake, "DeltaTable", open_while_it_is_cleaned_up)
    log = DeltaLog(table.place, "s")
    if is_cleaned_up:
        assert log.read().version == "0"
    else:
        with pytest.raises(SinkError, match="cannot be read"):
            log.read()


@pytest.mark.parametrize("how", ["replaced", "an older copy"])
def test_a_log_in_the_place_of_another_is_flushed_from_its_beginning(
    tmp_path: Path, flushed: list[str], how: str
) -> None:
    table = DeltaLake(tmp_path)
    table.back_up(tmp_path / "copy")
    log = DeltaLog(table.place, "s")
    table.append(pa.table({"value": ["a"]}))
    for _ in range(2):
        log.flush(log.read())
    commits = [f"{version:020}.json" for version in range(3)]
    assert sorted(flushed) == sorted([*commits[:2], "_delta_log", "_delta_log"]), "the second time nothing is new"
    if how == "replaced":
        table.replace()
    else:
        table.restore(tmp_path / "copy")
    for value in "bc":
        table.append(pa.table({"value": [value]}))
    flushed.clear()
    log.flush(log.read())
    assert set(commits) <= set(flushed)
