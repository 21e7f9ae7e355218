"""Applications that die at a pause point, without Spark, and leave their transactions for another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from spark_sink.driver.completion import Completion
from spark_sink.driver.protocol import Sink
from spark_sink.driver.recovery import SinkRecovery
from spark_sink.handoff import TaskIdentity, TaskResult
from spark_sink.options import SinkOptions, parse
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.sink_kafka import ProducerSinkKafka
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.sink_store import OperatedStore, SinkStore

SCHEMA = pa.schema([("value", pa.string())])


_OF_WRITE_TOO: Final = (PausePoint.AFTER_TAKE_OVER, PausePoint.BEFORE_COMPLETION)


class Death(BaseException):
    """The application was killed here; nothing of it runs afterwards."""


class _Once:
    """A pause function that acts when a point is first reached; for points of FINISH, first after the decision."""

    def __init__(self, point: PausePoint | None, action: Callable[[], object]) -> None:
        self.happened = False
        self._point = point
        self._action = action
        self._is_decided = False

    def __call__(self, met: PausePoint) -> None:
        self._is_decided |= met is PausePoint.AFTER_DECISION
        if met is self._point and not self.happened and (self._is_decided or met not in _OF_WRITE_TOO):
            self.happened = True
            self._action()


class Applications:
    """Applications on one store and one broker; each query writes the partitions of a batch one after the other."""

    def __init__(self, store: SinkStore, bootstrap_servers: str, topic: str) -> None:
        self._sink_store = store
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic

    def options(self, sink_id: str, **options: str) -> SinkOptions:
        given = {
            "sinkId": sink_id,
            "topic": self.topic,
            "commitStore.urlEnv": "NOWHERE",
            "commit.retries": "0",
            "txn.mode": "resume",
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.retry.backoff.ms": "5",
        }
        return parse(given | options)

    def write(
        self,
        sink_id: str,
        batch_id: int,
        partitions: Sequence[Sequence[str]],
        *,
        die_at: PausePoint | None = None,
        query_id: str = "query",
        **options: str,
    ) -> None:
        """Plan, write and commit one batch, and die when `die_at` is first reached."""

        def die() -> None:
            raise Death

        try:
            self._write(sink_id, batch_id, partitions, query_id, _Once(die_at, die), options)
        except Death:
            assert die_at is not None
        else:
            assert die_at is None, f"{die_at} was not met"

    def write_beside(
        self,
        sink_id: str,
        batch_id: int,
        partitions: Sequence[Sequence[str]],
        point: PausePoint,
        other: Callable[[], object],
        **options: str,
    ) -> None:
        """Plan, write and commit one batch; `other` runs when `point` is first reached."""
        once = _Once(point, other)
        self._write(sink_id, batch_id, partitions, "query", once, {"commit.retries": "3", **options})
        assert once.happened, f"{point} was not met"

    def _write(
        self,
        sink_id: str,
        batch_id: int,
        partitions: Sequence[Sequence[str]],
        query_id: str,
        pause: Pause,
        options: Mapping[str, str],
    ) -> None:
        parsed = self.options(sink_id, **options)
        side = ProducerSinkKafka(parsed, pause=pause)
        try:
            self._carry_out(Sink(parsed, self._sink_store, side, pause=pause), batch_id, partitions, query_id)
        finally:
            side.close()

    def _carry_out(self, sink: Sink, batch_id: int, partitions: Sequence[Sequence[str]], query_id: str) -> None:
        plan = sink.plan(SCHEMA, query_id=query_id)
        results: list[TaskResult] = []
        for number, values in enumerate(partitions):
            task = TaskIdentity(query_id, batch_id, number, number, "here")
            rows = [pa.record_batch({"value": list(values)})] if values else []
            results.append(sink.write(plan, task, iter(rows)))
        sink.commit(results, query_id=query_id, batch_id=batch_id, offsets_digest="input")


class ApplicationWorld(Applications):
    """Applications on a store in a database."""

    def __init__(self, engine: sa.Engine, bootstrap_servers: str, topic: str) -> None:
        self.engine = engine
        self.store = CommitStore(engine)
        self.store.create_tables()
        super().__init__(self.store, bootstrap_servers, topic)

    def forget_manifests(self) -> None:
        """Empty the manifests, so that none of their records can be published again."""
        with self.engine.begin() as connection:
            connection.execute(sa.text("UPDATE dw_attempt SET manifest = NULL"))


def recovery(store: OperatedStore, admin: TransactionAdmin, bootstrap_servers: str, **options: Any) -> SinkRecovery:
    """Return the recovery of `dualwrite spark recover`, for brokers of any tier; batches of any age are old enough."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "retry.backoff.ms": 5,
        "transaction.two.phase.commit.enable": True,
        "accept.bounded.guarantee": True,
    }
    completion = Completion(settings, parallelism=4, step_timeout_ms=60_000)
    return SinkRecovery(store, completion, admin, **{"min_age_ms": 0, **options})
