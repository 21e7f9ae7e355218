"""The Spark sink's staging tables cost no more log than the rows themselves, and a crash that empties one is seen."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
import sqlalchemy as sa

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import DualTableError
from spark_sink.options import DualMode, DualTable, OnNewCheckpoint
from spark_sink.store.attempt_states import AttemptStatus, Prepared
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.dual_table import DualTableWriter
from spark_sink.store.tables import Decision
from tests.spark.sink_model import QUERY, task
from tests.support.postgres_pair import PostgresNode

ROWS = 20_000
_numbers = itertools.count(1)


@pytest.fixture
def engine(one_node: PostgresNode) -> Iterator[sa.Engine]:
    name = f"staging_{next(_numbers)}"
    one_node.ask(f"CREATE DATABASE {name}")
    made = sa.create_engine(one_node.url.set(database=name))
    with made.begin() as connection:
        for table in ("plain", "target"):
            connection.exec_driver_sql(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, note TEXT)")
    yield made
    made.dispose()


def table(key: tuple[str, ...] | None = None) -> DualTableWriter:
    mode = DualMode.INSERT if key is None else DualMode.UPSERT
    return DualTableWriter(DualTable("target", None, mode, key), sink_id="sink", store_schema=None)


def rows(first: int, count: int) -> pa.RecordBatch:
    columns = {"id": pa.array(range(first, first + count)), "note": pa.array(["x" * 90] * count)}
    return pa.record_batch({**columns, "value": pa.array(["for Kafka"] * count)})


def staged(engine: sa.Engine, writer: DualTableWriter, *parts: pa.RecordBatch) -> list[str]:
    attempts = [uuid.uuid4().hex for _ in parts]
    for number, (attempt, part) in enumerate(zip(attempts, parts, strict=True)):
        with engine.begin() as connection:
            writer.stage(connection, attempt, number, [part])
    return attempts


def whole_batch(engine: sa.Engine, writer: DualTableWriter, first: int, count: int = ROWS) -> None:
    batch = rows(first, count)
    writer.create(engine, batch.schema)
    with engine.begin() as connection:
        writer.discard_all(connection)
    winners = staged(engine, writer, batch.slice(0, count // 2), batch.slice(count // 2))
    with engine.begin() as connection:
        writer.move(connection, winners, rows=count)


def wal_bytes(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(sa.text("SELECT pg_current_wal_insert_lsn() - '0/0'")) or 0)


def size_of(engine: sa.Engine, writer: DualTableWriter) -> int:
    with engine.connect() as connection:
        query = sa.text("SELECT pg_relation_size(to_regclass(:name))")
        return int(connection.scalar(query, {"name": writer.staging_table}) or 0)


@pytest.mark.parametrize("key", [None, ("id",)], ids=["insert", "upsert"])
def test_a_batch_writes_as_much_log_as_a_plain_insert_and_leaves_nothing(
    engine: sa.Engine, key: tuple[str, ...] | None
) -> None:
    writer = table(key)
    plain = "INSERT INTO plain SELECT number, repeat('x', 90) FROM generate_series({}, {}) number"
    on_conflict = "" if key is None else " ON CONFLICT (id) DO UPDATE SET note = excluded.note"
    for number in range(3):
        first = number * ROWS
        before = wal_bytes(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql(plain.format(first, first + ROWS - 1) + on_conflict)
        plain_bytes = wal_bytes(engine) - before
        before = wal_bytes(engine)
        whole_batch(engine, writer, first)
        assert wal_bytes(engine) - before < 1.2 * plain_bytes
        assert size_of(engine, writer) == 0
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM target")) == 3 * ROWS


def test_a_condemned_task_that_is_staging_is_not_waited_for(engine: sa.Engine) -> None:
    writer = table()
    batch = rows(0, ROWS)
    writer.create(engine, batch.schema)
    winners = staged(engine, writer, batch)
    with engine.connect() as late:
        writer.stage(late, uuid.uuid4().hex, 1, [rows(ROWS, 10)])
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = '20s'")
            writer.move(connection, winners, rows=ROWS)
        late.commit()
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM target")) == ROWS
    whole_batch(engine, writer, 2 * ROWS)
    assert size_of(engine, writer) == 0


def test_few_rows_are_deleted_and_do_not_add_up(engine: sa.Engine) -> None:
    writer = table()
    for number in range(60):
        whole_batch(engine, writer, number * 400, 400)
        assert size_of(engine, writer) < 1_200_000


@pytest.mark.parametrize("key", [None, ("id",)], ids=["insert", "upsert"])
def test_a_crash_that_empties_the_staging_table_is_noticed_and_the_batch_is_written_again(
    engine: sa.Engine, one_node: PostgresNode, key: tuple[str, ...] | None
) -> None:
    """Its attempts are PREPARED, which is durable; their rows are gone."""
    writer, store = table(key), CommitStore(engine)
    batch = rows(0, 100)
    writer.create(engine, batch.schema)

    def prepared() -> Decision:
        planned = store.plan("sink", query_id=QUERY, on_new_checkpoint=OnNewCheckpoint.FAIL, inside=writer.discard_all)
        lease = store.lease("sink", planned.generation, task(0, 0))
        assert lease is not None
        state = Prepared(PreparedTxnState("7:3"), "manifest")
        store.mark_prepared(
            lease.attempt_id,
            state,
            records=100,
            inside=lambda connection: writer.stage(connection, lease.attempt_id, 0, [batch]),
        )
        return Decision("sink", QUERY, 0, planned.generation, (lease.attempt_id,), 100, 100, False, None)

    def decide(decision: Decision) -> None:
        store.decide(
            decision,
            OnNewCheckpoint.FAIL,
            lambda connection: writer.move(connection, decision.winners, rows=decision.staged_rows),
        )

    first = prepared()
    one_node.crash()
    one_node.start()
    engine.dispose()
    assert [attempt.status for attempt in store.attempts("sink")] == [AttemptStatus.PREPARED]
    with pytest.raises(DualTableError, match="has 0 of them: the database crashed or failed over"):
        decide(first)
    assert store.batches("sink") == []
    decide(prepared())
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM target")) == 100
