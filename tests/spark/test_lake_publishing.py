"""Decided files on their way into a Delta table: beside other writers, twice, late, and against what was lost."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from spark_sink.attempt.states import AttemptStatus
from spark_sink.errors import (
    BatchLostError,
    DualTableError,
    SinkError,
    SinkOptionError,
    StoreWentBackError,
)
from spark_sink.lake.columns import WRITER_FEATURES
from spark_sink.lake.delta_log import DeltaLog, LakeState, NewFile
from spark_sink.lake.janitor import Janitor
from spark_sink.lake.publishing import Publisher
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.tables import OwedBatch
from tests.spark.lake_model import LakeWorld, deltalake, dual, new_table, read
from tests.spark.sink_model import QUERY, SCHEMA, Crash, Stalling, batches, new_store, run_batch, task
from tests.spark.store_engines import engine_on, sqlite_engine
from tests.support.databases import unique

P = PausePoint


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommitStore]:
    with engine_on(request.param, request, tmp_path) as engine:
        yield new_store(engine)


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[CommitStore]:
    with sqlite_engine(tmp_path) as engine:
        yield new_store(engine)


@pytest.fixture
def world(store: CommitStore, tmp_path: Path) -> LakeWorld:
    return LakeWorld(store, tmp_path)


@pytest.fixture
def sqlite_world(sqlite_store: CommitStore, tmp_path: Path) -> LakeWorld:
    return LakeWorld(sqlite_store, tmp_path)


def die_at(point: PausePoint) -> Pause:
    def die(reached: PausePoint) -> None:
        if reached is point:
            raise Crash(point)

    return die


def owe(world: LakeWorld, batch_id: int, values: Sequence[int]) -> None:
    """Decide a batch, and die before it is in the table."""
    with pytest.raises(Crash):
        run_batch(world.process(die_at(P.BEFORE_ADDITION)), batch_id, values)
    assert owed(world)


def owed(world: LakeWorld) -> tuple[OwedBatch, ...]:
    return world.store.lake.owed(world.options.sink_id)


def publisher(world: LakeWorld, pause: Pause = lambda point: None, **options: Any) -> Publisher:
    return Publisher(world.options.sink_id, world.store.lake, schema=None, pause=pause, **options)


def append(world: LakeWorld, *values: str) -> None:
    """Append rows as another writer does."""
    deltalake.write_deltalake(str(world.path), pa.table({"value": list(values)}), mode="append")


# ---- once ---------------------------------------------------------------------------------------------------


def test_whoever_slept_finds_that_another_has_published(world: LakeWorld) -> None:
    owe(world, 0, [1, 2, 3])
    asleep = Stalling(lambda stalling: publisher(world, stalling.reach).publish()).until(P.BEFORE_ADDITION)
    publisher(world).publish()
    run_batch(world.process(), 1, [4])
    asleep.go_on()
    assert asleep.error is None
    world.assert_exactly_once([1, 2, 3, 4])
    assert len(world.generations()) == 2


@pytest.mark.parametrize("point", [P.BEFORE_ADDITION, P.AFTER_ADDITION, P.BEFORE_FORGETTING])
def test_whoever_slept_after_the_table_was_optimised_and_vacuumed(world: LakeWorld, point: PausePoint) -> None:
    owe(world, 0, [1, 2, 3])
    asleep = Stalling(lambda stalling: publisher(world, stalling.reach).publish()).until(point)
    publisher(world).publish()
    table = deltalake.DeltaTable(str(world.path))
    table.optimize.compact()
    table.create_checkpoint()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert not list(world.path.glob("dualwrite-*"))
    asleep.go_on()
    assert asleep.error is None
    world.assert_exactly_once([1, 2, 3])


def test_what_others_commit_in_between_is_read_again(world: LakeWorld) -> None:
    owe(world, 0, [1])
    others = iter(("10", "11"))

    def pause(point: PausePoint) -> None:
        if point is P.BEFORE_ADDITION and (value := next(others, None)) is not None:
            append(world, value)

    publisher(world, pause, sleep=lambda seconds: None).publish()
    assert world.lake_rows == [1, 10, 11]
    assert (owed(world), len(world.generations())) == ((), 1)


def test_a_table_that_others_commit_to_all_the_time(world: LakeWorld) -> None:
    owe(world, 0, [1])
    waits: list[float] = []

    def pause(point: PausePoint) -> None:
        if point is P.BEFORE_ADDITION:
            append(world, "10")

    with pytest.raises(SinkError, match="could not be added") as raised:
        publisher(world, pause, sleep=waits.append).publish()
    assert "dualwrite spark recover" in str(raised.value)
    assert (len(owed(world)), world.generations()) == (1, [])
    assert len(waits) > 5
    publisher(world).publish()
    assert world.lake_rows.count(1) == 1


class Unreliable(DeltaLog):
    """A table whose commits say that they have failed."""

    has_effect = True

    def add(self, state: LakeState, generation: int, files: Sequence[NewFile]) -> Exception | None:
        if self.has_effect:
            super().add(state, generation, files)
        return OSError("no answer")


def test_a_commit_that_has_succeeded_with_an_error(world: LakeWorld) -> None:
    owe(world, 0, [1, 2])
    publisher(world, open_table=Unreliable).publish()
    world_rows = world.lake_rows
    assert (world_rows, owed(world)) == ([1, 2], ())


def test_a_commit_that_fails_stays_owed(world: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unreliable, "has_effect", False)
    owe(world, 0, [1, 2])
    with pytest.raises(SinkError, match="no answer"):
        publisher(world, open_table=Unreliable).publish()
    assert (world.lake_rows, len(owed(world))) == ([], 1)
    run_batch(world.process(), 1, [3])
    world.assert_exactly_once([1, 2, 3])


def test_what_is_owed_comes_before_what_is_new(world: LakeWorld) -> None:
    """A planner that does not know its query begins late: another driver decides after its plan."""
    other, late = world.process(die_at(P.BEFORE_ADDITION)), world.process()
    result = other.write(other.plan(), 0, 0, [1])
    plan = late.plan(query_id=None)
    assert plan.begins_late
    with pytest.raises(Crash):
        other.commit([result], 0, [1])
    late.commit([late.write(plan, 1, 0, [2])], 1, [2])
    world.assert_exactly_once([1, 2])
    assert len(world.generations()) == 2


@pytest.mark.parametrize("other", ["none", "another"])
def test_what_is_owed_is_published_by_a_query_whose_option_has_changed(
    world: LakeWorld, tmp_path: Path, other: str
) -> None:
    owe(world, 0, [1, 2])
    path = new_table(tmp_path)
    run_batch(world.process(dual=None if other == "none" else dual(path)), 1, [3])
    assert (world.lake_rows, owed(world)) == ([1, 2], ())
    assert read(path)["value"].to_pylist() == ([] if other == "none" else ["3"])
    run_batch(world.process(), 2, [4])
    assert world.lake_rows == [1, 2, 4]


def test_a_job_that_is_decided_publishes_what_is_owed(world: LakeWorld) -> None:
    job = "job:daily"
    process = world.process(die_at(P.BEFORE_ADDITION))
    plan = process.sink.plan(SCHEMA, query_id=job, batch_id=0)
    with pytest.raises(Crash):
        process.commit([process.write(plan, 0, 0, [1], job)], 0, [1], job)
    again = world.process().sink.plan(SCHEMA, query_id=job, batch_id=0)
    assert again.generation is None
    world.assert_exactly_once([1])


def test_kafka_that_is_away_does_not_keep_the_table_from_its_rows(world: LakeWorld) -> None:
    process = world.process()
    result = process.write(process.plan(), 0, 0, [1])
    world.broker.down = True
    with pytest.raises(SinkError):
        process.commit([result], 0, [1])
    assert (world.broker.committed, world.lake_rows) == ([], [1])
    world.broker.down = False
    run_batch(world.process(), 1, [2])
    world.assert_exactly_once([1, 2])


def test_a_table_that_is_away_does_not_keep_kafka_from_its_records(world: LakeWorld) -> None:
    away = world.path.with_suffix(".away")

    def unmount(point: PausePoint) -> None:
        if point is P.AFTER_DECISION:
            world.path.rename(away)

    process = world.process(unmount)
    result = process.write(process.plan(), 0, 0, [1])
    with pytest.raises(SinkError, match=r"is decided, but could not be added .* there is no Delta table"):
        process.commit([result], 0, [1])
    assert (world.broker.committed, world.broker.open_ids) == ([1], [])
    away.rename(world.path)
    run_batch(world.process(), 1, [2])
    world.assert_exactly_once([1, 2])


def test_a_generation_decides_one_batch_only(world: LakeWorld) -> None:
    """The table tells batches apart by it. Two plans that begin late may share one."""
    late = world.process()
    plan = late.plan(query_id=None)
    owe(world, 0, [1])
    result = late.write(plan, 1, 0, [2])
    with pytest.raises(SinkError, match="has decided a batch for a Delta table before"):
        late.commit([result], 1, [2])
    assert world.rows == [1]
    run_batch(world.process(), 1, [2])
    world.assert_exactly_once([1, 2])


def test_a_commit_that_is_repeated_after_the_files_are_compacted(world: LakeWorld) -> None:
    process = world.process()
    result = process.write(process.plan(), 0, 0, [1, 2])
    process.commit([result], 0, [1, 2])
    table = deltalake.DeltaTable(str(world.path))
    append(world, "3")
    table.update_incremental()
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert not process.commit([result], 0, [1, 2]).decided_anew
    assert (world.lake_rows, owed(world)) == ([1, 2, 3], ())


def test_a_commit_that_is_repeated_after_a_file_is_gone_does_not_call_it_undecided(world: LakeWorld) -> None:
    process = world.process(die_at(P.BEFORE_ADDITION))
    result = process.write(process.plan(), 0, 0, [1])
    with pytest.raises(Crash):
        process.commit([result], 0, [1])
    world.file_of(str(result.attempt_id)).unlink()
    with pytest.raises(BatchLostError, match="was decided"):
        world.process().commit([result], 0, [1])


# ---- on disk ------------------------------------------------------------------------------------------------


def test_what_is_recorded_was_flushed_before(sqlite_world: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = sqlite_world
    order: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        order.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    run_batch(world.process(lambda point: order.append(str(point))), 0, [1], partitions=1)
    (file,) = world.files()
    before_prepare = order[: order.index(P.AFTER_FILE)]
    assert before_prepare[-2:] == [file, world.path.name]
    before_forgetting = order[order.index(P.AFTER_ADDITION) : order.index(P.BEFORE_FORGETTING)]
    assert "00000000000000000001.json" in before_forgetting
    assert before_forgetting[-1] == "_delta_log"


# ---- what was lost ------------------------------------------------------------------------------------------


def test_a_store_that_went_back_writes_nothing(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    world = sqlite_world
    run_batch(world.process(), 0, [1])
    backup = _backup(tmp_path)
    run_batch(world.process(), 1, [2])
    _restore(world, tmp_path, backup)
    before = world.store.sinks()
    for _ in range(2):
        with pytest.raises(StoreWentBackError, match="has lost decisions"):
            world.process().plan()
    assert world.store.sinks() == before, "nobody was fenced"
    assert world.lake_rows == [1, 2]


def test_a_store_that_is_new_writes_nothing(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    world = sqlite_world
    run_batch(world.process(), 0, [1])
    with world.database.engine.begin() as connection:
        for table in ("dw_lake", "dw_batch", "dw_attempt", "dw_sink"):
            connection.execute(sa.text(f"DELETE FROM {table}"))
    with pytest.raises(StoreWentBackError, match="none"):
        world.process().plan()


def test_a_store_that_goes_back_before_the_decision(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    world = sqlite_world
    run_batch(world.process(), 0, [1])
    process = world.process()
    plan = process.plan()
    result = process.write(plan, 1, 0, [2])
    assert plan.generation is not None
    state = DeltaLog(str(world.path), world.options.sink_id).read()
    DeltaLog(str(world.path), world.options.sink_id).add(state, plan.generation, [])
    with pytest.raises(StoreWentBackError):
        process.commit([result], 1, [2])
    assert (sorted(world.rows), world.lake_rows) == ([1], [1])


def test_an_older_copy_of_the_table_is_refused(world: LakeWorld, tmp_path: Path) -> None:
    run_batch(world.process(), 0, [1])
    shutil.copytree(world.path, tmp_path / "backup")
    run_batch(world.process(), 1, [2])
    shutil.rmtree(world.path)
    shutil.copytree(tmp_path / "backup", world.path)
    before = world.store.sinks()
    with pytest.raises(DualTableError, match="older copy"):
        world.process().plan()
    assert world.store.sinks() == before


def test_another_table_in_the_directory_gets_what_is_new(world: LakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    run_batch(world.process(), 0, [1])
    _replace(world)
    with caplog.at_level(logging.WARNING, "spark_sink"):
        run_batch(world.process(), 1, [2])
    assert world.lake_rows == [2]
    assert "is another Delta table than before" in caplog.text


def test_another_table_does_not_get_what_is_owed_to_the_first(world: LakeWorld) -> None:
    owe(world, 0, [1])
    files = {name: Path(world.path, name).read_bytes() for name in world.files()}
    _replace(world)
    for name, content in files.items():
        Path(world.path, name).write_bytes(content)
    with pytest.raises(BatchLostError, match="another Delta table"):
        world.process().plan()
    assert world.store.acknowledge_lost(world.options.sink_id, QUERY, 0)
    run_batch(world.process(), 1, [2])
    assert world.lake_rows == [2]


def _replace(world: LakeWorld) -> None:
    shutil.rmtree(world.path)
    new_table(world.path.parent).rename(world.path)


def test_a_file_that_is_gone_is_found_before_anything_is_added(world: LakeWorld) -> None:
    run_batch(world.process(), 0, [1])
    owe(world, 1, [2, 3, 4, 5])
    (batch,) = owed(world)
    gone = batch.files[0]
    world.file_of(gone.attempt_id).unlink()
    for _ in range(2):
        with pytest.raises(BatchLostError, match="is gone") as raised:
            world.process().plan()
        assert f"--batch {batch.batch_id}" in str(raised.value)
    assert world.lake_rows == [1]
    assert world.store.acknowledge_lost(world.options.sink_id, QUERY, 1)
    assert not world.store.acknowledge_lost(world.options.sink_id, QUERY, 1)
    run_batch(world.process(), 2, [6])
    assert len(world.lake_rows) == 1 + 4 - gone.rows + 1
    assert sorted(world.broker.committed) == [1, 2, 3, 4, 5, 6]


def test_a_file_that_is_back_needs_no_acknowledgement(world: LakeWorld) -> None:
    owe(world, 0, [1, 2])
    hidden = [world.file_of(file.attempt_id) for file in owed(world)[0].files]
    for file in hidden:
        file.rename(file.with_suffix(".away"))
    with pytest.raises(BatchLostError):
        world.process().plan()
    for file in hidden:
        file.with_suffix(".away").rename(file)
    run_batch(world.process(), 1, [3])
    world.assert_exactly_once([1, 2, 3])


@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_file_that_is_gone_before_the_decision_is_written_again(world: LakeWorld, harm: str) -> None:
    process = world.process()
    result = process.write(process.plan(), 0, 0, [1, 2])
    file = world.file_of(str(result.attempt_id))
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DualTableError, match="not decided"):
        process.commit([result], 0, [1, 2])
    assert (world.rows, world.store.batches(world.options.sink_id)) == ([], [])
    run_batch(world.process(), 0, [1, 2])
    world.assert_exactly_once([1, 2])


def _backup(directory: Path) -> Path:
    backup = directory / "backup.db"
    with sqlite3.connect(directory / "store.db") as source, sqlite3.connect(backup) as target:
        source.backup(target)
    return backup


def _restore(world: LakeWorld, directory: Path, backup: Path) -> None:
    world.database.engine.dispose()
    with sqlite3.connect(backup) as source, sqlite3.connect(directory / "store.db") as target:
        source.backup(target)


# ---- what is given up ---------------------------------------------------------------------------------------


def test_files_of_losers_are_deleted_and_no_others(world: LakeWorld) -> None:
    process = world.process()
    plan = process.plan()
    loser, winner = process.write(plan, 0, 0, [1, 2]), process.write(plan, 0, 0, [1, 2])
    janitor = Janitor(world.options.sink_id, world.store.lake, schema=None)
    assert janitor.clean_all() == 0, "both may be decided"
    assert len(world.files()) == 2
    process.commit([winner], 0, [1, 2])
    assert janitor.left() == 1
    run_batch(world.process(), 1, [3])
    assert not world.file_of(str(loser.attempt_id)).exists()
    assert world.file_of(str(winner.attempt_id)).exists()
    world.assert_exactly_once([1, 2, 3])


def test_what_is_owed_outlives_its_attempts(world: LakeWorld) -> None:
    """They are deleted with their batches, which Kafka may have long before the table has."""
    owe(world, 0, [1, 2])
    with world.database.engine.begin() as connection:
        for table in ("dw_attempt", "dw_batch"):
            connection.execute(sa.text(f"DELETE FROM {table}"))
    assert Janitor(world.options.sink_id, world.store.lake, schema=None).clean_all() == 0
    run_batch(world.process(), 1, [3])
    world.assert_exactly_once([1, 2, 3])


def test_a_store_that_went_back_deletes_nothing_that_the_table_has(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    world = sqlite_world
    run_batch(world.process(), 0, [1])
    process = world.process()
    result = process.write(process.plan(), 1, 0, [2])
    backup = _backup(tmp_path)
    process.commit([result], 1, [2])
    _restore(world, tmp_path, backup)
    assert world.store.condemn(world.options.sink_id) == 1
    janitor = Janitor(world.options.sink_id, world.store.lake, schema=None)
    with pytest.raises(StoreWentBackError):
        janitor.clean_all()
    _set_decided(world, 1_000)
    with pytest.raises(StoreWentBackError, match="has given up"):
        janitor.clean_all()
    assert world.lake_rows == [1, 2]


def _set_decided(world: LakeWorld, generation: int) -> None:
    with world.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE dw_lake SET decided = :it"), {"it": generation})


def test_a_file_that_nobody_recorded_is_deleted_by_gc(world: LakeWorld) -> None:
    run_batch(world.process(), 0, [1])
    process = world.process(die_at(P.AFTER_FILE))
    with pytest.raises(Crash):
        process.write(process.plan(), 1, 0, [2])
    (attempt,) = world.store.attempts(world.options.sink_id, [AttemptStatus.OPEN])
    world.file_of(attempt.attempt_id).write_bytes(b"as a killed task leaves it")
    janitor = Janitor(world.options.sink_id, world.store.lake, schema=None)
    assert janitor.clean_all() == 0, "it may be writing"
    run_batch(world.process(), 1, [2])
    assert janitor.left() == 1
    assert janitor.clean_all() == 1
    assert (janitor.left(), len(world.files())) == (0, 2)


def test_a_machine_without_the_directory_deletes_and_forgets_nothing(world: LakeWorld) -> None:
    process = world.process()
    plan = process.plan()
    process.write(plan, 0, 0, [1])
    winner = process.write(plan, 0, 0, [1])
    process.commit([winner], 0, [1])
    away = world.path.rename(world.path.with_suffix(".away"))
    janitor = Janitor(world.options.sink_id, world.store.lake, schema=None)
    assert janitor.clean_all() == 0
    away.rename(world.path)
    assert janitor.clean_all() == 1


def test_a_task_that_fails_leaves_no_file(world: LakeWorld) -> None:
    process = world.process()
    plan = process.plan()

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches([1, 2])
        raise ValueError("the input")

    with pytest.raises(ValueError, match="the input"):
        process.sink.write(plan, task(0, 0), failing())
    assert world.files() == set()


# ---- what is refused before anything is written --------------------------------------------------------------


def refusal(world: LakeWorld, path: Path) -> str:
    """Return why a plan is refused, and check that it has fenced nobody."""
    process = world.process(dual=dual(path))
    before = world.store.sinks()
    with pytest.raises(SinkOptionError) as refused:
        process.plan()
    assert world.store.sinks() == before
    assert re.search("nothing was written|nothing new has begun", str(refused.value))
    return str(refused.value)


_VALUE = pa.field("value", pa.string())


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ([pa.field("value", pa.int64())], "string cannot be stored"),
        ([pa.field("other", pa.string())], "which the table"),
        ([_VALUE, pa.field("needed", pa.string(), nullable=False)], "needs a value in needed"),
    ],
    ids=["type", "name", "not-null"],
)
def test_columns_that_do_not_fit(sqlite_world: LakeWorld, tmp_path: Path, columns: list[pa.Field], why: str) -> None:
    assert why in refusal(sqlite_world, new_table(tmp_path, pa.schema(columns)))


def test_tables_that_are_not_supported(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    schema = deltalake.Schema.from_arrow(pa.schema([_VALUE, ("day", pa.string())]))
    parts = tmp_path / "parts"
    deltalake.DeltaTable.create(str(parts), schema=schema, partition_by=["day"])
    assert "partitioned by day" in refusal(sqlite_world, parts)

    checked = new_table(tmp_path)
    deltalake.DeltaTable(str(checked)).alter.add_constraint({"short": "value <> 'long'"})
    assert "CHECK constraint short" in refusal(sqlite_world, checked)

    forgetful = new_table(tmp_path, delta__setTransactionRetentionDuration="interval 7 days")
    assert "forgets which batches it has" in refusal(sqlite_world, forgetful)


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
def test_the_library_commits_to_what_is_supported(sqlite_store: CommitStore, tmp_path: Path, feature: str) -> None:
    """Else a decided batch would be owed for ever."""
    _assert_published(sqlite_store, tmp_path, _with_feature(tmp_path, feature))


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_the_library_commits_to_older_versions(sqlite_store: CommitStore, tmp_path: Path, version: int) -> None:
    _assert_published(sqlite_store, tmp_path, _with_version(tmp_path, version))


def _assert_published(store: CommitStore, directory: Path, path: Path) -> None:
    world = LakeWorld(store, directory, dual=dual(path))
    run_batch(world.process(), 0, [1, 2])
    state = DeltaLog(str(path), world.options.sink_id).read()
    assert (state.published, owed(world)) == (1, ())


@pytest.mark.parametrize("feature", ["identityColumns", "rowTracking", "domainMetadata", "newer"])
def test_other_features_are_refused(sqlite_world: LakeWorld, tmp_path: Path, feature: str) -> None:
    assert f"has the table feature {feature}" in refusal(sqlite_world, _with_feature(tmp_path, feature))


def test_other_versions_are_refused(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    assert "minWriterVersion=6" in refusal(sqlite_world, _with_version(tmp_path, 6))


def test_a_directory_without_a_table(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    assert "there is no Delta table" in refusal(sqlite_world, tmp_path / "nothing")


def test_without_the_library_its_extra_is_named(sqlite_world: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert "dualwrite[spark-delta]" in refusal(sqlite_world, sqlite_world.path)


def test_a_table_that_is_altered_while_a_batch_is_written(world: LakeWorld) -> None:
    process = world.process()
    result = process.write(process.plan(), 0, 0, [1])
    _retype(world)
    with pytest.raises(DualTableError, match="was altered"):
        process.commit([result], 0, [1])
    assert world.rows == []


def test_a_table_that_is_altered_after_the_decision(world: LakeWorld) -> None:
    owe(world, 0, [1])
    _retype(world)
    with pytest.raises(DualTableError, match="do not fit the table"):
        publisher(world).publish()
    assert len(owed(world)) == 1


def _retype(world: LakeWorld) -> None:
    rows = pa.table({"value": pa.array([7], pa.int64())})
    deltalake.write_deltalake(str(world.path), rows, mode="overwrite", schema_mode="overwrite")


def test_null_in_a_column_that_is_not_null(sqlite_store: CommitStore, tmp_path: Path) -> None:
    world = LakeWorld(sqlite_store, tmp_path)
    path = new_table(tmp_path, pa.schema([pa.field("value", pa.string()), pa.field("id", pa.int64(), nullable=False)]))
    process = world.process(dual=dual(path, None))
    schema = pa.schema([("value", pa.string()), ("id", pa.int32())])
    plan = process.sink.plan(schema, query_id=QUERY)
    good = pa.record_batch([pa.array(["1"]), pa.array([1], pa.int32())], schema=schema)
    bad = pa.record_batch([pa.array(["1"]), pa.array([None], pa.int32())], schema=schema)
    with pytest.raises(SinkOptionError):
        process.sink.plan(pa.schema([("value", pa.string())]), query_id=QUERY)
    with pytest.raises(DualTableError, match="a row has no id"):
        process.sink.write(plan, task(0, 0), iter([good, bad]))


def test_values_arrive_unchanged(sqlite_store: CommitStore, tmp_path: Path) -> None:
    columns = pa.schema(
        [
            ("value", pa.string()),
            ("big", pa.int64()),
            ("wide", pa.float64()),
            ("money", pa.decimal128(20, 4)),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("blob", pa.binary()),
            ("yes", pa.bool_()),
            ("left_out", pa.string()),
        ]
    )
    world = LakeWorld(sqlite_store, tmp_path)
    path = new_table(tmp_path, columns)
    given = pa.record_batch(
        {
            "VALUE": pa.array(["1", "2"]),
            "big": pa.array([2**31 - 1, None], pa.int32()),
            "wide": pa.array([1.5, float("nan")], pa.float32()),
            "money": pa.array([None, None], pa.decimal128(10, 2)).fill_null(pa.scalar(1, pa.decimal128(10, 2))),
            "at": pa.array([0, 1_750_000_000_000_001], pa.timestamp("us", "Europe/Berlin")),
            "local": pa.array([0, 1], pa.timestamp("us")),
            "day": pa.array([0, 20_000], pa.date32()),
            "blob": pa.array([b"\x00", b""]),
            "yes": pa.array([True, None]),
        }
    )
    given = given.rename_columns([name.lower() for name in given.schema.names])
    names = tuple(given.schema.names)
    process = world.process(dual=dual(path, names))
    plan = process.sink.plan(given.schema, query_id=QUERY)
    result = process.sink.write(plan, task(0, 0), iter([given]))
    process.commit([result], 0)
    found = read(path).combine_chunks()
    for name in names:
        wanted = given.column(name).cast(columns.field(name).type)
        assert found[name].combine_chunks().equals(wanted) or name == "wide", name
    assert str(found["wide"].to_pylist()) == "[1.5, nan]"
    assert found["left_out"].null_count == 2
