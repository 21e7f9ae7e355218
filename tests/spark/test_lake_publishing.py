"""Decided files on their way into a table of files: beside other writers, twice, late, and after losses."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from spark_sink.errors import (
    BatchLostError,
    DualTableError,
    SinkError,
    SinkOptionError,
    StoreWentBackError,
)
from spark_sink.lake.janitor import Janitor
from spark_sink.lake.table_log import Mark
from spark_sink.pause_points import PausePoint
from spark_sink.store.attempt_states import AttemptStatus
from spark_sink.store.commit_store import CommitStore
from tests.spark.lake_model import LakeWorld, die_at, owe, owed, publisher, refusal
from tests.spark.lake_tables import KINDS, IcebergLake, LakeTable, UnreliableLog, copy_database
from tests.spark.sink_model import QUERY, SCHEMA, Crash, Stalling, batches, new_store, run_batch, task
from tests.spark.store_engines import engine_on

P = PausePoint


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    return KINDS[request.param](tmp_path)


def cells(*every_change: str) -> list[Any]:
    """Return each database of the store with each kind of table; `make test` runs those that are named."""
    named = {"-".join(cell): cell for cell in itertools.product(("sqlite", "postgres"), KINDS)}
    return [
        pytest.param(cell, id=name, marks=() if name in every_change else pytest.mark.proof)
        for name, cell in named.items()
    ]


each_kind = pytest.mark.parametrize("world", cells("sqlite-delta", "postgres-iceberg"), indirect=True)
"""For rules that the log of the table makes; the others are those of the store, the publisher and the janitor."""


@pytest.fixture(params=cells("sqlite-delta"))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LakeWorld]:
    database, kind = request.param
    with engine_on(database, request, tmp_path) as engine:
        yield LakeWorld(new_store(engine), KINDS[kind](tmp_path))


@pytest.fixture
def sqlite_world(store: CommitStore, table: LakeTable) -> LakeWorld:
    return LakeWorld(store, table)


def append(world: LakeWorld, *values: str) -> None:
    """Append rows as another writer does."""
    world.table.append(pa.table({"value": list(values)}))


# ---- once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [P.BEFORE_ADDITION, P.AFTER_ADDITION, P.BEFORE_FORGETTING])
@each_kind
def test_a_sleeper_after_the_table_was_optimised_and_vacuumed(world: LakeWorld, point: PausePoint) -> None:
    owe(world, 0, [1, 2, 3])
    asleep = Stalling(lambda stalling: publisher(world, stalling.reach).publish()).until(point)
    publisher(world).publish()
    world.table.rewrite()
    assert not list(world.table.directory.glob("dualwrite-*"))
    asleep.go_on()
    assert asleep.error is None
    world.assert_exactly_once([1, 2, 3])


@each_kind
def test_commits_of_others_in_between_are_read_again(world: LakeWorld) -> None:
    owe(world, 0, [1])
    others = iter(("10", "11"))

    def pause(point: PausePoint) -> None:
        if point is P.BEFORE_ADDITION and (value := next(others, None)) is not None:
            append(world, value)

    publisher(world, pause, sleep=lambda seconds: None).publish()
    assert world.lake_rows == [1, 10, 11]
    assert (owed(world), len(world.table.generations())) == ((), 1)


def test_a_table_with_constant_foreign_commits(world: LakeWorld) -> None:
    owe(world, 0, [1])
    waits: list[float] = []

    def pause(point: PausePoint) -> None:
        if point is P.BEFORE_ADDITION:
            append(world, "10")

    with pytest.raises(SinkError, match="could not be added") as raised:
        publisher(world, pause, sleep=waits.append).publish()
    assert "other writers keep committing to it. It stays decided" in str(raised.value)
    assert "dualwrite spark recover" in str(raised.value)
    assert (len(owed(world)), world.table.generations()) == (1, [])
    assert len(waits) > 5
    publisher(world).publish()
    assert world.lake_rows.count(1) == 1


@each_kind
def test_a_commit_that_has_succeeded_with_an_error(world: LakeWorld) -> None:
    owe(world, 0, [1, 2])
    publisher(world, open_table=UnreliableLog).publish()
    world_rows = world.lake_rows
    assert (world_rows, owed(world)) == ([1, 2], ())


def test_a_commit_that_fails_stays_owed(world: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnreliableLog, "has_effect", False)
    owe(world, 0, [1, 2])
    with pytest.raises(SinkError, match="no answer"):
        publisher(world, open_table=UnreliableLog).publish()
    assert (world.lake_rows, len(owed(world))) == ([], 1)
    run_batch(world.process(), 1, [3])
    world.assert_exactly_once([1, 2, 3])


def test_owed_files_come_before_new_ones(world: LakeWorld) -> None:
    """A planner that does not know its query begins late: another driver decides after its plan."""
    other, late = world.process(die_at(P.BEFORE_ADDITION)), world.process()
    result = other.write(other.plan(), 0, 0, [1])
    plan = late.plan(query_id=None)
    assert plan.begins_late
    with pytest.raises(Crash):
        other.commit([result], 0, [1])
    late.commit([late.write(plan, 1, 0, [2])], 1, [2])
    world.assert_exactly_once([1, 2])
    assert len(world.table.generations()) == 2


@pytest.mark.parametrize("other", ["none", "another"])
def test_owed_files_are_published_by_a_query_whose_option_has_changed(
    world: LakeWorld, tmp_path: Path, other: str
) -> None:
    owe(world, 0, [1, 2])
    another = type(world.table)(tmp_path)
    run_batch(world.process(dual=None if other == "none" else another.dual()), 1, [3])
    assert (world.lake_rows, owed(world)) == ([1, 2], ())
    assert another.read()["value"].to_pylist() == ([] if other == "none" else ["3"])
    run_batch(world.process(), 2, [4])
    assert world.lake_rows == [1, 2, 4]


def test_a_decided_job_publishes_owed_files(world: LakeWorld) -> None:
    job = "job:daily"
    process = world.process(die_at(P.BEFORE_ADDITION))
    plan = process.sink.plan(SCHEMA, query_id=job, batch_id=0)
    with pytest.raises(Crash):
        process.commit([process.write(plan, 0, 0, [1], job)], 0, [1], job)
    again = world.process().sink.plan(SCHEMA, query_id=job, batch_id=0)
    assert again.generation is None
    world.assert_exactly_once([1])


def test_an_unreachable_kafka_does_not_keep_rows_from_the_table(world: LakeWorld) -> None:
    process = world.process()
    result = process.write(process.plan(), 0, 0, [1])
    world.broker.down = True
    with pytest.raises(SinkError):
        process.commit([result], 0, [1])
    assert (world.broker.committed, world.lake_rows) == ([], [1])
    world.broker.down = False
    run_batch(world.process(), 1, [2])
    world.assert_exactly_once([1, 2])


@each_kind
def test_an_unreachable_table_does_not_keep_records_from_kafka(world: LakeWorld) -> None:
    away = world.table.root.with_suffix(".away")

    def unmount(point: PausePoint) -> None:
        if point is P.AFTER_DECISION:
            world.table.root.rename(away)

    process = world.process(unmount)
    result = process.write(process.plan(), 0, 0, [1])
    with pytest.raises(
        SinkError, match=r"is decided, but could not be added .* there is no (Delta table|metadata file)"
    ):
        process.commit([result], 0, [1])
    assert (world.broker.committed, world.broker.open_ids) == ([1], [])
    away.rename(world.table.root)
    run_batch(world.process(), 1, [2])
    world.assert_exactly_once([1, 2])


def test_a_generation_decides_one_batch_only(world: LakeWorld) -> None:
    """The table tells batches apart by it. Two plans that begin late may share one."""
    late = world.process()
    plan = late.plan(query_id=None)
    owe(world, 0, [1])
    result = late.write(plan, 1, 0, [2])
    with pytest.raises(SinkError, match="has decided a batch for its table before"):
        late.commit([result], 1, [2])
    assert world.rows == [1]
    run_batch(world.process(), 1, [2])
    world.assert_exactly_once([1, 2])


@each_kind
def test_a_commit_that_is_repeated_after_the_files_are_compacted(world: LakeWorld) -> None:
    process = world.process()
    result = process.write(process.plan(), 0, 0, [1, 2])
    process.commit([result], 0, [1, 2])
    append(world, "3")
    world.table.rewrite()
    assert not process.commit([result], 0, [1, 2]).decided_anew
    assert (world.lake_rows, owed(world)) == ([1, 2, 3], ())


def test_a_repeated_commit_with_a_missing_file_does_not_call_the_batch_undecided(world: LakeWorld) -> None:
    process = world.process(die_at(P.BEFORE_ADDITION))
    result = process.write(process.plan(), 0, 0, [1])
    with pytest.raises(Crash):
        process.commit([result], 0, [1])
    world.file_of(str(result.attempt_id)).unlink()
    with pytest.raises(BatchLostError, match="was decided"):
        world.process().commit([result], 0, [1])


# ---- on disk ------------------------------------------------------------------------------------------------


def test_recorded_files_were_flushed_before(sqlite_world: LakeWorld, flushed: list[str]) -> None:
    world, order = sqlite_world, flushed
    run_batch(world.process(lambda point: order.append(str(point))), 0, [1], partitions=1)
    (file,) = world.table.files()
    before_prepare = order[: order.index(P.AFTER_FILE)]
    assert before_prepare[-2:] == [file, world.table.directory.name]
    before_forgetting = order[order.index(P.AFTER_ADDITION) : order.index(P.BEFORE_FORGETTING)]
    if isinstance(world.table, IcebergLake):
        assert world.table.pointer().rpartition("/")[2] in before_forgetting
        assert before_forgetting[-1] == "metadata"
    else:
        assert "00000000000000000002.json" in before_forgetting
        assert before_forgetting[-1] == "_delta_log"


# ---- losses -------------------------------------------------------------------------------------------------


def test_a_store_that_went_back_writes_nothing(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    world = sqlite_world
    run_batch(world.process(), 0, [1])
    copy_database(world.store_file, tmp_path / "backup.db")
    run_batch(world.process(), 1, [2])
    world.restore_store(tmp_path / "backup.db")
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
    with world.database.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM dw_lake_mark"))
    assert "another commit store" in refusal(world, world.table.dual())


def test_a_store_that_goes_back_before_the_decision(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    world = sqlite_world
    run_batch(world.process(), 0, [1])
    process = world.process()
    plan = process.plan()
    result = process.write(plan, 1, 0, [2])
    assert plan.generation is not None
    log = world.table.log(world.options.sink_id)
    owner = world.store.lake.owner(world.options.sink_id)
    assert log.add(log.read(), Mark(owner, plan.generation), []) is None
    with pytest.raises(StoreWentBackError):
        process.commit([result], 1, [2])
    assert (sorted(world.rows), world.lake_rows) == ([1], [1])


@each_kind
def test_an_older_copy_of_the_table_is_refused(world: LakeWorld, tmp_path: Path) -> None:
    run_batch(world.process(), 0, [1])
    world.table.back_up(tmp_path / "backup")
    run_batch(world.process(), 1, [2])
    world.table.restore(tmp_path / "backup")
    before = world.store.sinks()
    with pytest.raises(DualTableError, match="older copy"):
        world.process().plan()
    assert world.store.sinks() == before


@each_kind
def test_another_table_in_its_place_gets_the_new_files(world: LakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    run_batch(world.process(), 0, [1])
    world.table.replace()
    with caplog.at_level(logging.WARNING, "spark_sink"):
        run_batch(world.process(), 1, [2])
    assert world.lake_rows == [2]
    assert "is another table than before" in caplog.text


@each_kind
def test_another_table_does_not_get_files_owed_to_the_first(world: LakeWorld) -> None:
    owe(world, 0, [1])
    files = {name: Path(world.table.directory, name).read_bytes() for name in world.table.files()}
    world.table.replace()
    world.table.directory.mkdir(exist_ok=True)
    for name, content in files.items():
        Path(world.table.directory, name).write_bytes(content)
    with pytest.raises(BatchLostError, match="another table"):
        world.process().plan()
    assert world.store.acknowledge_lost(world.options.sink_id, QUERY, 0)
    run_batch(world.process(), 1, [2])
    assert world.lake_rows == [2]


def test_a_missing_file_is_found_before_anything_is_added(world: LakeWorld) -> None:
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
def test_a_file_missing_before_the_decision_is_written_again(world: LakeWorld, harm: str) -> None:
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


# ---- giving up ----------------------------------------------------------------------------------------------


@each_kind
def test_only_files_of_losers_are_deleted(world: LakeWorld) -> None:
    process = world.process()
    plan = process.plan()
    loser, winner = process.write(plan, 0, 0, [1, 2]), process.write(plan, 0, 0, [1, 2])
    janitor = Janitor(world.options.sink_id, world.store.lake, schema=None)
    assert janitor.clean_all() == 0, "both may be decided"
    assert len(world.table.files()) == 2
    process.commit([winner], 0, [1, 2])
    assert janitor.left() == 1
    run_batch(world.process(), 1, [3])
    assert not world.file_of(str(loser.attempt_id)).exists()
    assert world.file_of(str(winner.attempt_id)).exists()
    world.assert_exactly_once([1, 2, 3])


def test_owed_files_outlive_their_attempts(world: LakeWorld) -> None:
    """Attempts are deleted with their batches, which Kafka may have long before the table."""
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
    copy_database(world.store_file, tmp_path / "backup.db")
    process.commit([result], 1, [2])
    world.restore_store(tmp_path / "backup.db")
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
        connection.execute(sa.text("UPDATE dw_lake SET decided = :it, published = NULL"), {"it": generation})


def test_an_unrecorded_file_is_deleted_by_gc(world: LakeWorld) -> None:
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
    assert (janitor.left(), len(world.table.files())) == (0, 2)


def test_a_machine_without_the_directory_deletes_and_forgets_nothing(world: LakeWorld) -> None:
    process = world.process()
    plan = process.plan()
    process.write(plan, 0, 0, [1])
    winner = process.write(plan, 0, 0, [1])
    process.commit([winner], 0, [1])
    away = world.table.root.rename(world.table.root.with_suffix(".away"))
    janitor = Janitor(world.options.sink_id, world.store.lake, schema=None)
    assert janitor.clean_all() == 0
    away.rename(world.table.root)
    assert janitor.clean_all() == 1


def test_a_task_that_fails_leaves_no_file(world: LakeWorld) -> None:
    process = world.process()
    plan = process.plan()

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches([1, 2])
        raise ValueError("the input")

    with pytest.raises(ValueError, match="the input"):
        process.sink.write(plan, task(0, 0), failing())
    assert world.table.files() == set()


# ---- refusals before anything is written --------------------------------------------------------------------


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
    assert why in refusal(sqlite_world, type(sqlite_world.table)(tmp_path, pa.schema(columns)).dual())


def test_without_the_library_its_extra_is_named(sqlite_world: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = sqlite_world.table.kind
    monkeypatch.setitem(sys.modules, {"Delta": "deltalake", "Iceberg": "pyiceberg"}[kind], None)
    assert f"dualwrite[spark-{kind.lower()}]" in refusal(sqlite_world, sqlite_world.table.dual())


@each_kind
def test_a_table_that_is_altered_while_a_batch_is_written(world: LakeWorld) -> None:
    process = world.process()
    result = process.write(process.plan(), 0, 0, [1])
    world.table.retype()
    with pytest.raises(DualTableError, match="was altered"):
        process.commit([result], 0, [1])
    assert world.rows == []


@pytest.mark.parametrize("harm", ["retype", "drop"])
@each_kind
def test_a_table_that_is_altered_for_good_after_the_decision(world: LakeWorld, harm: str) -> None:
    """An operator can let the query continue without the batch in the table."""
    owe(world, 0, [1])
    getattr(world.table, harm)()
    with pytest.raises(
        SinkError, match=r"is decided.*export-files .* --batch 0.* acknowledge-lost .* --owed"
    ) as raised:
        publisher(world).publish()
    assert isinstance(raised.value, DualTableError) == (harm == "retype")
    assert len(owed(world)) == 1
    sink_id = world.options.sink_id
    assert not world.store.acknowledge_lost(sink_id, QUERY, 0)
    assert world.database.acknowledge_lost(sink_id, QUERY, 0, owed=True)
    assert owed(world) == ()
    assert not world.database.acknowledge_lost(sink_id, QUERY, 0, owed=True)
    run_batch(world.process(dual=None), 1, [2])
    assert sorted(world.broker.committed) == [1, 2]


@each_kind
def test_a_given_up_batch_that_is_added_later(world: LakeWorld) -> None:
    """A process that slept adds it, and dies. The batch was decided, so the table may have it."""
    run_batch(world.process(), 0, [1])
    owe(world, 1, [2])
    asleep = Stalling(lambda stalling: publisher(world, stalling.reach).publish()).until(P.BEFORE_ADDITION)
    assert world.database.acknowledge_lost(world.options.sink_id, QUERY, 1, owed=True)
    asleep.until(P.AFTER_ADDITION).kill()
    run_batch(world.process(), 2, [3])
    assert world.lake_rows == [1, 2, 3]


@pytest.mark.parametrize("before", ["owed", "being written"])
def test_a_column_that_was_widened(sqlite_world: LakeWorld, tmp_path: Path, before: str) -> None:
    """Decided files are converted to the table's new type; undecided ones are written again."""
    columns = pa.schema([pa.field("value", pa.string()), pa.field("n", pa.int32())])
    world = LakeWorld(sqlite_world.database, type(sqlite_world.table)(tmp_path, columns), dual=None)
    process = world.process(die_at(P.BEFORE_ADDITION), dual=world.table.dual(("value", "n")))
    rows = pa.record_batch({"value": pa.array(["1", "2"]), "n": pa.array([7, None], pa.int32())})
    result = process.sink.write(process.sink.plan(rows.schema, query_id=QUERY), task(0, 0), iter([rows]))
    if before == "being written":
        world.table.widen("n")
        with pytest.raises(DualTableError, match=r"n of .* was int32, and is int64 now"):
            process.commit([result], 0)
        assert world.table.read().num_rows == 0
        return
    with pytest.raises(Crash):
        process.commit([result], 0)
    world.table.widen("n")
    publisher(world).publish()
    found = world.table.read()
    assert (found["value"].to_pylist(), found["n"].to_pylist()) == (["1", "2"], [7, None])
    assert (found.schema.field("n").type, owed(world)) == (pa.int64(), ())


def test_null_in_a_column_that_is_not_null(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    columns = pa.schema([pa.field("value", pa.string()), pa.field("id", pa.int64(), nullable=False)])
    process = sqlite_world.process(dual=type(sqlite_world.table)(tmp_path, columns).dual(None))
    schema = pa.schema([("value", pa.string()), ("id", pa.int32())])
    plan = process.sink.plan(schema, query_id=QUERY)
    good = pa.record_batch([pa.array(["1"]), pa.array([1], pa.int32())], schema=schema)
    bad = pa.record_batch([pa.array(["1"]), pa.array([None], pa.int32())], schema=schema)
    with pytest.raises(SinkOptionError):
        process.sink.plan(pa.schema([("value", pa.string())]), query_id=QUERY)
    with pytest.raises(DualTableError, match="a row has no id"):
        process.sink.write(plan, task(0, 0), iter([good, bad]))


def test_values_arrive_unchanged(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    columns = pa.schema(
        [
            ("value", pa.string()),
            ("big", pa.int64()),
            ("wide", pa.float64()),
            ("money", pa.decimal128(20, 4)),
            ("price", pa.decimal128(9, 2)),
            ("total", pa.decimal128(18, 3)),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("blob", pa.binary()),
            ("yes", pa.bool_()),
            ("left_out", pa.string()),
        ]
    )
    table = type(sqlite_world.table)(tmp_path, columns)
    given = pa.record_batch(
        {
            "VALUE": pa.array(["1", "2"]),
            "big": pa.array([2**31 - 1, None], pa.int32()),
            "wide": pa.array([1.5, float("nan")], pa.float32()),
            "money": pa.array([None, None], pa.decimal128(10, 2)).fill_null(pa.scalar(1, pa.decimal128(10, 2))),
            "price": pa.array([None, -1], pa.decimal128(9, 2)),
            "total": pa.array([10**14, None], pa.decimal128(18, 3)),
            "at": pa.array([0, 1_750_000_000_000_001], pa.timestamp("us", "Europe/Berlin")),
            "local": pa.array([0, 1], pa.timestamp("us")),
            "day": pa.array([0, 20_000], pa.date32()),
            "blob": pa.array([b"\x00", b""]),
            "yes": pa.array([True, None]),
        }
    )
    given = given.rename_columns([name.lower() for name in given.schema.names])
    names = tuple(given.schema.names)
    process = sqlite_world.process(dual=table.dual(names))
    plan = process.sink.plan(given.schema, query_id=QUERY)
    result = process.sink.write(plan, task(0, 0), iter([given]))
    process.commit([result], 0)
    found = table.read().combine_chunks()
    for name in (name for name in names if name != "wide"):  # it has NaN, which equals nothing
        wanted = given.column(name).cast(columns.field(name).type)
        assert found[name].combine_chunks().cast(wanted.type).equals(wanted), name
    assert str(found["wide"].to_pylist()) == "[1.5, nan]"
    assert found["left_out"].null_count == 2
