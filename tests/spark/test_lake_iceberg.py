"""Iceberg tables alone: a catalog with a pointer, snapshots that expire, field ids; and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from spark_sink.errors import BatchLostError, DualTableError, SinkError
from spark_sink.lake.iceberg_commit import StaleError
from spark_sink.lake.iceberg_pointer import TablePointer
from spark_sink.lake.place import Catalog, LakePlace
from spark_sink.lake.table_log import Mark
from spark_sink.pause_points import PausePoint as P
from spark_sink.store.commit_store import CommitStore
from tests.spark.lake_model import LakeWorld, die_at, owe, owed, publisher, refusal
from tests.spark.lake_tables import IcebergLake
from tests.spark.sink_model import QUERY, Crash, Stalling, run_batch, task
from tests.support.conditions import until
from tests.support.databases import unique

types: Any = pytest.importorskip("pyiceberg.types")
transforms: Any = pytest.importorskip("pyiceberg.transforms")


@pytest.fixture(params=["sqlite", "postgres"])
def catalog_url(request: pytest.FixtureRequest) -> str | None:
    """Return the URL of a catalog in Postgres; None for one in a file."""
    if request.param == "sqlite":
        return None
    server: sa.URL = request.getfixturevalue("postgres_server").url
    schema = unique("catalog").replace("-", "_")
    with sa.create_engine(server, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    url = server.set(drivername="postgresql+psycopg").update_query_dict({"options": f"-csearch_path={schema}"})
    return url.render_as_string(hide_password=False)


@pytest.fixture
def table(tmp_path: Path, catalog_url: str | None) -> IcebergLake:
    return IcebergLake(tmp_path, catalog_url=catalog_url)


@pytest.fixture
def world(store: CommitStore, table: IcebergLake) -> LakeWorld:
    return LakeWorld(store, table)


@pytest.fixture
def sqlite_table(tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path)


@pytest.fixture
def sqlite_world(store: CommitStore, sqlite_table: IcebergLake) -> LakeWorld:
    return LakeWorld(store, sqlite_table)


def in_metadata(table: IcebergLake) -> set[str]:
    return {each.name for each in (table.root / "shop" / "orders" / "metadata").iterdir()}


def asleep_before_addition(world: LakeWorld) -> Stalling:
    """Return a publisher that has read the table, and is about to add the owed files."""
    return Stalling(lambda stalling: publisher(world, stalling.reach).publish()).until(P.BEFORE_ADDITION)


# ---- the pointer --------------------------------------------------------------------------------------------


def pointer(table: IcebergLake) -> TablePointer:
    place = table.place
    assert place.catalog is not None
    return TablePointer(place, place.catalog)


def test_the_pointer_is_moved_only_from_where_it_was_read(table: IcebergLake) -> None:
    moved, current = pointer(table), table.pointer()
    assert moved.read() == moved.read_durably() == current
    assert not moved.move("file:///elsewhere", "file:///new")
    assert table.pointer() == current
    assert moved.move(current, "file:///new")
    assert not moved.move(current, "file:///newer")
    assert moved.read() == "file:///new"


def test_a_commit_waits_for_one_that_is_under_way_and_then_fails(table: IcebergLake) -> None:
    """Two writers that have read the same metadata file: the first holds the row, and has not committed yet."""
    current, moved = table.pointer(), []
    engine = sa.create_engine(table.url, poolclass=sa.NullPool)
    update = sa.text("UPDATE iceberg_tables SET metadata_location = 'file:///first' WHERE metadata_location = :it")
    with engine.connect() as first:
        first.execute(update, {"it": current})
        second = threading.Thread(target=lambda: moved.append(pointer(table).move(current, "file:///second")))
        second.start()
        if engine.dialect.name == "postgresql":
            until(lambda: _is_waiting(engine))
        first.commit()
    second.join(60)
    assert (moved, table.pointer()) == ([False], "file:///first")


def _is_waiting(engine: sa.Engine) -> bool:
    with engine.connect() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%iceberg_tables%'"
        return bool(connection.execute(sa.text(query)).scalar_one())


def test_a_commit_whose_answer_is_lost_and_that_takes_effect_later(world: LakeWorld, table: IcebergLake) -> None:
    """The server is still at it while the table is read again: nothing is added twice, whichever comes first."""
    owe(world, 0, [1, 2])
    late: list[tuple[str, str]] = []

    class Late(TablePointer):
        def move(self, old: str, new: str) -> bool:
            late.append((old, new))
            raise OSError("no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_sink.lake.iceberg_log.TablePointer", Late)
        with pytest.raises(SinkError, match="no answer"):
            publisher(world).publish()
    asleep = asleep_before_addition(world)
    assert pointer(table).move(*late[0])
    asleep.go_on()
    assert asleep.error is None
    world.assert_exactly_once([1, 2])
    assert len(world.table.generations()) == 1


def test_a_roll_back_does_not_bring_a_batch_back(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    """The branch is where the sleeping publisher saw it, but the property says that the batch was added."""
    world, table = sqlite_world, sqlite_table
    run_batch(world.process(), 0, [1])
    owe(world, 1, [2])
    asleep = asleep_before_addition(world)
    before = table.open().current_snapshot().snapshot_id
    publisher(world).publish()
    assert world.lake_rows == [1, 2]
    table.open().manage_snapshots().rollback_to_snapshot(before).commit()
    asleep.go_on()
    assert asleep.error is None
    assert (world.lake_rows, owed(world)) == ([1], ())


def test_a_property_of_another_writer_is_kept(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    world, table = sqlite_world, sqlite_table
    owe(world, 0, [1])
    asleep = asleep_before_addition(world)
    table.open().transaction().set_properties({"owner": "shop"}).commit_transaction()
    asleep.go_on()
    assert table.open().properties["owner"] == "shop"
    assert table.open().properties[f"dualwrite.{world.options.sink_id}.generation"] == "1"
    world.assert_exactly_once([1])


def test_a_table_that_is_created_again_while_a_publisher_sleeps(
    sqlite_world: LakeWorld, sqlite_table: IcebergLake
) -> None:
    owe(sqlite_world, 0, [1])
    asleep = asleep_before_addition(sqlite_world)
    sqlite_table.replace()
    asleep.go_on()
    assert isinstance(asleep.error, BatchLostError)
    assert (sqlite_world.lake_rows, len(owed(sqlite_world))) == ([], 1)


def test_pyiceberg_does_not_try_again_by_itself(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    """pyiceberg's own retry would add the files to the changed table without checking the generation."""
    world, table = sqlite_world, sqlite_table
    table.open().transaction().set_properties({"commit.retry.num-retries": "10"}).commit_transaction()
    run_batch(world.process(), 0, [1])
    log = table.log(world.options.sink_id)
    state = log.read()
    table.append(pa.table({"value": ["2"]}))
    current, files = table.pointer(), in_metadata(table)
    assert isinstance(log.add(state, Mark(1, 1_000), []), StaleError)
    assert (table.pointer(), in_metadata(table)) == (current, files), "nothing is left of what was tried"


def test_files_that_a_commit_may_refer_to_are_not_deleted(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    log = sqlite_table.log(sqlite_world.options.sink_id)
    before = in_metadata(sqlite_table)

    class Unknown(TablePointer):
        def move(self, old: str, new: str) -> bool:
            super().move(old, new)
            raise OSError("no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_sink.lake.iceberg_log.TablePointer", Unknown)
        log = sqlite_table.log(sqlite_world.options.sink_id)
        assert isinstance(log.add(log.read(), Mark(1, 7), []), OSError)
    assert log.read().mark.generation == 7
    assert before < in_metadata(sqlite_table)


def test_writers_at_once(table: IcebergLake) -> None:
    """Sinks, each in two processes, beside another writer; no commit is lost, and none is made twice."""
    generations, failures = range(1, 6), []

    def publish(sink_id: str) -> None:
        log = table.log(sink_id)
        for generation in generations:
            while ((state := log.read()).mark.generation or 0) < generation:
                failures.append(log.add(state, Mark(1, generation), []))
            log.flush(state)

    def append() -> None:
        for number in generations:
            table.append(pa.table({"value": [str(number)]}))

    table.open().transaction().set_properties({"commit.retry.num-retries": "100"}).commit_transaction()
    threads = [threading.Thread(target=publish, args=(sink_id,)) for sink_id in ("a", "a", "b", "b")]
    threads.append(threading.Thread(target=append))
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    found = [each.summary.additional_properties for each in table.open().snapshots()]
    made = [
        (each["dualwrite.sink-id"], int(each["dualwrite.generation"])) for each in found if "dualwrite.sink-id" in each
    ]
    assert sorted(made) == [(sink_id, generation) for sink_id in "ab" for generation in generations]
    assert {type(each) for each in failures} <= {type(None), StaleError}
    assert sorted(table.read()["value"].to_pylist()) == [str(number) for number in generations]


# ---- on disk ------------------------------------------------------------------------------------------------


def test_all_that_the_pointer_leads_to_is_flushed_before_it_is_moved(
    sqlite_world: LakeWorld, sqlite_table: IcebergLake, flushed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_world.process().plan()  # which claims the table
    order, move, read = flushed, TablePointer.move, TablePointer.read_durably
    order.clear()

    def noting(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            order.append(what)
            return call(*given)

        return noted

    monkeypatch.setattr(TablePointer, "move", noting("MOVED", move))
    monkeypatch.setattr(TablePointer, "read_durably", noting("DURABLE", read))
    before = in_metadata(sqlite_table)
    run_batch(sqlite_world.process(lambda point: order.append(str(point))), 0, [1], partitions=1)
    written = in_metadata(sqlite_table) - before
    assert len(written) == 3, "a manifest, a manifest list and a metadata file"
    moved = order.index("MOVED")
    assert written | {"metadata"} <= set(order[order.index(P.BEFORE_ADDITION) : moved])
    before_forgetting = order[moved + 1 : order.index(P.BEFORE_FORGETTING)]
    assert written | {"metadata"} <= set(before_forgetting), "another process may have moved the pointer"
    assert before_forgetting[-1] == "DURABLE"


def test_files_that_cannot_be_flushed_stay_owed(sqlite_world: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    owe(sqlite_world, 0, [1])

    def lost(self: TablePointer) -> None:
        raise SinkError("the catalog is away")

    with monkeypatch.context() as patch:
        patch.setattr(TablePointer, "read_durably", lost)
        with pytest.raises(SinkError, match="away"):
            publisher(sqlite_world).publish()
    assert (sqlite_world.lake_rows, len(owed(sqlite_world))) == ([1], 1)
    run_batch(sqlite_world.process(), 1, [2])
    sqlite_world.assert_exactly_once([1, 2])


def test_a_commit_that_a_failover_of_the_catalog_takes_back_is_made_again(
    sqlite_world: LakeWorld, sqlite_table: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    owe(sqlite_world, 0, [1])
    before = sqlite_table.open().metadata_location
    taken_back: list[str | None] = []
    read_durably = TablePointer.read_durably

    def after_failover(self: TablePointer) -> str | None:
        if not taken_back:
            taken_back.append(self.read())
            assert self.move(str(taken_back[0]), before)
        return read_durably(self)

    monkeypatch.setattr(TablePointer, "read_durably", after_failover)
    publisher(sqlite_world).publish()
    assert taken_back != [before]
    sqlite_world.assert_exactly_once([1])


# ---- history ------------------------------------------------------------------------------------------------


def test_a_generation_that_was_removed_is_noticed(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    run_batch(sqlite_world.process(), 0, [1])
    name = f"dualwrite.{sqlite_world.options.sink_id}.generation"
    sqlite_table.open().transaction().remove_properties(name).commit_transaction()
    with pytest.raises(DualTableError, match="older copy"):
        sqlite_world.process().plan()
    sqlite_table.open().transaction().set_properties({name: "many"}).commit_transaction()
    with pytest.raises(SinkError, match="cannot be read"):
        sqlite_world.process().plan()
    sqlite_table.open().transaction().set_properties({name: "1"}).commit_transaction()
    run_batch(sqlite_world.process(), 1, [2])
    assert sqlite_world.lake_rows == [1, 2]


def test_manifests_are_merged_where_the_table_wants_it(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    wanted = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "3"}
    sqlite_table.open().transaction().set_properties(wanted).commit_transaction()
    for batch in range(10):
        run_batch(sqlite_world.process(), batch, [2 * batch, 2 * batch + 1])
    sqlite_world.assert_exactly_once(range(20))
    snapshot = sqlite_table.open().current_snapshot()
    assert len(snapshot.manifests(sqlite_table.open().io)) < 5
    assert len(sqlite_table.generations()) == 10


def test_a_file_that_only_a_tag_has_is_not_deleted(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    """The file of a store that has given its batch up: it is not in the main branch any more."""
    world, table = sqlite_world, sqlite_table
    process = world.process()
    result = process.write(process.plan(), 0, 0, [1])
    log = table.log(world.options.sink_id)
    process.commit([result], 0, [1])
    table.open().manage_snapshots().create_tag(table.open().current_snapshot().snapshot_id, "kept").commit()
    table.rewrite_on_main()
    name = world.file_of(str(result.attempt_id)).name
    assert name not in table.named()
    assert name in log.file_names(log.read())


def test_rows_are_read_by_the_ids_of_their_columns(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    run_batch(sqlite_world.process(), 0, [1, 2])
    with sqlite_table.open().update_schema() as update:
        update.rename_column("value", "text")
    with sqlite_table.open().update_schema() as update:
        update.add_column("value", types.StringType())
    found = sqlite_table.read()
    assert sorted(found["text"].to_pylist()) == ["1", "2"]
    assert found["value"].null_count == 2


def test_a_column_dropped_and_added_again_is_a_new_column(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    owe(sqlite_world, 0, [1])
    with sqlite_table.open().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("value")
    with sqlite_table.open().update_schema() as update:
        update.add_column("value", types.StringType())
    with pytest.raises(DualTableError, match="another one of that name"):
        publisher(sqlite_world).publish()


def test_columns_may_be_added_at_any_time(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    owe(sqlite_world, 0, [1])
    with sqlite_table.open().update_schema() as update:
        update.add_column("more", types.LongType())
    run_batch(sqlite_world.process(), 1, [2])
    sqlite_world.assert_exactly_once([1, 2])


def test_filters_find_rows_in_files_without_statistics(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    run_batch(sqlite_world.process(), 0, [1, 2, 3])
    assert sqlite_table.open().scan(row_filter="value = '2'").to_arrow()["value"].to_pylist() == ["2"]
    assert sqlite_table.open().scan(row_filter="value = '7'").to_arrow().num_rows == 0
    assert sqlite_table.open().scan().count() == 3


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_files_are_named_as_the_table_is(sqlite_world: LakeWorld, tmp_path: Path, scheme: str) -> None:
    """Tools that delete orphan files compare their names with those in the manifests."""
    location = f"{scheme}{tmp_path}/with space/orders"
    table = IcebergLake(tmp_path, location=location)
    run_batch(sqlite_world.process(dual=table.dual()), 0, [1, 2])
    files = [task.file for task in table.open().scan().plan_files()]
    assert {file.file_path.rpartition("/")[0] for file in files} == {f"{location}/data"}
    assert sorted(file.record_count for file in files) == [1, 1]
    assert sorted(table.read()["value"].to_pylist()) == ["1", "2"]


# ---- refusals -----------------------------------------------------------------------------------------------


def other(directory: Path, **options: Any) -> IcebergLake:
    return IcebergLake(directory, **options)


def test_tables_that_are_not_supported(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    old = other(tmp_path, properties={"format-version": "1"})
    assert "format version 1" in refusal(sqlite_world, old.dual())

    parts = other(tmp_path)
    with parts.open().update_spec() as spec:
        spec.add_identity("value")
    assert "partitioned by value" in refusal(sqlite_world, parts.dual())

    ordered = other(tmp_path)
    with ordered.open().update_sort_order() as order:
        order.asc("value", transforms.IdentityTransform())
    assert "sorted by value" in refusal(sqlite_world, ordered.dual())

    keyed = other(tmp_path, columns=pa.schema([pa.field("value", pa.string(), nullable=False)]))
    with keyed.open().update_schema() as update:
        update.set_identifier_fields("value")
    assert "identifier fields value" in refusal(sqlite_world, keyed.dual())


@pytest.mark.parametrize(
    "column",
    [pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.binary(4), pa.uuid()],
    ids=["list", "struct", "fixed", "uuid"],
)
def test_columns_that_are_not_supported(sqlite_world: LakeWorld, tmp_path: Path, column: pa.DataType) -> None:
    table = other(tmp_path, columns=pa.schema([("value", column)]))
    assert "is not supported" in refusal(sqlite_world, table.dual())
    beside = other(tmp_path, columns=pa.schema([("value", pa.string()), ("more", column)]))
    run_batch(sqlite_world.process(dual=beside.dual()), 0, [1])
    assert beside.read()["value"].to_pylist() == ["1"]
    assert beside.read()["more"].null_count == 1


def test_a_time_arrives_unchanged_or_not_at_all(sqlite_world: LakeWorld, tmp_path: Path) -> None:
    table = other(tmp_path, columns=pa.schema([("value", pa.string()), ("at", pa.time64("us"))]))
    given = pa.schema([("value", pa.string()), ("at", pa.time64("ns"))])
    process = sqlite_world.process(dual=table.dual(("value", "at")))
    plan = process.sink.plan(given, query_id=QUERY)
    row = pa.record_batch([pa.array(["1"]), pa.array([123_456_000], pa.time64("ns"))], schema=given)
    process.commit([process.sink.write(plan, task(0, 0), iter([row]))], 0)
    assert table.read()["at"].cast(pa.int64()).to_pylist() == [123_456]
    finer = pa.record_batch([pa.array(["1"]), pa.array([1], pa.time64("ns"))], schema=given)
    plan = process.sink.plan(given, query_id=QUERY)
    with pytest.raises(DualTableError, match="does not fit"):
        process.sink.write(plan, task(1, 0), iter([finer]))


def test_catalogs_that_cannot_be_used(
    sqlite_world: LakeWorld, sqlite_table: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def why(catalog: Catalog, table: str = IcebergLake.NAME) -> str:
        dual = sqlite_table.dual()
        return refusal(sqlite_world, _at(dual, LakePlace(None, table, catalog)))

    known = str(sqlite_table.place.catalog and sqlite_table.place.catalog.name)
    assert "no Iceberg table shop.other" in why(Catalog(known, sqlite_table.url), "shop.other")
    assert "no Iceberg table shop.orders" in why(Catalog("other", sqlite_table.url))
    assert "no Iceberg catalog" in why(Catalog(known, f"sqlite:///{tmp_path / 'missing.db'}"))
    assert not (tmp_path / "missing.db").exists()
    assert "no table iceberg_tables" in why(Catalog(known, str(sqlite_world.database.engine.url)))
    assert "environment variable LAKE_URL" in why(Catalog(known, None, "LAKE_URL"))
    monkeypatch.setenv("LAKE_URL", "http://user:hunter2@rest:8181")
    refused = why(Catalog(known, None, "LAKE_URL"))
    assert "REST, Glue, Hive" in refused
    assert "hunter2" not in refused


def _at(dual: Any, place: LakePlace) -> Any:
    return replace(dual, lake=place)


def test_a_catalog_whose_url_is_in_the_environment(
    sqlite_world: LakeWorld, sqlite_table: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a process that has the variable publishes owed files; the store keeps no URL."""
    monkeypatch.setenv("LAKE_URL", sqlite_table.url)
    place = LakePlace(None, IcebergLake.NAME, Catalog(sqlite_table.catalog_name, None, "LAKE_URL"))
    process = sqlite_world.process(die_at(P.BEFORE_ADDITION), dual=_at(sqlite_table.dual(), place))
    with pytest.raises(Crash):
        run_batch(process, 0, [1])
    (batch,) = owed(sqlite_world)
    assert "sqlite" not in batch.location
    monkeypatch.delenv("LAKE_URL")
    with pytest.raises(SinkError, match="environment variable LAKE_URL"):
        publisher(sqlite_world).publish()
    monkeypatch.setenv("LAKE_URL", sqlite_table.url)
    publisher(sqlite_world).publish()
    assert sqlite_world.lake_rows == [1]


def test_a_warehouse_in_an_object_store_is_refused(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    pointer(sqlite_table).move(sqlite_table.pointer(), "s3://bucket/orders/metadata/00000-x.metadata.json")
    assert "object stores" in refusal(sqlite_world, sqlite_table.dual())


def test_a_metadata_file_that_is_damaged(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    owe(sqlite_world, 0, [1])
    current = Path(sqlite_table.pointer().removeprefix("file://"))
    content = current.read_bytes()
    current.write_bytes(content[:100])
    with pytest.raises(SinkError, match="cannot be read"):
        sqlite_world.process().plan()
    current.write_bytes(content)
    run_batch(sqlite_world.process(), 1, [2])
    sqlite_world.assert_exactly_once([1, 2])


def test_an_unmounted_directory_is_not_created(sqlite_world: LakeWorld, sqlite_table: IcebergLake) -> None:
    sqlite_table.root.rename(sqlite_table.root.with_suffix(".away"))
    assert "there is no metadata file" in refusal(sqlite_world, sqlite_table.dual())
    assert not sqlite_table.root.exists()
