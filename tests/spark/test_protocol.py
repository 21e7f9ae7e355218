"""PLAN, WRITE, COMMIT, ABORT and FINISH: each of them, in every order, and after failures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from dualwrite.errors import KafkaError, NotDurableError
from spark_sink.errors import (
    DecisionUnknownError,
    SinkError,
    SinkFencedError,
    StoreUnavailableError,
)
from spark_sink.handoff import TaskOutcome, TaskResult
from spark_sink.pause_points import PausePoint
from spark_sink.store.attempt_states import LIVE, AttemptStatus
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.tables import BatchStatus
from tests.spark.sink_model import QUERY, Process, Stalling, World, new_store, run_batch, task
from tests.spark.spark_model import Query
from tests.spark.store_engines import sqlite_engine
from tests.support.databases import Database, MariaDbDatabase, PostgresDatabase, SqliteDatabase


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommitStore]:
    with sqlite_engine(tmp_path_factory.mktemp("store")) as engine:
        yield new_store(engine)


@pytest.fixture
def world(store: CommitStore) -> World:
    return World(store)


# ---- every order ---------------------------------------------------------------------------------------------


class Caller:
    """Makes any call with the newest plan and results."""

    VALUES = (1, 2, 3)

    def __init__(self, world: World) -> None:
        self._process = world.process()
        self._plan = world.process().plan()
        self._results: list[TaskResult] = []

    def plan(self) -> None:
        self._plan = self._process.plan()
        self._results = []

    def write(self) -> None:
        result = self._process.write(self._plan, 0, 0, self.VALUES)
        self._results = [result]

    def commit(self) -> None:
        if self._results:
            self._process.commit(self._results, 0, self.VALUES)

    def abort(self) -> None:
        self._process.abort(self._results, 0)

    def finish(self) -> None:
        self._process.sink.finish()


STEPS = ("plan", "write", "commit", "abort", "finish")


def test_steps_in_every_order(store: CommitStore) -> None:
    for order in (*itertools.product(STEPS, repeat=3), *itertools.permutations(STEPS)):
        world = World(store)
        caller = Caller(world)
        for step in order:
            try:
                getattr(caller, step)()
            except SinkFencedError:
                assert "abort" in order  # no task can write it or commit it any more
        Query(world, [Caller.VALUES]).run()
        world.assert_exactly_once(Caller.VALUES)


# ---- WRITE ---------------------------------------------------------------------------------------------------


def test_a_partition_without_rows_costs_nothing(world: World) -> None:
    process = world.process()
    plan = process.plan()
    result = process.write(plan, 0, 0, [])
    assert (result.outcome, result.attempt_id, result.generation) == (TaskOutcome.EMPTY, None, plan.generation)
    assert world.store.attempts(world.options.sink_id) == []
    assert world.broker.known_ids == []
    assert process.commit([result], 0).decided_anew
    assert world.store.batches(world.options.sink_id)[0].status is BatchStatus.DONE


def test_a_decided_batch_is_skipped_before_a_row_is_read(world: World) -> None:
    process = world.process()
    run_batch(process, 0, [1])

    def rows() -> Iterator[pa.RecordBatch]:
        yield pytest.fail("nobody needs rows")

    assert process.sink.write(process.plan(), task(0, 0), rows()).outcome is TaskOutcome.SKIPPED


def test_a_result_names_its_attempt(world: World) -> None:
    process = world.process()
    plan = process.plan()
    result = process.write(plan, 0, 1, [1, 2, 3])
    (attempt,) = world.store.attempts(world.options.sink_id)
    assert (result.outcome, result.attempt_id, result.records) == (TaskOutcome.PREPARED, attempt.attempt_id, 3)
    assert (attempt.status, attempt.records, attempt.partition_id) == (AttemptStatus.PREPARED, 3, 1)
    assert attempt.prepared_state
    assert (attempt.query_id, attempt.batch_id, attempt.host) == (QUERY, 0, "host-1")


def test_a_task_whose_input_fails_aborts_by_itself(world: World) -> None:
    process = world.process()
    plan = process.plan()

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": ["1"]})
        raise LookupError("the source is gone")

    with pytest.raises(LookupError):
        process.sink.write(plan, task(0, 0), rows())
    assert world.broker.open_ids == []
    result = process.write(plan, 0, 0, [1])
    assert process.commit([result], 0, [1]).aborted == 1
    world.assert_exactly_once([1])


# ---- COMMIT --------------------------------------------------------------------------------------------------


def test_results_that_do_not_belong_together(world: World) -> None:
    process = world.process()
    old = process.write(process.plan(), 0, 0, [1])
    plan = process.plan()
    new = process.write(plan, 0, 1, [2])
    twin = process.write(plan, 0, 1, [2])
    stranger = process.write(plan, 1, 0, [3])
    for results in ([old, new], [new, stranger], [new, twin]):
        with pytest.raises(SinkError, match="nothing was decided"):
            process.commit(results, 0, [9])
    assert process.commit([new], 0, [2]).aborted == 2
    world.assert_exactly_once([2])


def test_old_batches_are_forgotten(store: CommitStore) -> None:
    world = World(store, retention_batches=3)
    for batch_id in range(20):
        run_batch(world.process(), batch_id, [batch_id], partitions=1)
    assert [row.batch_id for row in store.batches(world.options.sink_id)] == [19, 18, 17, 16, 15, 14, 13]
    assert len(store.attempts(world.options.sink_id)) == 7
    world.assert_exactly_once(range(20))


def test_a_batch_ends_independently_of_old_ones(store: CommitStore, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(store, retention_batches=1)

    def gone(store: CommitStore, sink_id: str, keep: int) -> int:
        raise NotDurableError("the wait for a standby was cancelled")

    monkeypatch.setattr(CommitStore, "prune", gone)
    for batch_id in range(20):
        run_batch(world.process(), batch_id, [batch_id], partitions=1)
    world.assert_exactly_once(range(20))


# ---- ABORT ---------------------------------------------------------------------------------------------------


def test_abort_gives_up_undecided_attempts(world: World) -> None:
    process = world.process()
    plan = process.plan()
    results = [process.write(plan, 0, n, [n]) for n in range(2)]
    process.abort(results[:1], 0)
    assert world.broker.open_ids == []
    assert world.store.attempts(world.options.sink_id, LIVE) == []
    with pytest.raises(SinkFencedError, match="aborted"):
        process.commit(results, 0, [0, 1])
    with pytest.raises(SinkFencedError, match="aborted"):
        process.write(plan, 0, 0, [0])  # a late one, which no process would complete


@pytest.mark.parametrize("given", ["results", "generation", "nothing"])
def test_abort_leaves_a_decision_alone(world: World, given: str) -> None:
    """Spark calls ABORT with all results if COMMIT has raised, which may be after the decision."""
    process = world.process()
    results = [process.write(process.plan(), 0, 0, [1])]
    committer = Stalling(lambda me: world.process(me.reach).commit(results, 0, [1])).until(PausePoint.AFTER_DECISION)
    process.abort(results if given == "results" else [], 0, generation=1 if given == "generation" else None)
    assert len(world.broker.open_ids) == 1
    committer.go_on()
    world.assert_exactly_once([1])


def test_abort_never_raises(world: World) -> None:
    process = world.process()
    results = [process.write(process.plan(), 0, 0, [1])]
    world.broker.down = True
    process.abort(results, 0)
    world.broker.down = False
    assert [claim.attempt_id for claim in world.store.claims(world.options.sink_id)] == [results[0].attempt_id]
    gone = World(CommitStore(sa.create_engine("sqlite:////no/such/directory/store.db")))
    gone.process().abort(results, 0)
    run_batch(process, 0, [1])
    world.assert_exactly_once([1])


# ---- FINISH --------------------------------------------------------------------------------------------------


def prepared_batch(process: Process, *values: int) -> list[TaskResult]:
    plan = process.plan()
    return [process.write(plan, 0, number, [value]) for number, value in enumerate(values)]


def test_kafka_is_away_after_the_decision(store: CommitStore) -> None:
    world = World(store, commit_retries=4)
    process = world.process()
    results = prepared_batch(process, 1, 2)
    world.broker.down = True
    with pytest.raises(SinkError, match=r"the brokers are away.*ecided batches stay decided") as raised:
        process.commit(results, 0, [1, 2])
    assert not isinstance(raised.value, SinkFencedError)
    assert process.waits_s == [0.1, 0.2, 0.4, 0.8]
    process.abort(results, 0)
    with pytest.raises(SinkError):
        process.plan()
    assert sorted(world.rows) == [1, 2]

    world.broker.down = False
    run_batch(process, 0, [1, 2])
    world.assert_exactly_once([1, 2])


def test_kafka_comes_back_while_commit_tries_again(world: World) -> None:
    process = world.process()
    results = prepared_batch(process, 1, 2)
    world.broker.down = True
    process.while_waiting = lambda: setattr(world.broker, "down", False)
    assert process.commit(results, 0, [1, 2]).committed == 2
    world.assert_exactly_once([1, 2])


def test_a_loser_that_cannot_be_aborted_does_not_hold_the_batch_up(world: World) -> None:
    process = world.process()
    plan = process.plan()
    process.write(plan, 0, 0, [1])
    winner = process.write(plan, 0, 0, [1])
    world.broker.down_ids = {f"{world.options.sink_id}-0-0"}
    summary = process.commit([winner], 0, [1])
    assert (summary.committed, summary.aborted, summary.unfinished) == (1, 0, 1)
    with pytest.raises(SinkError, match="could not be completed"):
        process.plan()
    world.broker.down_ids = set()
    assert process.sink.finish().aborted == 1
    world.assert_exactly_once([1])


# ---- databases that fail -------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    made: Database
    if request.param == "sqlite":
        made = SqliteDatabase(tmp_path)
    elif request.param == "postgres":
        made = PostgresDatabase(request.getfixturevalue("postgres_server"))
    else:
        made = MariaDbDatabase(request.getfixturevalue("mariadb_server"))
    yield made
    made.close()


def lose_commit(faulty: Database, *, applied: bool) -> None:
    """Do `faulty.lose_commit`, which itself would match a statement with the status COMMIT."""
    if isinstance(faulty, SqliteDatabase):
        faulty.lose_commit(applied=applied)
    elif applied:
        faulty.proxy.swallow_answer_to(_is_commit)  # type: ignore[attr-defined]
    else:
        faulty.proxy.cut_at(_is_commit)  # type: ignore[attr-defined]


def _is_commit(request: bytes) -> bool:
    return request.rstrip(b"\0").endswith(b"COMMIT")


def reached(point: PausePoint, act: object) -> object:
    def pause(at: PausePoint) -> None:
        if at is point and callable(act):
            act()

    return pause


@pytest.mark.parametrize("applied", [True, False])
def test_the_answer_to_the_decision_is_lost(faulty: Database, applied: bool) -> None:
    world = World(new_store(faulty.engine))
    results = prepared_batch(world.process(), 1, 2)
    lose = reached(PausePoint.INSIDE_DECISION, lambda: lose_commit(faulty, applied=applied))
    committer = world.process(lose)  # type: ignore[arg-type]
    if applied:
        summary = committer.commit(results, 0, [1, 2])
        assert (summary.decided_anew, summary.committed) == (True, 2)
    else:
        with pytest.raises(StoreUnavailableError):
            committer.commit(results, 0, [1, 2])
        assert world.broker.committed == world.rows == []
        committer.abort(results, 0)
    run_batch(world.process(), 0, [1, 2])
    world.assert_exactly_once([1, 2])


@pytest.mark.parametrize("applied", [True, False])
def test_the_answer_to_a_replacement_is_lost(faulty: Database, applied: bool) -> None:
    """The row is read under its lock; if the database lost the COMMIT, the repair is aborted and made again."""
    world = World(new_store(faulty.engine))
    results = prepared_batch(world.process(), 1, 2)
    world.broker.drop(f"{world.options.sink_id}-0-0")
    lost: list[PausePoint] = []

    def lose(at: PausePoint) -> None:
        if at is PausePoint.BEFORE_REPLACEMENT and not lost:
            lost.append(at)
            lose_commit(faulty, applied=applied)

    summary = world.process(lose).commit(results, 0, [1, 2])
    assert (summary.committed, summary.repaired, len(lost)) == (2, 1, 1)
    world.assert_exactly_once([1, 2])


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.parametrize("applied", [True, False])
def test_the_database_is_away_after_the_decision_was_sent(faulty: Database, applied: bool, comes_back: bool) -> None:
    world = World(new_store(faulty.engine))
    results = prepared_batch(world.process(), 1, 2)

    def fail() -> None:
        faulty.refuse_new_connections()
        lose_commit(faulty, applied=applied)

    committer = world.process(reached(PausePoint.INSIDE_DECISION, fail))  # type: ignore[arg-type]
    if comes_back:
        committer.while_waiting = faulty.come_back
    if comes_back and applied:
        assert committer.commit(results, 0, [1, 2]).committed == 2
    else:
        sentence = "the database of the commit store did not get it" if comes_back else None
        with pytest.raises(SinkError if comes_back else DecisionUnknownError, match=sentence):
            committer.commit(results, 0, [1, 2])
        assert world.broker.committed == []
        committer.abort(results, 0)
    faulty.come_back()
    run_batch(world.process(), 0, [1, 2])
    world.assert_exactly_once([1, 2])


OF_A_REPLACEMENT = (PausePoint.BEFORE_REPLACEMENT, PausePoint.AFTER_REPLACEMENT)


@pytest.mark.parametrize("point", [PausePoint.AFTER_TAKE_OVER, PausePoint.BEFORE_STATUSES, *OF_A_REPLACEMENT])
def test_the_database_is_unreachable_during_phase_two(faulty: Database, point: PausePoint) -> None:
    world = World(new_store(faulty.engine))
    results = prepared_batch(world.process(), 1, 2)
    if point in OF_A_REPLACEMENT:
        world.broker.drop(f"{world.options.sink_id}-0-0")

    def fail() -> None:
        faulty.refuse_new_connections()
        faulty.cut()

    committer = world.process(reached(point, fail))  # type: ignore[arg-type]
    with pytest.raises(SinkError, match="ecided batches stay decided"):
        committer.commit(results, 0, [1, 2])
    faulty.come_back()
    run_batch(world.process(), 0, [1, 2])
    world.assert_exactly_once([1, 2])


@pytest.mark.parametrize("step", ["plan", "write", "commit"])
def test_the_database_is_away(faulty: Database, step: str) -> None:
    """The error names the consequence for the batch."""
    world = World(new_store(faulty.engine))
    plan = world.process().plan()
    results = prepared_batch(world.process(), 1, 2)
    steps: dict[str, tuple[str, Callable[[], object]]] = {
        "plan": ("batch has not begun", lambda: world.process().plan()),
        "write": ("attempt does not become visible", lambda: world.process().write(plan, 0, 0, [1])),
        "commit": ("batch is not decided", lambda: world.process().commit(results, 0, [1, 2])),
    }
    words, call = steps[step]
    faulty.refuse_new_connections()
    faulty.cut()
    with pytest.raises(StoreUnavailableError, match=f"(?s)cannot be reached .*{words}"):
        call()
    faulty.come_back()
    run_batch(world.process(), 0, [1, 2])
    world.assert_exactly_once([1, 2])


def test_the_answer_to_prepared_is_lost(faulty: Database) -> None:
    """The attempt was not reported, so Spark cannot choose it, whichever status its row has."""
    world = World(new_store(faulty.engine))
    plan = world.process().plan()
    lose = reached(PausePoint.BEFORE_PREPARED, lambda: lose_commit(faulty, applied=True))
    with pytest.raises(StoreUnavailableError):
        world.process(lose).write(plan, 0, 0, [1])  # type: ignore[arg-type]
    result = world.process().write(plan, 0, 0, [1])
    assert world.process().commit([result], 0, [1]).aborted == 1
    world.assert_exactly_once([1])


def test_errors_of_kafka_end_a_task(world: World) -> None:
    process = world.process()
    plan = process.plan()
    world.broker.down = True
    with pytest.raises(KafkaError):
        process.write(plan, 0, 0, [1])
    world.broker.down = False
    process.commit([process.write(plan, 0, 0, [1])], 0, [1])
    world.assert_exactly_once([1])
