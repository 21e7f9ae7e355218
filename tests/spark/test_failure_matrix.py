"""Make each process of a query fail, or kill it, at each point of a batch; Spark and the next start recover.

After each row of the matrix the input, the topic and the table have the same records, nothing is open at the broker,
and no transactional id is leased. The JVM survives here; `test_driver_kills.py` kills it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from spark_sink.pause_points import PausePoint as At
from tests.spark.faults import Action, Fault, Faults, Process
from tests.spark.sinks import SinkWorld, TopicWorld, finish
from tests.support.databases import unique

pytestmark = pytest.mark.timeout(240)

_RAISE, _KILL = Action.RAISE, Action.KILL_WORKER
_PLANNER, _TASK, _COMMITTER = Process.PLANNER, Process.TASK, Process.COMMITTER

_WHILE_PLANNING = [Fault(At.AFTER_GENERATION, _KILL, _PLANNER), Fault(At.AFTER_PLAN, _RAISE, _PLANNER)]
_IN_TASKS = [
    Fault(At.AFTER_LEASE, _KILL, _TASK),
    Fault(At.AFTER_TAKE_OVER, _KILL, _TASK),
    Fault(At.BEFORE_COMPLETION, _RAISE, _TASK),
    Fault(At.AFTER_INIT, _KILL, _TASK),
    Fault(At.AFTER_SEND, _KILL, _TASK),
    Fault(At.AFTER_SEND, _RAISE, _TASK),
    Fault(At.AFTER_PREPARE, _KILL, _TASK),
    Fault(At.BEFORE_PREPARED, _KILL, _TASK),
    Fault(At.BEFORE_PREPARED, _RAISE, _TASK),
    Fault(At.AFTER_PREPARED, _KILL, _TASK),
]
_UNDECIDED = [
    Fault(At.COMMIT_START, _KILL, _COMMITTER),
    Fault(At.COMMIT_START, _RAISE, _COMMITTER),
    Fault(At.INSIDE_DECISION, _KILL, _COMMITTER),
    Fault(At.INSIDE_DECISION, _RAISE, _COMMITTER),
]
_DECIDED = [
    Fault(At.AFTER_DECISION, _KILL, _COMMITTER),
    Fault(At.AFTER_DECISION, _RAISE, _COMMITTER),
    Fault(At.AFTER_TAKE_OVER, _KILL, _COMMITTER),
    Fault(At.BEFORE_COMPLETION, _KILL, _COMMITTER),
    Fault(At.AMONG_COMPLETIONS, _KILL, _COMMITTER),
    Fault(At.BEFORE_STATUSES, _KILL, _COMMITTER),
    Fault(At.BEFORE_STATUSES, _RAISE, _COMMITTER),
    Fault(At.AFTER_FINISH, _KILL, _COMMITTER),
    Fault(At.AFTER_FINISH, _RAISE, _COMMITTER),
]


class Matrix:
    """A query that continues from row to row of the matrix, with one batch for each."""

    def __init__(self, spark: SparkSession, world: SinkWorld, directory: Path) -> None:
        self.world = world
        self.faults = Faults(directory / "faults")
        self._format = unique("faulty")
        spark.dataSource.register(self.faults.format(self._format))
        self._df = world.read(spark).selectExpr("key", "value", "value AS id").repartition(2)
        self._spark = spark
        self._written: list[str] = []
        self._has_table = not isinstance(world, TopicWorld)
        if self._has_table:
            world.execute("CREATE TABLE target (id TEXT NOT NULL)")

    def add_batch(self) -> None:
        number = len(self._written)
        values = [f"v{each}" for each in range(number, number + 6)]
        self.world.add_values(*values)
        self._written += values

    def start(self, **options: str) -> StreamingQuery:
        """Run to the end of the input."""
        table = "target" if self._has_table else None
        writer = self.world.writer(self._df, dual_table=table, commit_retries="3", **options)
        return writer.format(self._format).start()

    def run(self) -> None:
        """Run to the end of the input. Raises StreamingQueryException."""
        finish(self.start())

    def run_until_it_ends_well(self) -> int:
        """Run to the end of the input; return how many runs failed before one succeeded."""
        for failures in range(4):
            try:
                self.run()
            except StreamingQueryException:
                continue
            return failures
        raise AssertionError("the query does not come right")

    def seen(self) -> tuple[list[str | None], list[str]]:
        """Return the values in the topic, and those in the table; of a sink without one, the topic's again."""
        values = self.world.values()
        if not self._has_table:
            return values, [str(value) for value in values]
        return values, sorted(row[0] for row in self.world.select("SELECT id FROM target"))

    def assert_right(self) -> None:
        expected = sorted(self._written)
        assert self.seen() == (expected, expected)
        assert self.world.open_transactions() == []
        assert set(self.world.statuses()) <= {"COMMITTED", "ABORTED"}
        assert self.world.leased() == 0
        assert {status for _, status, _ in self.world.batches()} == {"DONE"}


@pytest.fixture(scope="module", params=["postgres", "topic"])
def matrix(
    request: pytest.FixtureRequest, spark: SparkSession, broker: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Matrix:
    directory = tmp_path_factory.mktemp("matrix")
    if request.param == "topic":
        return Matrix(spark, TopicWorld(broker, directory), directory)
    postgres_server: PostgresServer = request.getfixturevalue("postgres_server")
    schema = unique("matrix").replace("-", "_")
    with sa.create_engine(postgres_server.url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    url = postgres_server.url.update_query_dict({"options": f"-csearch_path={schema}"})
    return Matrix(spark, SinkWorld(broker, url.render_as_string(hide_password=False), directory), directory)


def _named(fault: Fault) -> str:
    return f"{fault.action} at {fault.point}"


@pytest.mark.parametrize("fault", [*_WHILE_PLANNING, *_IN_TASKS], ids=_named)
def test_a_planner_that_ends_has_begun_nothing_and_a_task_is_tried_again(matrix: Matrix, fault: Fault) -> None:
    matrix.faults.arm(fault)
    matrix.add_batch()
    assert matrix.run_until_it_ends_well() == (1 if fault in _WHILE_PLANNING else 0)
    assert matrix.faults.struck() == [fault]
    matrix.assert_right()


@pytest.mark.parametrize("fault", _UNDECIDED, ids=_named)
def test_a_committer_that_ends_before_the_decision_leaves_nothing_to_be_seen(matrix: Matrix, fault: Fault) -> None:
    matrix.faults.arm(fault)
    before = matrix.seen()
    matrix.add_batch()
    with pytest.raises(StreamingQueryException):
        matrix.run()
    assert matrix.faults.struck() == [fault]
    assert matrix.seen() == before
    assert matrix.world.open_transactions() == [], "Spark has called abort, so readers are not held up"
    matrix.run()
    matrix.assert_right()


@pytest.mark.parametrize("fault", _DECIDED, ids=_named)
def test_a_committer_that_ends_after_the_decision_has_committed(matrix: Matrix, fault: Fault) -> None:
    matrix.faults.arm(fault)
    matrix.add_batch()
    with pytest.raises(StreamingQueryException):
        matrix.run()
    assert matrix.faults.struck() == [fault]
    matrix.run()
    matrix.assert_right()
    assert matrix.world.attempts_of_last_batch() == 2, "no task has written anew"
