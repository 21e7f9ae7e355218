"""The protocol with everything real but Spark: producers on the emulator, two databases, and the dual table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.guarantee import Tier
from spark_sink.driver.protocol import Sink
from spark_sink.handoff import Plan, TaskResult
from spark_sink.options import parse
from spark_sink.pause_points import PausePoint
from spark_sink.sink_kafka import ProducerSinkKafka
from spark_sink.store.attempt_states import LIVE
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.tables import BatchStatus
from tests.spark.kafka_world import TIERS
from tests.spark.sink_model import QUERY, Crash, task
from tests.spark.store_engines import engine_on
from tests.spark.test_protocol_crashes import OF_LAKE, OF_REPAIR
from tests.spark.topic_stores import AnyStore, kafka_store, opened_by_another_process
from tests.support.databases import unique
from tests.support.topics import read_topic

SCHEMA = pa.schema([("value", pa.string()), ("amount", pa.int64())])
VALUES = [f"v{number}" for number in range(6)]
TABLE = "orders_written"
UNREACHED = OF_REPAIR | OF_LAKE | {PausePoint.AFTER_CONDEMNATION}


@pytest.fixture(scope="module")
def broker() -> Iterator[Emulator]:
    with Emulator(config=TIERS[Tier.KEEP_PREPARED]) as emulator:
        yield emulator


@pytest.fixture(scope="module", params=["postgres", "mariadb", "topic"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine | None]:
    """Yield the database of the commit store; None: it is in a topic, so that nothing but Kafka is written to."""
    if request.param == "topic":
        yield None
        return
    with engine_on(request.param, request, tmp_path_factory.mktemp("store")) as engine:
        yield engine


class Real:
    """A sink of its own on shared servers."""

    def __init__(self, broker: Emulator, engine: sa.Engine | None) -> None:
        self._broker = broker
        self.topic = unique("orders")
        self.table = unique(TABLE).replace("-", "_")
        self.store: AnyStore = kafka_store(broker.bootstrap_servers) if engine is None else CommitStore(engine)
        broker.create_topic(self.topic, 2)
        columns = (sa.Column("value", sa.String(50), primary_key=True), sa.Column("amount", sa.BigInteger))
        self._target = sa.Table(self.table, sa.MetaData(), *columns)
        if engine is not None:
            self._target.metadata.create_all(engine)
        self._sinks: list[Sink] = []
        given: dict[str, Any] = {
            "sinkId": unique("sink").replace("-", "_"),
            "topic": self.topic,
            "commitStore.urlEnv": "NOWHERE",
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "kafka.linger.ms": "0",
        }
        if engine is not None:
            given |= {"dual.table": self.table, "dual.columns": "value,amount"}
        self.options = parse(given)

    def sink(self, pause: Callable[[PausePoint], None] | None = None) -> Sink:
        store = opened_by_another_process(self.store)
        made = Sink(self.options, store, ProducerSinkKafka(self.options, pause=pause), pause=pause)
        self._sinks.append(made)
        return made

    def run(self, pause: Callable[[PausePoint], None] | None = None, partitions: int = 2) -> None:
        """Run batch 0 in a process of its own."""
        sink = self.sink(pause)
        plan = sink.plan(SCHEMA, query_id=QUERY)
        results = [self.write(sink, plan, number, partitions) for number in range(partitions)]
        sink.commit(results, query_id=QUERY, batch_id=0, offsets_digest="input")

    def write(self, sink: Sink, plan: Plan, number: int, partitions: int = 2) -> TaskResult:
        """Write one of so many partitions of batch 0."""
        values = VALUES[number::partitions]
        rows = pa.record_batch([values, list(range(len(values)))], schema=SCHEMA)
        return sink.write(plan, task(0, number), iter([rows]))

    def assert_exactly_once(self) -> None:
        assert sorted(value for _, value in read_topic(self._broker.bootstrap_servers, self.topic)) == VALUES
        if isinstance(self.store, CommitStore):
            with self.store.engine.connect() as connection:
                assert sorted(connection.scalars(sa.select(self._target.c.value))) == VALUES
        assert self.store.attempts(self.options.sink_id, LIVE) == []
        assert {row.status for row in self.store.batches(self.options.sink_id)} == {BatchStatus.DONE}
        mine = f"{self.options.sink_id}-"
        states = {each.transactional_id: each.state for each in self._broker.transactions()}
        assert "Ongoing" not in [state for name, state in states.items() if name.startswith(mine)]

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


@pytest.mark.parametrize("point", [point for point in PausePoint if point not in UNREACHED])
def test_killed_at_a_pause_point_and_started_again(
    broker: Emulator, engine: sa.Engine | None, point: PausePoint
) -> None:
    """An unused object stands for a dead process, except for Python's own clean-up."""
    world = Real(broker, engine)

    def pause(at: PausePoint) -> None:
        if at is point:
            raise Crash(at)

    with pytest.raises(Crash):
        world.run(pause)
    world.run(partitions=3)
    world.assert_exactly_once()
    world.close()
