"""The dual write that the crash tests break, and the invariants afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import OutcomeUnknown
from dualwrite.outcome import Outcome, outcome_of
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.sqlalchemy.state_table import create_state_table
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from dualwrite.testing.conformance.row_store import RowStore
from tests.support.databases import Database, event_bodies, events, state_row, unique
from tests.support.kafka_ids import kafka_id_of
from tests.support.topics import read_topic

WriterT = TypeVar("WriterT")
MadeT = TypeVar("MadeT")

ROWS_PER_WRITE = 2

LIMITS: dict[str, Any] = {"lock_timeout_ms": 60_000, "resolve_timeout_ms": 60_000, "max_block_ms": 60_000}

POINTS_OF_A_TAKE_OVER = (PausePoint.AFTER_LOCK, PausePoint.AFTER_INIT, PausePoint.AFTER_TAKEOVER)
POINTS_BEFORE_COMMIT_REQUEST = (PausePoint.AFTER_STATE_WRITE, PausePoint.BEFORE_DATABASE_COMMIT)
# Of PostgreSQL, whose row is written in the message of COMMIT.
POINTS_BEFORE_WRITE_AND_COMMIT = (
    PausePoint.AFTER_BEGIN,
    PausePoint.AFTER_SEND,
    PausePoint.AFTER_PREPARE,
    *POINTS_BEFORE_COMMIT_REQUEST,
)
POINTS_AFTER_LOCK = (PausePoint.AFTER_LOCK, *POINTS_BEFORE_WRITE_AND_COMMIT)
POINTS_AFTER_THE_DECISION = (PausePoint.AFTER_DATABASE_COMMIT, PausePoint.AFTER_KAFKA_COMMIT)


class Predecessor(StrEnum):
    """The leftover of a gone process under the transactional id."""

    COMMITTED = "committed"  # the database has committed, Kafka is only prepared
    ROLLED_BACK = "rolled-back"  # Kafka is prepared, the database has rolled back


class InjectedError(Exception):
    """Raised at a pause point by the tests."""


class Crash(BaseException):
    """The process is gone."""


class OrdinaryError(Exception):
    """Raised in a block by the tests."""


@dataclass
class Seen:
    """How one dual write ended in the eyes of its caller."""

    error: BaseException | None = None
    outcome: Outcome | None = None
    is_behind: bool = False
    """Whether the error came behind the block, and so has left none."""

    @property
    def took_effect(self) -> bool | None:
        """Whether the caller must take it for written; None where the outcome is unknown."""
        if isinstance(self.error, OutcomeUnknown):
            return None
        return self.error is None or self.outcome is Outcome.COMMITTED


@dataclass
class ScenarioOf(Generic[WriterT]):
    """One transactional id, one topic, one database, and the events that must be in both at the end."""

    database: Database
    emulator: Emulator
    transactional_id: str = field(default_factory=lambda: unique("writer"))
    topic: str = field(default_factory=lambda: unique("topic"))
    expected: list[str] = field(default_factory=list)
    database_error: ClassVar[type[Exception]] = sa.exc.DBAPIError

    def __post_init__(self) -> None:
        self.emulator.create_topic(self.topic)
        create_state_table(self.database.engine)

    def writer(self, pause: PauseHook | None = None, **settings: Any) -> WriterT:
        raise NotImplementedError

    def make(self, kind: Callable[..., MadeT], source: Any, pause: PauseHook | None, **settings: Any) -> MadeT:
        """Make a writer of a kind, with the scenario's id."""
        return make(kind, source, self.emulator.bootstrap_servers, self.transactional_id, pause, **settings)

    @property
    def points_before_commit_request(self) -> Sequence[PausePoint]:
        """The points after which the next request to the database carries COMMIT."""
        return POINTS_BEFORE_COMMIT_REQUEST

    @property
    def kafka_id(self) -> str:
        """The id as Kafka sees it."""
        return kafka_id_of(self.database.aside, self.transactional_id)

    def leave_behind(self, predecessor: Predecessor, number: int = 0) -> None:
        """Do as a process does that is killed between the two commits, or before the first."""
        producer = Producer(
            bootstrap_servers=self.emulator.bootstrap_servers,
            transactional_id=self.kafka_id,
            transaction_two_phase_commit_enable=True,
        )
        producer.init_transactions()
        producer.begin_transaction()
        engine = self.database.aside
        store = RowStore(engine)
        blocking.run(store.ensure_row(self.transactional_id))
        bodies = event_texts(f"before {number}")
        with engine.connect() as connection:
            row = store.lock(connection, self.transactional_id, timeout_ms=None)
            for event_id, body in enumerate(bodies, start=number * 10):
                connection.execute(sa.insert(events), {"id": event_id, "event_key": "k", "body": body})
                producer.send(self.topic, value=body, key="k")
            state = producer.prepare_transaction()
            if predecessor is Predecessor.COMMITTED:
                store.write(connection, self.transactional_id, previous=row, new=state, manifest="")
                connection.commit()
                self.expected += bodies
            else:
                connection.rollback()
        producer.close(timeout_s=0)

    def write(self, writer: WriterT, number: int) -> Seen:
        """One dual write with a known effect; its events are expected at the end, according to the caller's result."""
        seen = self.write_events(writer, number)
        if seen.error is not None and seen.outcome is not None:
            assert outcome_of(seen.error) is (Outcome.UNKNOWN if seen.is_behind else seen.outcome)
        if seen.took_effect:
            self.expected += event_texts(str(number))
        return seen

    def write_events(self, writer: WriterT, number: int) -> Seen:
        raise NotImplementedError

    def assert_both_sides_agree(self, *written: str) -> None:
        """Table, topic and expectation, to which `written` is added, are equal, in order, and nothing is left open."""
        self.expected += written
        in_topic = [value for _, value in read_topic(self.emulator.bootstrap_servers, self.topic)]
        in_table = event_bodies(self.database)
        assert (in_table, in_topic) == (self.expected, self.expected)
        self.assert_nothing_open()

    def assert_nothing_open(self) -> None:
        ours = [t for t in self.emulator.transactions() if t.transactional_id == self.kafka_id]
        assert all(transaction.state in ("Empty", "CompleteCommit", "CompleteAbort") for transaction in ours)
        log = self.emulator.log(self.topic, 0)
        assert log.last_stable_offset == log.high_watermark

    def row(self) -> PreparedTxnState:
        return PreparedTxnState(state_row(self.database, self.transactional_id))


AnyScenario = ScenarioOf[Any]
"""A scenario of any kind of writer."""


class Scenario(ScenarioOf[DualWriter]):
    """A scenario whose writers are `DualWriter`."""

    def writer(self, pause: PauseHook | None = None, *, engine: sa.Engine | None = None, **settings: Any) -> DualWriter:
        return self.make(DualWriter, engine or self.database.engine, pause, **settings)

    @property
    def points_before_commit_request(self) -> Sequence[PausePoint]:
        of_postgres = self.database.engine.dialect.name == "postgresql"
        return POINTS_BEFORE_WRITE_AND_COMMIT if of_postgres else POINTS_BEFORE_COMMIT_REQUEST

    def write_events(self, writer: DualWriter, number: int) -> Seen:
        return write_events(writer, self.topic, number)


def make(
    kind: Callable[..., WriterT],
    source: Any,
    bootstrap_servers: str,
    transactional_id: str,
    pause: PauseHook | None = None,
    **settings: Any,
) -> WriterT:
    """Make a writer of a kind, whose limits a slow machine does not reach."""
    settings = LIMITS | {"transactional_id": transactional_id, "pause": pause} | settings
    return kind(source, bootstrap_servers=bootstrap_servers, **settings)


def event_texts(name: str) -> list[str]:
    return [f"{name}/{index}" for index in range(ROWS_PER_WRITE)]


def write_events(writer: DualWriter, topic: str, number: int) -> Seen:
    tx: DualTransaction | None = None
    try:
        with writer.transaction() as tx:
            for index, body in enumerate(event_texts(str(number))):
                tx.session.execute(sa.insert(events), {"id": number * 10 + index, "event_key": "k", "body": body})
                tx.send(topic, value=body, key="k")
    except Exception as error:
        return Seen(error, tx.outcome if tx else None)
    return Seen(None, tx.outcome)


def fail() -> None:
    """Act as a dying process, or as failing foreign code."""
    raise InjectedError


class AtPoint:
    """A pause hook that acts once, the first time its point is reached while it is armed."""

    def __init__(self, point: PausePoint, act: Callable[[], None], *, armed: bool = True) -> None:
        self.point = point
        self._act = act
        self._armed = armed
        self.struck = False

    @property
    def is_armed(self) -> bool:
        return self._armed

    def arm(self) -> None:
        self._armed = True

    def __call__(self, point: PausePoint) -> None:
        if self._armed and point is self.point:
            self._armed = False
            self.struck = True
            self._act()


def losing_the_commit(
    database: Database, *, applied: bool, and_database: bool = False, first: Callable[[], object] = lambda: None
) -> AtPoint:
    """Lose the response to COMMIT, and with `and_database` every connection to the database until it comes back."""

    def lose() -> None:
        first()
        database.lose_commit(applied=applied)
        if and_database:
            database.refuse_new_connections()

    return AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose)


def crash_at(point: PausePoint) -> AtPoint:
    """Let the process be gone at its first time at a point."""

    def crash() -> None:
        raise Crash

    return AtPoint(point, crash)
