"""Rows of a batch on their way into a table, on each database; the tests read them with SQL."""

from __future__ import annotations

import datetime as dt
import math
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from spark_sink.errors import DualTableError, SinkOptionError
from spark_sink.options import DualMode, DualTable
from spark_sink.store.dual_table import DualTableWriter
from tests.support.databases import Database

_UTC = dt.UTC


def writer(
    table: str = "target",
    *,
    columns: tuple[str, ...] | None = None,
    key: tuple[str, ...] | None = None,
    mode: DualMode = DualMode.INSERT,
    sink_id: str = "sink",
    create_tables: bool = True,
) -> DualTableWriter:
    options = DualTable(table, columns, DualMode.UPSERT if key else mode, key)
    return DualTableWriter(options, sink_id=sink_id, store_schema=None, create_tables=create_tables)


def kind_of(database: Database) -> str:
    name = database.engine.dialect.name
    return "mysql" if name == "mariadb" else name


def run_sql(database: Database, *statements: str) -> None:
    """Run the statement unchanged, without a layer that looks for parameters."""
    with sa.create_engine(database.url, poolclass=sa.NullPool).begin() as conn:
        cursor = conn.connection.cursor()
        for statement in statements:
            cursor.execute(statement)


def rows_of(database: Database, sql: str = "SELECT * FROM target ORDER BY 1") -> list[tuple[Any, ...]]:
    with sa.create_engine(database.url, poolclass=sa.NullPool).connect() as conn:
        cursor = conn.connection.cursor()
        cursor.execute(sql)
        return [tuple(row) for row in cursor.fetchall()]


def staged(database: Database, table: DualTableWriter) -> int:
    return int(rows_of(database, f"SELECT COUNT(*) FROM {table.staging_table}")[0][0])


def batch(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return rows with a column for Kafka beside those of the table."""
    rows = pa.record_batch(dict(columns))
    return rows.append_column("value", pa.array(["for Kafka"] * len(rows)))


def stage(
    database: Database, table: DualTableWriter, attempt: str, rows: Sequence[pa.RecordBatch], *, partition: int = 0
) -> int:
    with database.engine.begin() as conn:
        return table.stage(conn, attempt, partition, rows)


def write(database: Database, table: DualTableWriter, *rows: pa.RecordBatch) -> None:
    """Write a whole batch, with one attempt for each partition."""
    table.create(database.engine, rows[0].schema)
    attempts = {str(uuid.uuid4()): part for part in rows}
    count = sum(
        stage(database, table, attempt, [part], partition=number)
        for number, (attempt, part) in enumerate(attempts.items())
    )
    with database.engine.begin() as conn:
        table.move(conn, list(attempts), rows=count)
    assert staged(database, table) == 0


def refusal(database: Database, table: DualTableWriter, schema: pa.Schema) -> str:
    with pytest.raises(SinkOptionError) as refused:
        table.create(database.engine, schema)
    assert str(refused.value).endswith("nothing was written")
    return str(refused.value)


def table_of_ids(database: Database, ids: list[int]) -> tuple[DualTableWriter, pa.RecordBatch]:
    """Create a table of ids; return its writer, and rows for it."""
    run_sql(database, "CREATE TABLE target (id INT PRIMARY KEY)")
    table, rows = writer(), batch({"id": ids})
    table.create(database.engine, rows.schema)
    return table, rows


# ---- winners and losers -----------------------------------------------------------------------------------------


def test_rows_of_winners_are_in_the_table_from_the_decision_on_and_those_of_losers_never(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT PRIMARY KEY, name VARCHAR(20), extra INT DEFAULT 7)")
    table = writer()
    rows = batch({"id": pa.array([1, 2]), "name": ["a", "b"]})
    table.create(database.engine, rows.schema)
    won = stage(database, table, "won", [rows.slice(0, 1), rows.slice(0, 0), rows.slice(1)])
    stage(database, table, "lost", [rows])
    assert (rows_of(database), staged(database, table)) == ([], 4)

    with database.engine.begin() as conn:
        table.move(conn, ["won"], rows=won)
    assert rows_of(database) == [(1, "a", 7), (2, "b", 7)]
    assert staged(database, table) == 0


def test_a_plan_discards_leftovers(database: Database) -> None:
    table, rows = table_of_ids(database, [1])
    stage(database, table, "lost", [rows])
    with database.engine.begin() as conn:
        table.discard_all(conn)
    assert staged(database, table) == 0


def test_a_task_that_is_about_to_stage_blocks_no_other_task(database: Database) -> None:
    if kind_of(database) == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    table, rows = table_of_ids(database, [1])
    won = stage(database, table, "won", [rows])
    stage(database, table, "lost", [rows])
    reading = database.engine.execution_options(isolation_level="READ COMMITTED")  # as the commit store's
    with database.engine.connect() as late, reading.connect() as conn:
        table.stage(late, "late", 0, [rows])
        if kind_of(database) == "mysql":
            conn.exec_driver_sql("SET innodb_lock_wait_timeout = 1")
        else:
            conn.exec_driver_sql("SET lock_timeout = 1000")
        table.move(conn, ["won"], rows=won)
        conn.commit()
        late.rollback()
    assert (rows_of(database), staged(database, table)) == ([(1,)], 0)


def test_a_decision_that_is_rolled_back_leaves_the_rows_staged(database: Database) -> None:
    table, rows = table_of_ids(database, [1, 2])
    stage(database, table, "won", [rows])
    with database.engine.connect() as conn:
        table.move(conn, ["won"], rows=2)
        conn.rollback()
    assert (rows_of(database), staged(database, table)) == ([], 2)


def test_staged_rows_that_have_vanished_stop_the_decision(database: Database) -> None:
    table, rows = table_of_ids(database, [1, 2])
    stage(database, table, "won", [rows])
    with database.engine.connect() as conn, pytest.raises(DualTableError, match="3 rows were staged"):
        table.move(conn, ["won"], rows=3)
    assert rows_of(database) == []


def test_two_sinks_with_one_table_do_not_meet(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT PRIMARY KEY)")
    rows = batch({"id": [1]})
    one, other = writer(), writer(sink_id="other")
    for table in (one, other):
        table.create(database.engine, rows.schema)
    stage(database, one, "a", [rows])
    with database.engine.begin() as conn:
        other.discard_all(conn)
    assert staged(database, one) == 1


def test_a_row_that_the_table_refuses_stops_the_decision_and_says_why(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT PRIMARY KEY)", "INSERT INTO target VALUES (1)")
    table = writer()
    rows = batch({"id": [2, 1]})
    table.create(database.engine, rows.schema)
    stage(database, table, "won", [rows])
    with database.engine.connect() as conn, pytest.raises(DualTableError, match="refuses to move the rows"):
        table.move(conn, ["won"], rows=2)
    assert rows_of(database) == [(1,)]


# ---- values -----------------------------------------------------------------------------------------------------

_TYPES = {
    "postgresql": "t text, y bytea, n numeric(38,10), big bigint, b boolean, f double precision, g real, d date, "
    "u timestamp, l timestamp, h time, small smallint",
    "mysql": "t text, y blob, n decimal(38,10), big bigint, b boolean, f double, g float, d date, "
    "u datetime(6), l datetime(6), h time(6), small smallint",
    "sqlite": "t text, y blob, n text, big bigint, b boolean, f double, g real, d date, "
    "u timestamp, l datetime, h time, small smallint",
}
_ODD_TEXT = "quote ' double \" back \\ \\N tab\t, new\nline \\.\n\\.\r\n %s :x é😀 \x7f"


def odd_rows() -> pa.RecordBatch:
    """Return three rows: with difficult values, with empty or extreme values, and with only NULL."""
    berlin = pa.timestamp("us", "Europe/Berlin")
    return batch(
        {
            "id": [1, 2, 3],
            "t": [_ODD_TEXT, "", None],
            "y": pa.array([bytes(range(256)), b"", None]),
            "n": pa.array([Decimal("1234567890123456789012345678.0123456789"), Decimal("-1E-10"), None]).cast(
                pa.decimal128(38, 10)
            ),
            "big": [2**63 - 1, -(2**63), None],
            "b": [True, False, None],
            "f": [0.1, -1.7976931348623157e308, None],
            "g": pa.array([0.5, -2.25, None], pa.float32()),
            "d": [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
            # the same hour of the clock in Berlin, an hour apart
            "u": pa.array(
                [dt.datetime(2020, 10, 25, 0, 30, tzinfo=_UTC), dt.datetime(2020, 10, 25, 1, 30, 0, 1, _UTC), None],
                berlin,
            ),
            "l": pa.array([dt.datetime(2020, 3, 29, 2, 30), dt.datetime(1969, 12, 31, 23, 59, 59, 999999), None]),
            "h": pa.array([dt.time(1, 2, 3, 4), dt.time(0), None], pa.time64("ns")),
            "small": pa.array([1, -32768, None], pa.int16()),
        }
    )


def as_python(row: Sequence[Any]) -> list[Any]:
    """Convert a driver's values to the types of `odd_rows`."""
    names = ("id", "t", "y", "n", "big", "b", "f", "g", "d", "u", "l", "h", "small")
    read: dict[str, Callable[[Any], object]] = {
        "n": Decimal,
        "b": bool,
        "d": lambda value: dt.date.fromisoformat(str(value)),
        "u": lambda value: dt.datetime.fromisoformat(str(value)),
        "l": lambda value: dt.datetime.fromisoformat(str(value)),
        "h": lambda value: (
            (dt.datetime.min + value).time() if isinstance(value, dt.timedelta) else dt.time.fromisoformat(str(value))
        ),
    }
    return [
        value if value is None or name not in read else read[name](value)
        for name, value in zip(names, row, strict=True)
    ]


def test_every_type_comes_back_as_it_was(database: Database) -> None:
    kind = kind_of(database)
    suffix = " CHARACTER SET utf8mb4" if kind == "mysql" else ""
    run_sql(database, f"CREATE TABLE target (id INT PRIMARY KEY, {_TYPES[kind]}){suffix}")
    rows = odd_rows()
    write(database, writer(), rows)
    naive = rows.set_column(9, "u", rows.column("u").view(pa.timestamp("us")))
    found = rows_of(database)
    expected = naive.drop_columns("value").to_pylist()
    assert [as_python(row) for row in found] == [list(row.values()) for row in expected]


def test_an_instant_in_a_column_with_a_zone_ignores_the_zone_of_the_session(database: Database) -> None:
    kind = kind_of(database)
    if kind == "sqlite":
        pytest.skip("SQLite has no such columns")
    type_ = "timestamptz" if kind == "postgresql" else "timestamp(6) null"
    run_sql(database, f"CREATE TABLE target (id INT PRIMARY KEY, at {type_})")
    zone = "SET TIME ZONE 'America/New_York'" if kind == "postgresql" else "SET time_zone = '-05:00'"

    @sa.event.listens_for(database.engine, "connect")
    def elsewhere(connection: Any, _record: Any) -> None:
        connection.cursor().execute(zone)
        connection.commit()

    at = dt.datetime(2020, 7, 1, 12, 0, 0, 7, tzinfo=_UTC)
    write(database, writer(), batch({"id": [1], "at": pa.array([at], pa.timestamp("us", "Asia/Tokyo"))}))
    epoch = "EXTRACT(EPOCH FROM at)" if kind == "postgresql" else "UNIX_TIMESTAMP(at)"
    assert rows_of(database, f"SELECT CAST({epoch} * 1000000 AS DECIMAL(20)) FROM target") == [
        (Decimal(round(at.timestamp()) * 1_000_000 + 7),)
    ]


def test_floats_that_are_no_numbers_are_stored_as_such_or_refused(database: Database) -> None:
    kind = kind_of(database)
    run_sql(database, "CREATE TABLE target (id INT PRIMARY KEY, f DOUBLE PRECISION)")
    rows = batch({"id": [1, 2], "f": [math.nan, math.inf]})
    if kind == "postgresql":
        write(database, writer(), rows)
        assert str(rows_of(database)) == "[(1, nan), (2, inf)]"
        return
    with pytest.raises(DualTableError, match="a float is NaN"):
        write(database, writer(), rows)
    if kind == "sqlite":
        write(database, writer(), rows.slice(1))
        assert rows_of(database) == [(2, math.inf)]


def test_a_value_that_is_too_long_is_refused_when_it_is_staged(database: Database) -> None:
    if kind_of(database) == "sqlite":
        pytest.skip("SQLite has no lengths")
    run_sql(database, "CREATE TABLE target (id INT PRIMARY KEY, name VARCHAR(3))")
    if kind_of(database) == "mysql":

        @sa.event.listens_for(database.engine, "connect")
        def lenient(connection: Any, _record: Any) -> None:
            connection.cursor().execute("SET sql_mode = ''")

    with pytest.raises(
        DualTableError, match=r"refuses to stage the rows of dual\.table=target: .*column '?name.*Nothing"
    ):
        write(database, writer(), batch({"id": [1], "name": ["long"]}))
    assert rows_of(database) == []


def test_fractions_of_a_second_are_not_rounded_into_the_next_day(database: Database) -> None:
    if kind_of(database) == "sqlite":
        pytest.skip("SQLite keeps what it is given")
    type_ = "timestamp(1)" if kind_of(database) == "postgresql" else "datetime(1)"
    run_sql(database, f"CREATE TABLE target (at {type_}, clock time(0))")
    late = dt.datetime(2020, 12, 31, 23, 59, 59, 900_000)
    whole = batch({"at": [late, None], "clock": [dt.time(1, 2, 3), None]})
    write(database, writer(), whole)
    assert {row[0] for row in rows_of(database)} == {late, None}
    with pytest.raises(DualTableError, match="keeps 1 fractional digits of a second"):
        write(database, writer(), whole.set_column(0, "at", pa.array([late + dt.timedelta(microseconds=1), None])))


def test_types_that_only_one_database_has(database: Database) -> None:
    kind = kind_of(database)
    if kind == "sqlite":
        pytest.skip("SQLite has none")
    json, own = ("jsonb", "CREATE TYPE mood AS ENUM ('sad', 'fine')") if kind == "postgresql" else ("json", "SELECT 1")
    mood = "mood" if kind == "postgresql" else "enum('sad', 'fine')"
    run_sql(database, own, f"CREATE TABLE target (id INT PRIMARY KEY, doc {json}, mood {mood}, who uuid)")
    who = str(uuid.UUID(int=5))
    write(database, writer(), batch({"id": [1], "doc": ['{"a": [1]}'], "mood": ["fine"], "who": [who]}))
    ((_, doc, how, found),) = rows_of(database)
    assert (str(doc).replace("'", '"'), how, str(found)) == ('{"a": [1]}', "fine", who)
    with pytest.raises(DualTableError, match="stage"):
        write(database, writer(), batch({"id": [2], "doc": ["{}"], "mood": ["angry"], "who": [who]}))


# ---- upserts ----------------------------------------------------------------------------------------------------


def test_the_last_row_of_a_key_wins_by_partition_and_then_by_order(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT PRIMARY KEY, v VARCHAR(20), kept INT DEFAULT 5)")
    run_sql(database, "INSERT INTO target VALUES (1, 'before', 9), (4, 'alone', 8)")
    first = batch({"id": [1, 2, 2, 3], "v": ["p0", "p0 a", "p0 b", "p0"]})
    second = batch({"id": [3, 1], "v": ["p1 a", "p1"]})
    write(database, writer(mode=DualMode.UPSERT), first, second)
    assert rows_of(database) == [(1, "p1", 9), (2, "p0 b", 5), (3, "p1 a", 5), (4, "alone", 8)]


def test_keys_that_only_the_table_takes_to_be_equal(database: Database) -> None:
    folded = {
        "mysql": "v varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci UNIQUE",
        "sqlite": "v text COLLATE NOCASE UNIQUE",
    }.get(kind_of(database))
    if folded is None:
        pytest.skip("PostgreSQL has such collations where it was built with ICU")
    run_sql(database, f"CREATE TABLE target ({folded}, n INT)", "INSERT INTO target VALUES ('ABC', 0)")
    write(database, writer(key=("v",)), batch({"v": ["abc", "x", "Abc"], "n": [1, 2, 3]}))
    assert rows_of(database, "SELECT n FROM target ORDER BY 1") == [(2,), (3,)]


def test_an_upsert_of_nothing_but_keys(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (a INT, b INT, PRIMARY KEY (a, b))", "INSERT INTO target VALUES (1, 1)")
    write(database, writer(mode=DualMode.UPSERT), batch({"a": [1, 1, 1], "b": [1, 2, 2]}))
    assert rows_of(database) == [(1, 1), (1, 2)]


def test_a_key_that_is_null_is_refused(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (a INT UNIQUE, b INT)")
    with pytest.raises(DualTableError, match="has no a, a key column of the upsert"):
        write(database, writer(key=("A",)), batch({"a": [1, None], "b": [1, 2]}))


def test_an_upsert_needs_a_key_that_the_table_keeps_unique(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (a INT, b INT UNIQUE, c INT)")
    schema = pa.schema({"a": pa.int32(), "b": pa.int32(), "value": pa.string()})
    assert "has no primary key" in refusal(database, writer(mode=DualMode.UPSERT), schema)
    assert "no unique key of just these columns" in refusal(database, writer(key=("a",)), schema)
    assert "no unique key of just these columns" in refusal(database, writer(key=("a", "b")), schema)
    assert "the rows have no c" in refusal(database, writer(key=("c",)), schema)
    assert "names nothing, which" in refusal(database, writer(key=("nothing",)), schema)
    write(database, writer(key=("b",)), batch({"a": [1], "b": [2]}), batch({"a": [3], "b": [2]}))
    assert rows_of(database) == [(3, 2, None)]


def test_mysql_is_not_left_to_choose_among_unique_keys(database: Database) -> None:
    if kind_of(database) != "mysql":
        pytest.skip("others are told the key")
    schema = pa.schema({"a": pa.int32(), "b": pa.int32(), "value": pa.string()})
    run_sql(database, "CREATE TABLE target (id INT AUTO_INCREMENT PRIMARY KEY, a INT UNIQUE, b INT UNIQUE)")
    assert "another unique key (b)" in refusal(database, writer(key=("a",)), schema)
    run_sql(database, "ALTER TABLE target DROP INDEX b, ADD UNIQUE (a, b)")
    write(database, writer(key=("a",)), batch({"a": [1, 1], "b": [2, 3]}))
    assert rows_of(database, "SELECT a, b FROM target") == [(1, 3)]


# ---- names ------------------------------------------------------------------------------------------------------


def test_names_in_quotes_with_every_character(database: Database) -> None:
    quote = "`" if kind_of(database) == "mysql" else '"'
    names = ["Se.mi;colon%s", ":colon", "order", "two words"]
    columns = ", ".join(f"{quote}{name}{quote} INT" for name in names)
    odd = f"{quote}Odd.Table %(x)s :y{quote}"
    run_sql(database, f"CREATE TABLE {odd} ({columns}, PRIMARY KEY ({quote}order{quote}))")
    rows = batch({name: [number] for number, name in enumerate(names)})
    write(database, writer(odd, mode=DualMode.UPSERT), rows, rows)
    assert rows_of(database, f"SELECT * FROM {odd}") == [(0, 1, 2, 3)]


def test_columns_are_found_in_any_case_but_not_by_guessing(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT PRIMARY KEY, unitprice INT)")
    write(database, writer(), batch({"ID": [1], "unitPrice": [2]}))
    assert rows_of(database) == [(1, 2)]
    twice = pa.schema({"id": pa.int32(), "ID": pa.int32(), "value": pa.string()})
    assert "two columns of the DataFrame" in refusal(database, writer(), twice)


def test_a_column_for_kafka_goes_into_the_table_where_it_is_named(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT PRIMARY KEY, value VARCHAR(20))")
    write(database, writer(columns=("id", "value")), batch({"id": [1], "other": [2]}))
    assert rows_of(database) == [(1, "for Kafka")]


@pytest.mark.parametrize("name", ["", "a.b.c", 'a."b', "a..b", "."])
def test_invalid_table_names_are_refused(name: str) -> None:
    with pytest.raises(SinkOptionError, match="table or schema"):
        writer(name)


def test_a_table_in_another_schema(database: Database) -> None:
    if kind_of(database) == "sqlite":
        write_to = "main.target"
        run_sql(database, "CREATE TABLE target (id INT PRIMARY KEY)")
    else:
        schema = f"other_{uuid.uuid4().hex[:8]}"
        write_to = f"{schema}.target"
        run_sql(database, f"CREATE SCHEMA {schema}", f"CREATE TABLE {write_to} (id INT PRIMARY KEY)")
    write(database, writer(write_to, mode=DualMode.UPSERT), batch({"id": [1]}))
    assert rows_of(database, f"SELECT * FROM {write_to}") == [(1,)]


# ---- refusals before anything was written -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "arrow", "sentence"),
    [
        ("id INT", {"other": pa.int32()}, "names other, which the table target does not have; its columns are id"),
        ("id INT, must INT NOT NULL", {"id": pa.int32()}, "needs a value in must"),
        ("id INT, t TEXT", {"t": pa.int32()}, "int cannot be stored as"),
        ("id INT", {"id": pa.string()}, "string cannot be stored as whole numbers"),
        ("id INT", {"id": pa.float64()}, "double cannot be stored as whole numbers"),
        ("id INT", {"id": pa.list_(pa.int32())}, "to_json"),
        ("id INT, f DOUBLE PRECISION", {"f": pa.int64()}, "long cannot be stored as 8-byte floats"),
        ("id INT", {"id": pa.decimal128(10, 2)}, "0 digits after the point"),
        ("id INT", {"value": pa.string()}, "the DataFrame has no column for it"),
        ("id INT, dw_seq INT", {"id": pa.int32()}, "a name that the sink reserves"),
    ],
)
def test_columns_that_do_not_fit(
    database: Database, columns: str, arrow: dict[str, pa.DataType], sentence: str
) -> None:
    run_sql(database, f"CREATE TABLE target ({columns})")
    assert sentence in refusal(database, writer(), pa.schema(arrow))


def test_a_decimal_is_never_rounded_silently(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (n NUMERIC(30, 2))")
    reason = refusal(database, writer(), pa.schema({"n": pa.decimal128(38, 18)}))
    assert ("a column of type TEXT" if kind_of(database) == "sqlite" else "2 digits after the point") in reason
    write(database, writer(), batch({"n": pa.array([Decimal("1.25")], pa.decimal128(10, 2))}))
    assert [Decimal(str(n)) for (n,) in rows_of(database)] == [Decimal("1.25")]


def test_columns_generated_by_the_database_are_left_to_it(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (a INT, b INT GENERATED ALWAYS AS (a + 1) STORED)")
    schema = pa.schema({"a": pa.int32(), "b": pa.int32()})
    assert "b of target is generated by the database" in refusal(database, writer(), schema)
    write(database, writer(), batch({"a": [1]}))
    assert rows_of(database) == [(1, 2)]


def test_a_table_or_a_column_that_is_not_there(database: Database) -> None:
    schema = pa.schema({"id": pa.int32()})
    assert "there is no table nowhere" in refusal(database, writer("nowhere"), schema)
    run_sql(database, "CREATE TABLE target (id INT)")
    assert "dual.columns names gone, which the DataFrame" in refusal(database, writer(columns=("gone",)), schema)


def test_a_table_without_transactions(database: Database) -> None:
    if kind_of(database) != "mysql":
        pytest.skip("MySQL only has such")
    run_sql(database, "CREATE TABLE target (id INT) ENGINE=MyISAM")
    assert "MyISAM" in refusal(database, writer(), pa.schema({"id": pa.int32()}))


# ---- the staging table ------------------------------------------------------------------------------------------


def test_the_staging_table_follows_the_target(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT, name VARCHAR(3))")
    rows = batch({"id": [1], "name": ["abc"]})
    write(database, writer(), rows)
    run_sql(database, "DROP TABLE target", "CREATE TABLE target (id INT, name VARCHAR(9), more INT)")
    write(database, writer(), batch({"id": [2], "name": ["abcdefghi"], "more": [5]}))
    write(database, writer(), rows)
    assert rows_of(database) == [(1, "abc", None), (2, "abcdefghi", 5)]


def test_a_table_that_is_altered_under_way_stops_the_decision(database: Database) -> None:
    if kind_of(database) == "sqlite":
        pytest.skip("SQLite cannot alter a type")
    run_sql(database, "CREATE TABLE target (id INT, n NUMERIC(10, 2))")
    table = writer()
    rows = batch({"id": [1], "n": pa.array([Decimal("1.25")])})
    table.create(database.engine, rows.schema)
    stage(database, table, "won", [rows])
    to = "ALTER COLUMN n TYPE NUMERIC(10, 1)" if kind_of(database) == "postgresql" else "MODIFY n DECIMAL(10, 1)"
    run_sql(database, f"ALTER TABLE target {to}")
    with database.engine.connect() as conn, pytest.raises(DualTableError, match="n of target was"):
        table.move(conn, ["won"], rows=1)
    assert rows_of(database) == []


def test_a_column_that_is_dropped_under_way_stops_the_decision(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT, n INT)")
    table = writer()
    rows = batch({"id": [1], "n": [2]})
    table.create(database.engine, rows.schema)
    stage(database, table, "won", [rows])
    run_sql(database, "ALTER TABLE target DROP COLUMN n")
    with database.engine.connect() as conn, pytest.raises(DualTableError, match="refuses to move the rows"):
        table.move(conn, ["won"], rows=1)
    assert rows_of(database) == []


def test_another_drivers_staging_table_takes_no_rows(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT, n INT)")
    ours, theirs = batch({"id": [1], "n": [2]}), batch({"id": [1]})
    table = writer()
    table.create(database.engine, ours.schema)
    table.create(database.engine, theirs.schema)
    with pytest.raises(DualTableError, match="another driver"):
        stage(database, table, "late", [ours])


def test_several_create_it_at_once(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT)")
    rows = batch({"id": [1]})
    ready = threading.Barrier(4)
    failures: list[BaseException] = []

    def create() -> None:
        try:
            ready.wait()
            writer().create(database.engine, rows.schema)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    write(database, writer(), rows)


def test_a_sink_without_the_right_to_create_tables_prints_the_ddl(database: Database) -> None:
    run_sql(database, "CREATE TABLE target (id INT)")
    rows = batch({"id": [1]})
    with pytest.raises(SinkOptionError, match=r"CREATE (UNLOGGED )?TABLE") as refused:
        writer(create_tables=False).create(database.engine, rows.schema)
    statement = str(refused.value).partition("create it: ")[2].removesuffix("; nothing was written")
    run_sql(database, statement)
    write(database, writer(create_tables=False), rows)
    assert rows_of(database) == [(1,)]
