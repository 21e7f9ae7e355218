"""`error.outcome` and `outcome_of(error)`: the true outcome of the block that an error has left, for any class."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite import errors
from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import Error, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.client.transactions.errors import RETRIED
from dualwrite.errors import (
    ERROR_CLASSES,
    Api,
    DualWriteError,
    FencedError,
    KafkaTimeoutError,
    OutcomeUnknown,
    PreparedTransactionLost,
    RetriableError,
    error_class,
)
from dualwrite.outcome import Outcome, note_outcome, outcome_of
from dualwrite.recipes.core.dual_write import say_of_block
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import AtPoint, InjectedError, Scenario, losing_the_commit
from tests.recipes.repairs import delete_records
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, SqliteDatabase, events
from tests.support.topics import read_topic


def every_error() -> list[type[DualWriteError]]:
    return [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, DualWriteError)]


def made(kind: type[BaseException]) -> BaseException:
    """Return an error of a class, with the arguments of its constructor."""
    values: dict[str, Any] = {"partial": None, "failures": {}, "partitions": ()}
    needed = [each for each in inspect.signature(kind.__init__).parameters.values() if each.default is each.empty]
    named = {each.name: values.get(each.name, "") for each in needed if each.kind is each.KEYWORD_ONLY}
    return kind("of a test", **named)


class Strike:
    """A pause hook that raises one error, at one point."""

    def __init__(self) -> None:
        self.point: PausePoint | None = None
        self.error: BaseException = Exception()

    def __call__(self, point: PausePoint) -> None:
        if point is self.point:
            self.point = None
            raise self.error


def insert(tx: Any, number: int) -> None:
    tx.session.execute(sa.insert(events), {"id": number, "event_key": "k", "body": str(number)})


def write(writer: DualWriter, scenario: Scenario, number: int) -> BaseException | None:
    """Run a block; return the error that left it."""
    try:
        with writer.transaction() as tx:
            insert(tx, number)
            tx.send(scenario.topic, value=str(number), key="k")
    except BaseException as error:
        return error
    return None


def rows(scenario: Scenario) -> list[int]:
    with scenario.database.aside.connect() as connection:
        return sorted(connection.scalars(sa.select(events.c.id)))


@pytest.fixture
def scenario(tmp_path: Path, emulator: Emulator) -> Iterator[Scenario]:
    database = SqliteDatabase(tmp_path)
    yield Scenario(database, emulator)
    database.close()


TREATED_APART = (
    errors.AbortableError,
    errors.FatalError,
    errors.FencedError,
    errors.KafkaUnreachableError,
    errors.OutcomeUnknown,
    errors.PreparedTransactionLost,
    errors.StoredBlocksError,
    KeyboardInterrupt,
)
"""Classes that the steps of a dual write catch."""


def test_each_class_answers(scenario: Scenario) -> None:
    with scenario.writer() as writer:
        for kind in (*every_error(), ValueError, KeyboardInterrupt):
            error = made(kind)
            with pytest.raises(kind), writer.transaction() as tx:
                insert(tx, 1)
                raise error
            assert outcome_of(error) is Outcome.ROLLED_BACK
    assert rows(scenario) == []


@pytest.mark.parametrize("kind", TREATED_APART)
def test_the_place_decides_and_not_the_class(scenario: Scenario, kind: type[BaseException]) -> None:
    strike = Strike()
    for place in (PausePoint.AFTER_BEGIN, PausePoint.BEFORE_DATABASE_COMMIT, PausePoint.AFTER_DATABASE_COMMIT):
        with scenario.writer(strike) as writer:
            strike.point, strike.error = place, made(kind)
            left = write(writer, scenario, 1)
        if place is not PausePoint.AFTER_DATABASE_COMMIT:
            assert left is not None
            assert (outcome_of(left), rows(scenario)) == (Outcome.ROLLED_BACK, [])
    if kind is errors.PreparedTransactionLost:  # was mended, because it is not true
        assert left is None
    else:
        assert left is not None
        assert outcome_of(left) is Outcome.COMMITTED
    assert rows(scenario) == [1]


def test_an_error_that_left_no_block_answers_that_nothing_is_known() -> None:
    assert {made(kind).outcome for kind in every_error()} == {Outcome.UNKNOWN}  # type: ignore[attr-defined]
    assert outcome_of(ValueError()) is Outcome.UNKNOWN


def test_the_answer_goes_with_the_error_to_another_process(scenario: Scenario) -> None:
    strike = Strike()
    with scenario.writer(strike) as writer:
        for error in (RetriableError("of Kafka"), ValueError("of the application")):
            strike.point, strike.error = PausePoint.AFTER_BEGIN, error
            left = write(writer, scenario, 1)
            assert left is error
            assert outcome_of(pickle.loads(pickle.dumps(left))) is Outcome.ROLLED_BACK


OF_A_BLOCK = (Api.FIND_COORDINATOR, Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE, Api.METADATA)
REFUSALS = [(api, code) for api, code in ERROR_CLASSES if api in OF_A_BLOCK and error_class(api, code) not in RETRIED]


def test_kafka_errors_speak_of_blocks_and_not_of_producer_calls(scenario: Scenario) -> None:
    """Users of a writer have none of a producer's calls."""
    for number, (api, code) in enumerate(REFUSALS):
        refused = scenario.emulator.faults.add(Fault(api=api.kafka_name, action=Error(code), count=None))
        with scenario.writer(max_block_ms=2_000, delivery_timeout_ms=2_000, request_timeout_ms=1_000) as writer:
            error = write(writer, scenario, number)
        refused.remove()
        if error is None:
            continue  # this broker's versions do not lead to that request
        said = str(error)
        assert not re.search(r"\b(?!send\b|recover\b|resolve\b)[a-z_]+\(\)|this producer|new producer", said), said
        assert re.search("either side|either database|othing was written", said), said
    assert len(REFUSALS) > 20


@pytest.mark.parametrize(
    "call", ["the same call until it returns", "the call", "commit_transaction()", "complete_transaction()"]
)
@pytest.mark.parametrize(
    ("outcome", "repeat", "said"),
    [
        (Outcome.COMMITTED, None, "do not repeat the block"),
        (Outcome.ROLLED_BACK, None, "repeat the block"),
        (Outcome.UNKNOWN, "it is tried again", "it is tried again"),
    ],
)
def test_a_committed_block_is_not_to_be_repeated(outcome: Outcome, repeat: str | None, said: str, call: str) -> None:
    error, cause = (KafkaTimeoutError(f"late: repeat {call}") for _ in range(2))
    error.__cause__ = cause
    note_outcome(error, outcome)
    for _ in range(2):  # each block that it leaves says it
        say_of_block(error, *filter(None, [repeat]))
    assert str(cause) == f"late: {said}"
    assert str(error).startswith(f"late: {said}")


@pytest.mark.usefixtures("asks_twice")
def test_a_lost_commit_is_unknown_and_the_block_stopped_by_it_is_rolled_back(scenario: Scenario) -> None:
    lose = losing_the_commit(scenario.database, applied=True, and_database=True)
    with scenario.writer(lose) as writer:
        told = [write(writer, scenario, number) for number in (1, 2)]
        scenario.database.come_back()
        writer.recover()
    assert [type(error) for error in told] == [OutcomeUnknown, OutcomeUnknown]
    assert [outcome_of(error) for error in told if error] == [Outcome.UNKNOWN, Outcome.ROLLED_BACK]
    assert rows(scenario) == [1]


@pytest.mark.usefixtures("asks_twice")
def test_recover_returns_the_outcome_of_a_lost_commit_while_kafka_is_away(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller who did not get it might repeat the block; the next call completes Kafka."""
    lose = losing_the_commit(scenario.database, applied=True, and_database=True)
    with scenario.writer(lose) as writer:
        assert isinstance(write(writer, scenario, 1), OutcomeUnknown)
        scenario.emulator.crash_node(0)
        scenario.database.come_back()
        (found,) = writer.recover()
        assert found.outcome is Outcome.COMMITTED
        with pytest.raises(DualWriteError) as raised:
            writer.recover()
        for said in (str(raised.value), caplog.text):
            assert not re.search("either side was|othing is decided|(?<!not )repeat the block", said), said
        scenario.emulator.start_node(0)
        until(lambda: not writer.coordinator.owned.availability.is_away)
        writer.recover()
    assert read_topic(scenario.emulator.bootstrap_servers, scenario.topic) == [("k", "1")]


def test_recover_by_a_fenced_writer_names_the_decided_dual_write(scenario: Scenario) -> None:
    fenced = scenario.emulator.faults.add(Fault(api="EndTxn", action=Error("PRODUCER_FENCED"), count=None))
    with scenario.writer() as writer:
        assert write(writer, scenario, 1) is None
        with pytest.raises(FencedError, match=f"the next owner of the id commits {writer.in_doubt}: make a new"):
            writer.recover()
        assert isinstance(error := write(writer, scenario, 2), FencedError)
        assert "neither side was changed by this block" in str(error)
    fenced.remove()
    with scenario.writer() as successor:
        (found,) = successor.recover()
    assert found.outcome is Outcome.COMMITTED
    assert rows(scenario) == [1]


def test_without_records_a_lost_commit_is_unknown_by_the_error_of_the_database(scenario: Scenario) -> None:
    with scenario.writer() as writer:
        with pytest.raises(sa.exc.DBAPIError) as raised, writer.transaction() as tx:
            insert(tx, 1)
            scenario.database.lose_commit(applied=True)
        assert outcome_of(raised.value) is Outcome.UNKNOWN
        with pytest.raises(sa.exc.IntegrityError) as refused, writer.transaction() as tx:
            insert(tx, 1)
        assert outcome_of(refused.value) is Outcome.ROLLED_BACK


def test_a_loss_is_decided_for_the_block_that_was_lost_and_rolled_back_for_the_next(scenario: Scenario) -> None:
    def lose() -> None:
        with TransactionAdmin(bootstrap_servers=scenario.emulator.bootstrap_servers) as admin:
            admin.force_terminate_transaction(scenario.kafka_id)
        delete_records(scenario.emulator.bootstrap_servers, scenario.topic)

    with scenario.writer(AtPoint(PausePoint.AFTER_DATABASE_COMMIT, lose)) as writer:
        told = [write(writer, scenario, number) for number in (1, 2)]
    assert all(isinstance(error, PreparedTransactionLost) for error in told)
    assert [outcome_of(error) for error in told if error] == [Outcome.COMMITTED, Outcome.ROLLED_BACK]
    assert rows(scenario) == [1]


@pytest.mark.parametrize(("of_the_inner_block", "answer"), [(True, Outcome.COMMITTED), (False, Outcome.ROLLED_BACK)])
def test_a_block_around_another_one_does_not_hide_the_writes_inside(
    postgres: PostgresDatabase, emulator: Emulator, of_the_inner_block: bool, answer: Outcome
) -> None:
    scenario, strike = Scenario(postgres, emulator), Strike()
    servers = emulator.bootstrap_servers
    with DualWriter(postgres.engine, prefix="pool", bootstrap_servers=servers, pause=strike) as pool:
        if of_the_inner_block:
            strike.point, strike.error = PausePoint.AFTER_DATABASE_COMMIT, InjectedError()
        with pytest.raises(InjectedError) as raised, pool.transaction() as tx:
            insert(tx, 1)
            left = write(pool, scenario, 2)
            raise left or InjectedError
    assert outcome_of(raised.value) is answer
    assert rows(scenario) == [2]
