"""A table of files that two commit stores take for their own: other clusters' stores, new ones, copies of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from spark_sink.errors import DualTableError, SinkOptionError, StoreWentBackError
from spark_sink.lake.opening import open_log
from spark_sink.lake.place import LakePlace
from spark_sink.lake.table_log import Mark
from spark_sink.options import DualTable
from tests.spark.lake_model import LakeWorld, owe, owed, publisher, refusal
from tests.spark.lake_tables import KINDS, DeltaLake, LakeTable, copy_database
from tests.spark.sink_model import new_store, run_batch


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    return KINDS[request.param](tmp_path)


@pytest.fixture
def world(tmp_path: Path, table: LakeTable) -> Iterator[LakeWorld]:
    yield from _world(tmp_path / "one.db", table)


@pytest.fixture
def other(world: LakeWorld, tmp_path: Path, table: LakeTable) -> Iterator[LakeWorld]:
    """The same sink id and table, with another store, and in another cluster."""
    yield from _world(tmp_path / "other.db", table, sink_id=world.options.sink_id)


def _world(path: Path, table: LakeTable, **options: Any) -> Iterator[LakeWorld]:
    engine = sa.create_engine(f"sqlite:///{path}")
    yield LakeWorld(new_store(engine), table, **options)
    engine.dispose()


def _by_another_name(table: LakeTable, directory: Path) -> DualTable:
    """Return the same table by another path, or by another name of its catalog."""
    place = table.place
    if isinstance(table, DeltaLake):
        (directory / "link").symlink_to(table.root)
        return replace(table.dual(), lake=LakePlace(str(directory / "link")))
    assert place.catalog is not None
    renamed = replace(place.catalog, name="another")
    with sa.create_engine(str(place.catalog.url)).begin() as connection:
        copied = "SELECT 'another', table_namespace, table_name, metadata_location, previous_metadata_location"
        columns = "catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location"
        connection.execute(sa.text(f"INSERT INTO iceberg_tables ({columns}) {copied} FROM iceberg_tables"))
    return replace(table.dual(), lake=replace(place, catalog=renamed))


# ---- two stores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["the same", "another"])
def test_a_second_store_is_refused_before_anything_is_written(
    world: LakeWorld, other: LakeWorld, tmp_path: Path, named: str
) -> None:
    plan = world.process().plan()
    dual = world.table.dual() if named == "the same" else _by_another_name(world.table, tmp_path)
    assert "another commit store" in refusal(other, dual)
    process = world.process()
    process.commit([process.write(plan, 0, 0, [1])], 0, [1])
    assert "another commit store" in refusal(other, other.table.dual())
    run_batch(world.process(), 1, [2])
    world.assert_exactly_once([1, 2])


def test_one_of_two_claims_at_once_is_refused(world: LakeWorld, other: LakeWorld) -> None:
    class Overtaken:
        """A log whose claim comes after the other store's."""

        def __init__(self, place: LakePlace, sink_id: str) -> None:
            self._log = open_log(place, sink_id)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._log, name)

        def add(self, state: Any, mark: Mark, files: Any) -> Exception | None:
            publisher(world).claim(world.table.place)
            return self._log.add(state, mark, files)

    late = publisher(other, open_table=Overtaken, sleep=lambda seconds: None)
    with pytest.raises(SinkOptionError, match="another commit store"):
        late.claim(other.table.place)
    run_batch(world.process(), 0, [1])
    world.assert_exactly_once([1])


def test_other_sinks_of_other_stores_share_the_table(world: LakeWorld, tmp_path: Path) -> None:
    for third in _world(tmp_path / "third.db", world.table):
        run_batch(third.process(), 0, [1])
        run_batch(world.process(), 0, [2])
        run_batch(third.process(), 1, [3])
    assert world.lake_rows == [1, 2, 3]


def test_a_table_that_is_replaced_while_a_batch_is_written_is_claimed_first(world: LakeWorld) -> None:
    process = world.process()
    result = process.write(process.plan(), 0, 0, [1])
    content = world.file_of(str(result.attempt_id)).read_bytes()
    world.table.replace()
    world.table.directory.mkdir(exist_ok=True)
    world.file_of(str(result.attempt_id)).write_bytes(content)
    with pytest.raises(DualTableError, match="is not claimed"):
        process.commit([result], 0, [1])
    run_batch(world.process(), 0, [1])
    world.assert_exactly_once([1])


# ---- copies of one store --------------------------------------------------------------------------------------


def test_a_copy_that_got_ahead_keeps_the_original_from_deciding(world: LakeWorld, other: LakeWorld) -> None:
    process = world.process()
    result = process.write(process.plan(), 0, 0, [1])
    copy_database(world.store_file, other.store_file)
    theirs = other.process()
    theirs.commit([theirs.write(theirs.plan(), 0, 0, [2])], 0, [2])
    with pytest.raises(StoreWentBackError):
        process.commit([result], 0, [1])
    assert (world.rows, world.lake_rows) == ([], [2]), "the copy has got ahead, so nothing was decided"


@pytest.mark.parametrize("batches", [1, 2], ids=["the same generation", "a higher one"])
def test_owed_files_stay_owed_when_a_copy_has_published(world: LakeWorld, other: LakeWorld, batches: int) -> None:
    run_batch(world.process(), 0, [1])
    copy_database(world.store_file, other.store_file)
    owe(world, 1, [2])
    for number in range(batches):
        run_batch(other.process(), 1 + number, [10 + number])
    with pytest.raises(StoreWentBackError):
        world.process().plan()
    with pytest.raises(StoreWentBackError):
        publisher(world).publish()
    assert [batch.rows for batch in owed(world)] == [1]
    assert 2 not in world.lake_rows


def test_a_copy_that_is_behind_is_noticed(world: LakeWorld, other: LakeWorld) -> None:
    run_batch(world.process(), 0, [1])
    copy_database(world.store_file, other.store_file)
    run_batch(other.process(), 1, [10])
    for _ in range(3):
        world.store.plan(world.options.sink_id, query_id="query-1", on_new_checkpoint=world.options.on_new_checkpoint)
    with pytest.raises(StoreWentBackError):
        world.process().plan()
    with world.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE dw_lake SET decided = 1000"))
    with pytest.raises(StoreWentBackError, match="a copy of it is in use"):
        world.process().plan()


def test_files_owed_by_a_copy_too_are_published_once(world: LakeWorld, other: LakeWorld) -> None:
    owe(world, 0, [1])
    copy_database(world.store_file, other.store_file)
    publisher(other).publish()
    publisher(world).publish()
    assert (world.lake_rows, owed(world), owed(other)) == ([1], (), ())
