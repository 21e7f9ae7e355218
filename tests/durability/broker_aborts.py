"""Dual writes between which a broker aborts and a database fails: the steps of each case, and the verdict.

Many of them share one server, whose failure strikes them all at once: each has a transactional id, a topic and a broker
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import pytest
import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.errors import DatabaseWentBackError, TransactionalIdNotFoundError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.recovery.service import Action, RecoveryService
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyStateStore
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.producer.tiers import BOUNDED, BY_STORED_PAIR, TIERS, World
from tests.support.topics import read_topic

TABLE: Final = "CREATE TABLE bodies (body text PRIMARY KEY)"


class Broker(StrEnum):
    """The broker's treatment of the decided dual write P, and its repair by Q, before the database fails."""

    TIMEOUT = "P is aborted by its timeout"
    OPERATOR = "P is aborted by an operator"
    AFTERWARDS = "P is aborted by an operator, after the event"
    REPAIRED = "P is aborted, and a block has published it again"
    REPAIRING = "P is aborted, and a block that publishes it again is decided, and Kafka has not committed it"


class Verdict(NamedTuple):
    """The required result after the event: recovery's outcome, and the values, the same on both sides.

    Or, if `outcome` is None, that each use is refused before anything is written, and the records in Kafka then.
    """

    outcome: Outcome | None
    values: tuple[str, ...]
    records: tuple[str, ...] = ()


_B, _D, _N = ("before",), ("before", "decided"), ("before", "decided", "next")

KEPT: Final[dict[Broker, Verdict]] = {
    Broker.TIMEOUT: Verdict(Outcome.REPAIRED, _D),
    Broker.OPERATOR: Verdict(Outcome.REPAIRED, _D),
    Broker.AFTERWARDS: Verdict(Outcome.REPAIRED, _D),
    Broker.REPAIRED: Verdict(Outcome.NOTHING, _N),
    Broker.REPAIRING: Verdict(Outcome.COMMITTED, _N),
}
"""The event takes nothing back that was decided."""

OLDER_THAN_P: Final[dict[Broker, Verdict]] = {
    Broker.TIMEOUT: Verdict(Outcome.NOTHING, _B),
    Broker.OPERATOR: Verdict(Outcome.NOTHING, _B),
    Broker.AFTERWARDS: Verdict(Outcome.NOTHING, _B),
    Broker.REPAIRED: Verdict(None, _B, _N),
    Broker.REPAIRING: Verdict(Outcome.ROLLED_BACK, _B),
}
"""The event takes P back, and all later steps."""

OLDER_THAN_Q: Final[dict[Broker, Verdict]] = {
    Broker.TIMEOUT: Verdict(Outcome.REPAIRED, _D),
    Broker.OPERATOR: Verdict(Outcome.REPAIRED, _D),
    Broker.AFTERWARDS: Verdict(Outcome.REPAIRED, _D),
    Broker.REPAIRED: Verdict(None, _D, _N),
    Broker.REPAIRING: Verdict(Outcome.REPAIRED, _D),
}
"""The event takes the repair back: the row names P again."""


class Case(NamedTuple):
    """One combination."""

    tier: Tier
    broker: Broker
    face: str

    def __str__(self) -> str:
        return f"{self.tier.name}-{self.broker.name}-{self.face}"


CASES: Final = [
    Case(tier, broker, face)
    for tier in BY_STORED_PAIR
    for broker in Broker
    for face in ("sqlalchemy", "psycopg")
    if broker is not Broker.TIMEOUT or tier in BOUNDED
]


class Died(BaseException):
    """The process is gone."""


def dies(point: PausePoint) -> None:
    """End the process between the two commits."""
    if point is PausePoint.AFTER_DATABASE_COMMIT:
        raise Died


@dataclass(eq=False)
class Site:
    """One application: its database, its broker, and the process that is to come."""

    case: Case
    world: World
    url: sa.URL
    topic: str
    transactional_id: str
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings of the writers."""

    # ---- one process each ------------------------------------------------------------------------------------

    @contextmanager
    def writer(self, pause: PauseHook | None = None) -> Iterator[Any]:
        settings: dict[str, Any] = {
            "bootstrap_servers": self.world.emulator.bootstrap_servers,
            "transactional_id": self.transactional_id,
            "max_block_ms": 60_000,
            "retry_backoff_ms": 5,
            "pause": pause,
        }
        if self.case.face == "psycopg":
            text = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
            with PsycopgDualWriter(text, **settings | self.settings) as writer:
                yield writer
            return
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with DualWriter(engine, **settings | self.settings) as writer:
            yield writer

    def write(self, value: str, pause: PauseHook | None = None) -> None:
        with self.writer(pause) as writer:
            self.put(writer, value)

    def put(self, writer: Any, value: str) -> None:
        """One block: a row and a record."""
        body = f"{self.topic}/{value}"
        with writer.transaction() as tx:
            if self.case.face == "psycopg":
                tx.connection.execute("INSERT INTO bodies VALUES (%s)", (body,))
            else:
                tx.connection.execute(sa.text("INSERT INTO bodies VALUES (:body)"), {"body": body})
            tx.send(self.topic, value, partition=0)

    def decide_and_die(self, value: str) -> None:
        with pytest.raises(Died):
            self.write(value, dies)

    # ---- the steps -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.write("before")

    def decide(self) -> None:
        """Leave P, and let the broker abort it, if it does so before the event."""
        self.decide_and_die("decided")
        if self.case.broker is Broker.TIMEOUT:
            self.world.abort_by_timeout()
        elif self.case.broker is not Broker.AFTERWARDS:
            self.abort()

    def go_on(self) -> None:
        """Publish P again, if that happens before the event."""
        if self.case.broker is Broker.REPAIRED:
            self.write("next")
        elif self.case.broker is Broker.REPAIRING:
            self.decide_and_die("next")

    def abort(self) -> None:
        """Abort the open transaction, as an operator does."""
        with TransactionAdmin(bootstrap_servers=self.world.emulator.bootstrap_servers) as admin:
            try:
                admin.force_terminate_transaction(self.kafka_id)
            except TransactionalIdNotFoundError:
                raise AssertionError("nothing was prepared") from None
        self.world.settle()

    # ---- the verdict -----------------------------------------------------------------------------------------

    def judge(self, verdict: Verdict) -> None:
        """Compare both sides, after the event, with the required values."""
        if self.case.broker is Broker.AFTERWARDS:
            self.abort()
        if verdict.outcome is None:
            self._assert_refused(verdict)
            return
        with self.writer() as writer:
            expected = [] if verdict.outcome is Outcome.NOTHING else [verdict.outcome]
            assert [found.outcome for found in writer.recover()] == expected
            assert writer.recover() == []
            self.put(writer, "later")
        assert (self.rows(), self.records()) == (sorted([*verdict.values, "later"]), [*verdict.values, "later"])

    def _assert_refused(self, verdict: Verdict) -> None:
        row = self.row()
        uses: list[Callable[[Any], object]] = [lambda writer: writer.recover(), lambda writer: self.put(writer, "no")]
        for use in uses * 2:
            with self.writer() as writer, pytest.raises(DatabaseWentBackError):
                use(writer)
        assert (self.row(), self.rows(), self.records()) == (row, sorted(verdict.values), list(verdict.records))
        self._acknowledge()
        self.write("later")
        assert (self.rows(), self.records()) == (sorted([*verdict.values, "later"]), [*verdict.records, "later"])

    def _acknowledge(self) -> None:
        settings: dict[str, Any] = {"acknowledge_lost": [self.transactional_id], "min_age_ms": 0, **self.settings}
        servers = self.world.emulator.bootstrap_servers
        with RecoveryService(self._aside, bootstrap_servers=servers, **settings) as service:
            (found,) = service.recover().found
        assert (found.action, found.changed) == (Action.ACKNOWLEDGE, True)

    def rows(self) -> list[str]:
        with self._aside.connect() as connection:
            bodies = connection.exec_driver_sql("SELECT body FROM bodies ORDER BY body").scalars().all()
        return [body.partition("/")[2] for body in bodies if body.startswith(f"{self.topic}/")]

    def records(self) -> list[str]:
        self.world.settle()
        return [value for _, value in read_topic(self.world.emulator.bootstrap_servers, self.topic)]

    def row(self) -> tuple[Any, ...]:
        with self._aside.connect() as connection:
            found = connection.execute(
                sa.text("SELECT * FROM kafka_transaction_state WHERE transactional_id = :id"),
                {"id": self.transactional_id},
            )
            return tuple(found.one())

    @property
    def kafka_id(self) -> str:
        return SqlAlchemyStateStore(self._aside).identity().kafka_id(self.transactional_id)

    @property
    def _aside(self) -> sa.Engine:
        return sa.create_engine(self.url, poolclass=sa.NullPool)


@contextmanager
def world_of(case: Case, topic: str) -> Iterator[World]:
    """A broker for one case, whose clock stands still."""
    with Emulator(topics={topic: 1}, config=TIERS[case.tier], clock=VirtualClock()) as emulator:
        yield World(emulator, case.tier)
