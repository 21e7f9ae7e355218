"""Data files that no table and no store names any more: `Strays` deletes some, and must keep others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from spark_sink.errors import DualTableError, SinkError, StoreWentBackError
from spark_sink.lake.files import copy_name
from spark_sink.lake.publishing import Publisher
from spark_sink.lake.strays import Strays
from spark_sink.pause_points import PausePoint
from spark_sink.store.commit_store import CommitStore
from tests.spark.lake_model import LakeWorld, owe, owed, publisher
from tests.spark.lake_tables import KINDS, DeltaLake, IcebergLake, LakeTable, copy_database
from tests.spark.sink_model import QUERY, Stalling, run_batch, task

P = PausePoint
DAY_S = 86_400
AGE_DAYS = 7


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    return KINDS[request.param](tmp_path)


@pytest.fixture
def world(store: CommitStore, table: LakeTable) -> LakeWorld:
    made = LakeWorld(store, table)
    run_batch(made.process(), 0, [1, 2])
    return made


def strays(world: LakeWorld) -> Strays:
    return Strays(world.options.sink_id, world.database, min_age_s=AGE_DAYS * DAY_S)


def age(world: LakeWorld, days: float = 30) -> None:
    """Let all data files be so old."""
    then = time.time() - days * DAY_S
    for name in world.table.files():
        os.utime(world.table.directory / name, (then, then))


def forget(world: LakeWorld) -> None:
    """Let the store forget all attempts that are over, as pruning does."""
    with world.database.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM dw_attempt WHERE live_txn_id IS NULL"))


def killed(world: LakeWorld, batch_id: int) -> Path:
    """Let a task be killed while it writes its file; return the file, whose attempt is condemned by the next plan."""
    process = world.process()
    plan = process.plan()
    lease = world.store.lease(world.options.sink_id, plan.generation, task(batch_id, 0))
    assert lease is not None
    file = world.file_of(lease.attempt_id)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"as a killed task leaves it")
    return file


def assert_whole(world: LakeWorld, values: list[int]) -> None:
    """Check that the table has all of its files, and the sink goes on."""
    world.assert_exactly_once(values)
    run_batch(world.process(), 1_000, [1_000])
    world.assert_exactly_once([*values, 1_000])


# ---- deleted --------------------------------------------------------------------------------------------------


def test_the_file_of_a_killed_task_is_deleted_once_its_attempt_is_forgotten(world: LakeWorld) -> None:
    file = killed(world, 1)
    age(world)
    assert strays(world).find() == [], "it may be writing"
    run_batch(world.process(), 1, [3])
    age(world)
    assert strays(world).find() == [], "the store knows the attempt"
    forget(world)
    assert strays(world).find() == [file]
    assert strays(world).delete() == 1
    assert (file.exists(), strays(world).delete()) == (False, 0)
    assert_whole(world, [1, 2, 3])


@pytest.mark.parametrize("days", [AGE_DAYS - 0.5, AGE_DAYS + 0.5])
def test_a_file_is_old_by_the_last_plan_that_the_store_knows(world: LakeWorld, days: float) -> None:
    """A restored or abandoned store keeps files of later times."""
    file = killed(world, 1)
    run_batch(world.process(), 1, [3])
    forget(world)
    age(world, days + 100)
    with world.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE dw_sink SET updated_at = datetime(updated_at, '-100 days')"))
    assert strays(world).find() == ([file] if days > AGE_DAYS else [])


def test_copies_for_an_altered_table_and_files_of_given_up_batches_are_deleted(world: LakeWorld) -> None:
    owe(world, 1, [3])
    (batch,) = owed(world)
    (attempt_id,) = (file.attempt_id for file in batch.files)
    owner = world.store.lake.owner(world.options.sink_id)
    copy = world.table.directory / copy_name(owner, attempt_id, "0" * 32)
    copy.write_bytes(world.file_of(attempt_id).read_bytes())
    age(world)
    forget(world)
    assert strays(world).find() == [], "a process that sleeps may add both"
    assert world.database.acknowledge_lost(world.options.sink_id, QUERY, 1, owed=True)
    assert set(strays(world).find()) == {copy, world.file_of(attempt_id)}
    assert strays(world).delete() == 2
    run_batch(world.process(), 2, [4])
    assert world.lake_rows == [1, 2, 4]


# ---- kept -----------------------------------------------------------------------------------------------------


def test_prepared_or_owed_files_stay_however_old_they_are(world: LakeWorld) -> None:
    owe(world, 1, [3])
    process = world.process()
    plan = process.plan()
    result = process.write(plan, 2, 0, [4])
    copy = process.write(plan, 2, 0, [4])
    age(world)
    forget(world)
    assert strays(world).delete() == 0
    process.commit([result], 2, [4])
    assert not owed(world)
    forget(world)
    age(world)
    loser = world.file_of(str(copy.attempt_id))
    assert (strays(world).delete(), loser.exists()) == (0, True), "it is condemned, and recorded"
    assert_whole(world, [1, 2, 3, 4])


def test_files_of_others_stay(world: LakeWorld, tmp_path: Path) -> None:
    """Files of other sinks of the same store, of other stores' sinks, and of other programs."""
    second = LakeWorld(world.database, world.table)
    run_batch(second.process(), 0, [3])
    file = killed(second, 1)
    run_batch(second.process(), 1, [4])
    foreign = [world.table.directory / name for name in ("part-0.parquet", f"dualwrite-{'0' * 16}-{'0' * 32}.parquet")]
    for each in foreign:
        each.write_bytes(b"of another program")
    forget(world)
    age(world)
    assert strays(world).delete() == 0
    assert strays(second).delete() == 1
    assert (file.exists(), [each.exists() for each in foreign]) == (False, [True, True])
    assert world.lake_rows == [1, 2, 3, 4]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_files_of_an_older_version_of_a_delta_table_stay(store: CommitStore, tmp_path: Path, checkpoint: bool) -> None:
    table = DeltaLake(tmp_path)
    world = LakeWorld(store, table)
    run_batch(world.process(), 0, [1, 2])
    version = table.open().version()
    run_batch(world.process(), 1, [3])
    table.open().optimize.compact()
    if checkpoint:
        table.open().create_checkpoint()
        for each in (table.root / "_delta_log").glob("*.json"):
            if int(each.stem) < table.open().version():
                each.unlink()
    forget(world)
    age(world)
    before = table.files()
    assert strays(world).delete() == 0
    assert table.files() == before
    if not checkpoint:
        old = table.open()
        old.load_as_version(version)
        assert sorted(old.to_pyarrow_table()["value"].to_pylist()) == ["1", "2"]


def test_files_of_an_older_snapshot_of_an_iceberg_table_stay(store: CommitStore, tmp_path: Path) -> None:
    table = IcebergLake(tmp_path)
    world = LakeWorld(store, table)
    run_batch(world.process(), 0, [1, 2])
    old = table.open().current_snapshot().snapshot_id
    table.rewrite_on_main()
    run_batch(world.process(), 1, [3])
    forget(world)
    age(world)
    assert strays(world).delete() == 0
    assert sorted(table.open().scan(snapshot_id=old).to_arrow()["value"].to_pylist()) == ["1", "2"]
    current = table.open().current_snapshot().snapshot_id
    table.open().maintenance.expire_snapshots().by_ids(
        [each.snapshot_id for each in table.open().snapshots() if each.snapshot_id != current]
    ).commit()
    assert strays(world).delete() == 2
    assert_whole(world, [1, 2, 3])


# ---- stores and tables that do not belong together --------------------------------------------------------------


def test_a_store_that_went_back_deletes_nothing(world: LakeWorld, tmp_path: Path) -> None:
    copy_database(world.store_file, tmp_path / "b")
    run_batch(world.process(), 1, [3])
    process = world.process()
    process.commit([process.write(process.plan(), 2, 0, [4])], 2, [4])
    world.restore_store(tmp_path / "b")
    forget(world)
    age(world)
    before = world.table.files()
    with pytest.raises(StoreWentBackError):
        strays(world).delete()
    assert (world.table.files(), world.lake_rows) == (before, [1, 2, 3, 4])


def test_an_older_copy_of_the_table_keeps_its_missing_files(world: LakeWorld, tmp_path: Path) -> None:
    world.table.back_up(tmp_path / "backup")
    run_batch(world.process(), 1, [3])
    files = {name: (world.table.directory / name).read_bytes() for name in world.table.files()}
    world.table.restore(tmp_path / "backup")
    for name, content in files.items():
        (world.table.directory / name).write_bytes(content)
    forget(world)
    age(world)
    with pytest.raises(DualTableError, match="older copy"):
        strays(world).delete()
    assert world.table.files() == set(files)


def test_another_table_in_its_place_is_left_alone(world: LakeWorld) -> None:
    file = killed(world, 1)
    run_batch(world.process(), 1, [3])
    forget(world)
    content = file.read_bytes()
    world.table.replace()
    world.table.directory.mkdir(exist_ok=True)
    file.write_bytes(content)
    age(world)
    assert (strays(world).find(), strays(world).delete()) == ([], 0)


def test_a_directory_without_its_table_is_left_alone(world: LakeWorld) -> None:
    run_batch(world.process(), 1, [3])
    forget(world)
    age(world)
    log = next(world.table.root.rglob("_delta_log" if isinstance(world.table, DeltaLake) else "metadata"))
    log.rename(log.with_name("away"))
    with pytest.raises(SinkError, match="there is no"):
        strays(world).delete()
    assert len(world.table.files()) == 3


# ---- between any two steps --------------------------------------------------------------------------------------


def test_files_added_late_by_a_sleeping_process_are_there(world: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has read table and debts, and sleeps; an operator gives the batch up, and its files are deleted."""
    owe(world, 1, [3])
    asleep = Stalling(lambda stalling: publisher(world, stalling.reach).publish()).until(P.BEFORE_ADDITION)
    assert world.database.acknowledge_lost(world.options.sink_id, QUERY, 1, owed=True)
    forget(world)
    age(world)
    assert strays(world).delete() == 1
    asleep.go_on()
    assert asleep.error is None
    run_batch(world.process(), 2, [4])
    assert world.lake_rows == [1, 2, 4], "and no commit names the file that is deleted"


def test_files_added_during_a_search_for_strays_stay(world: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is added after the store was read, and before the table is outdated."""
    owe(world, 1, [3])
    asleep = Stalling(lambda stalling: publisher(world, stalling.reach).publish()).until(P.BEFORE_ADDITION)
    assert world.database.acknowledge_lost(world.options.sink_id, QUERY, 1, owed=True)
    forget(world)
    age(world)
    outdate = Publisher.outdate

    def late(self: Publisher, place: object) -> object:
        asleep.until(P.BEFORE_FORGETTING)
        return outdate(self, place)  # type: ignore[arg-type]

    monkeypatch.setattr(Publisher, "outdate", late)
    assert strays(world).delete() == 0
    asleep.kill()
    assert world.lake_rows == [1, 2, 3]
