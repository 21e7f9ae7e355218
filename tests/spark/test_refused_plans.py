"""A refused or empty plan disturbs no other query with the same sink: both are alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa
import pytest
import sqlalchemy as sa

from spark_sink.errors import CheckpointMismatchError, SinkError, SinkFencedError, SinkOptionError
from spark_sink.handoff import TaskOutcome
from spark_sink.options import DualMode, DualTable, OnNewCheckpoint
from spark_sink.store.attempt_states import LIVE, AttemptStatus
from spark_sink.store.commit_store import CommitStore
from tests.spark.sink_model import Process, World, new_store, run_batch, task
from tests.spark.store_engines import engine_on
from tests.support.databases import unique

WRONG = "query-2"
JOB = "job:nightly"
VERSIONED = "versioned job:nightly"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommitStore]:
    with engine_on(request.param, request, tmp_path_factory.mktemp("store")) as engine:
        yield new_store(engine)


@pytest.fixture
def world(store: CommitStore) -> World:
    made = World(store)
    run_batch(made.process(), 0, [1])
    return made


# ---- refused -------------------------------------------------------------------------------------------------


def plans(process: Process) -> None:
    process.plan(WRONG)


def plans_without_its_id(process: Process) -> None:
    """Act as a query whose checkpoint the planner cannot read: its tasks know the query."""
    plan = process.plan(None)
    assert plan.begins_late
    process.write(plan, 0, 0, [9], WRONG)


def runs_a_job(process: Process) -> None:
    process.plan(JOB)


@pytest.mark.parametrize("wrong", [plans, plans_without_its_id, runs_a_job])
def test_the_right_query_continues_after_the_refusal_of_the_wrong_one(
    world: World, wrong: Callable[[Process], None]
) -> None:
    right, other = world.process(), world.process()
    plan = right.plan()
    first = right.write(plan, 1, 0, [2])
    with pytest.raises(CheckpointMismatchError, match="belongs to the query query-1"):
        wrong(other)
    other.abort([], 0, WRONG)
    results = [first, right.write(plan, 1, 1, [3])]
    assert right.commit(results, 1, [2, 3]).decided_anew
    run_batch(right, 2, [4])
    world.assert_exactly_once([1, 2, 3, 4])


@pytest.mark.parametrize(
    ("query", "version", "refusal"),
    [
        (WRONG, None, pytest.raises(CheckpointMismatchError)),
        (None, None, pytest.raises(SinkOptionError, match="another driver may be using it")),
        (VERSIONED, 7, nullcontext()),
    ],
)
def test_a_plan_that_fences_none_leaves_the_staging_table_alone(
    store: CommitStore, query: str | None, version: int | None, refusal: AbstractContextManager[object]
) -> None:
    name = unique("orders").replace("-", "_")
    columns = (sa.Column("value", sa.String(50)), sa.Column("amount", sa.BigInteger))
    orders = sa.Table(name, sa.MetaData(), *columns)
    orders.metadata.create_all(store.engine)
    world = World(store, dual=DualTable(name, ("value",), DualMode.INSERT, None))
    before, right = world.process(), world.process()
    before.commit([before.write(before.plan(VERSIONED), 7, 0, [0], VERSIONED)], 7, [0], VERSIONED)
    plan = right.plan()
    result = right.write(plan, 0, 0, [1])
    both = DualTable(name, ("value", "amount"), DualMode.INSERT, None)
    schema = pa.schema([("value", pa.string()), ("amount", pa.int64())])
    with refusal:
        world.process(dual=both).sink.plan(schema, query_id=query, batch_id=version)
    right.commit([result], 0, [1])
    with store.engine.connect() as connection:
        assert list(connection.scalars(sa.select(orders.c.value))) == ["0", "1"]
    world.assert_exactly_once([0, 1])


def test_a_job_writes_under_the_sink_of_a_stopped_query_if_allowed(world: World) -> None:
    job = world.process(on_new_checkpoint=OnNewCheckpoint.ADOPT)
    plan = job.plan(JOB)
    job.commit([job.write(plan, 0, 0, [2], JOB)], 0, [2], JOB)
    run_batch(world.process(), 1, [3])  # the sink still belongs to the query
    world.assert_exactly_once([1, 2, 3])


@pytest.mark.parametrize(("job", "version"), [(JOB, 0), (VERSIONED, 7), (VERSIONED, 3)])
def test_a_decided_job_fences_no_query(store: CommitStore, job: str, version: int) -> None:
    world = World(store)
    newest = max(version, 7) if version else 0
    before = world.process()
    before.commit([before.write(before.plan(job), newest, 0, [1], job)], newest, [1], job)
    right = world.process()
    plan = right.plan()
    first = right.write(plan, 0, 0, [2])

    again = world.process()
    nothing = again.sink.plan(pa.schema([("value", pa.string())]), query_id=job, batch_id=version)
    skipped = again.sink.write(nothing, task(version, 0, job), iter(()))
    assert (nothing.generation, skipped.outcome) == (None, TaskOutcome.SKIPPED)
    assert not again.commit([skipped], version, (), job).decided_anew
    again.abort([skipped], version, job)

    right.commit([first, right.write(plan, 0, 1, [3])], 0, [2, 3])
    world.assert_exactly_once([1, 2, 3])


# ---- a generation that begins with its first task ---------------------------------------------------------------


def test_a_query_that_the_planner_does_not_know_writes_as_every_other(world: World) -> None:
    process = world.process()
    for batch_id in (1, 2):
        plan = process.plan(None)
        results = [process.write(plan, batch_id, number, [batch_id * 10 + number]) for number in range(2)]
        results.append(process.write(plan, batch_id, 2, []))
        process.commit(results, batch_id, [batch_id * 10, batch_id * 10 + 1])
    assert not process.write(process.plan(None), 2, 0, [20]).attempt_id  # replayed
    world.assert_exactly_once([1, 10, 11, 20, 21])


def test_the_first_task_fences_and_condemns_attempts_of_an_older_driver(world: World) -> None:
    old = world.process()
    left = old.plan()
    result = old.write(left, 1, 0, [2])
    new = world.process()
    plan = new.plan(None)
    assert [row.status for row in world.store.attempts(world.options.sink_id, LIVE)] == [AttemptStatus.PREPARED]
    mine = new.write(plan, 1, 0, [2])
    for late in (lambda: old.write(left, 1, 1, [3]), lambda: old.commit([result], 1, [2])):
        with pytest.raises(SinkFencedError):
            late()
    assert new.commit([mine], 1, [2]).aborted == 1
    world.assert_exactly_once([1, 2])


def test_a_task_that_is_late_by_a_plan_begins_nothing(world: World) -> None:
    zombie = world.process()
    late = zombie.plan(None)
    process = world.process()
    plan = process.plan(None)
    process.commit([process.write(plan, 1, 0, [2])], 1, [2])
    plan = process.plan(None)
    first = process.write(plan, 2, 0, [3])
    with pytest.raises(SinkFencedError):
        zombie.write(late, 2, 0, [3])
    process.commit([first, process.write(plan, 2, 1, [4])], 2, [3, 4])
    world.assert_exactly_once([1, 2, 3, 4])


def test_of_two_drivers_with_one_generation_one_decides(world: World) -> None:
    """Both have planned without their query's id before a task of either one began."""
    first, second = world.process(), world.process()
    plans = first.plan(None), second.plan(None)
    results = first.write(plans[0], 1, 0, [2]), second.write(plans[1], 1, 0, [2])
    assert second.commit([results[1]], 1, [2]).aborted == 1
    with pytest.raises(SinkError, match="tasks have written it again"):
        first.commit([results[0]], 1, [2])
    world.assert_exactly_once([1, 2])
