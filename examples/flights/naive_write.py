"""The naive way: commit the database, then produce. It works until the process is killed in between.

It calls the pause hook at the points that correspond to those of the dual write, so that one plan kills both.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from sqlalchemy.orm import Session

from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from examples.flights.errors import RefusedError
from examples.flights.events import Event
from examples.flights.job import Job
from examples.flights.table import row_of

_FLUSH_TIMEOUT_S = 30


class NaiveMethod:
    """Two commits, one after the other, and nothing that ties them together."""

    def __init__(self, engine: sa.Engine, job: Job, pause: PauseHook) -> None:
        self._engine = engine
        self._topic = job.topic
        self._pause = pause
        self._producer = Producer(
            {
                "bootstrap.servers": job.bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",  # Kafka's own; librdkafka's default scatters an empty key
            }
        )

    def recover(self) -> Outcome:
        """Recover nothing: records that were not sent are unknown."""
        self._pass(PausePoint.AFTER_INIT, PausePoint.AFTER_COMPLETION, PausePoint.AFTER_TAKEOVER)
        return Outcome.NOTHING

    def write(self, events: Sequence[Event]) -> None:
        with Session(self._engine) as session, session.begin():
            self._pass(PausePoint.AFTER_LOCK, PausePoint.AFTER_BEGIN)
            session.add_all(map(row_of, events))
            session.flush()
            self._pass(PausePoint.AFTER_PREPARE, PausePoint.AFTER_STATE_WRITE, PausePoint.BEFORE_DATABASE_COMMIT)
        self._pass(PausePoint.AFTER_DATABASE_COMMIT)
        for event in events:
            self._produce(event)
            self._pass(PausePoint.AFTER_SEND)
        self._flush()
        self._pass(PausePoint.AFTER_KAFKA_COMMIT)

    def close(self) -> None:
        self._flush()

    def _produce(self, event: Event) -> None:
        try:
            self._producer.produce(self._topic, key=event.key, value=event.value, on_delivery=_raise_failure)
        except KafkaException as error:
            raise RefusedError(f"event {event.number} cannot be sent: {error.args[0].str()}") from error

    def _flush(self) -> None:
        if left := self._producer.flush(_FLUSH_TIMEOUT_S):
            raise RefusedError(f"{left} records were not delivered within {_FLUSH_TIMEOUT_S} s")

    def _pass(self, *points: PausePoint) -> None:
        for point in points:
            self._pause(point)


def _raise_failure(error: KafkaError | None, message: Message) -> None:
    """Raise delivery errors: without kills, the naive way must lose nothing, or the contrast would not be fair."""
    if error is not None:
        raise RefusedError(f"a record was not delivered: {error.str()}")
