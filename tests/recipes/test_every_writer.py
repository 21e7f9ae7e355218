"""The meaning of a block, and harmless misuse, the same with every writer: for threads and asyncio, on each library."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from dualwrite.broker_emulator import Error, Fault
from dualwrite.errors import (
    DualWriteError,
    IllegalStateError,
    InvalidRecordError,
    StateRowError,
    TransactionDoomedError,
    TransactionEndedInsideError,
    TransactionTooLargeError,
)
from dualwrite.outcome import Outcome
from dualwrite.producer import TopicPartition
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from tests.crash.conftest import AWAITED, BLOCKING
from tests.crash.scenario import AtPoint, InjectedError, OrdinaryError
from tests.recipes.faces import FACES, INSERT, ON_ASYNCPG, WAYS, Block, Face
from tests.support.narrowing import current
from tests.support.topics import read_topic

AGAIN = INSERT.format(1)
"""Violates the primary key of event 1."""


def by_way(*faces: str) -> pytest.MarkDecorator:
    cases = [(face, way) for face in faces for way in WAYS[face]]
    return pytest.mark.parametrize(("face", "way"), cases, indirect=["face"])


@pytest.fixture
def block(face: Face, way: str) -> Iterator[Callable[[], AbstractContextManager[Block]]]:
    """Open blocks whose statements go one of the face's ways."""
    with face.by(way) as opened:
        yield opened


Opened = Callable[[], AbstractContextManager[Block]]


# ---- results --------------------------------------------------------------------------------------------------------


def test_a_block_stores_rows_and_records_with_its_outcome(face: Face) -> None:
    with face.block() as block:
        tx = block.tx
        assert current(tx.outcome) is None
        assert current(tx.prepared_state).is_empty
        block.insert(1)
        record = tx.send(face.scenario.topic, key="k", value="1")
        with pytest.raises(IllegalStateError, match="at the end of the block"):
            _ = record.metadata
    assert tx.outcome is Outcome.COMMITTED
    first = face.scenario.row()
    assert tx.prepared_state == first
    assert tx.transactional_id == face.scenario.transactional_id
    with pytest.raises(IllegalStateError, match="ended"):
        block.send(2)
    with face.block() as block:
        block.insert(2)
        another = block.tx.send(face.scenario.topic, key="k", value="2")
    assert face.scenario.row() == block.tx.prepared_state != first
    assert record.metadata.offset == 0
    assert another.metadata.offset > 1  # behind a marker
    face.scenario.assert_both_sides_agree("1", "2")


def test_an_exception_is_the_callers_own_and_neither_side_is_written(face: Face) -> None:
    mine = OrdinaryError("mine")
    with pytest.raises(OrdinaryError) as caught, face.block() as block:
        block.put(1)
        raise mine
    assert caught.value is mine
    assert block.tx.outcome is Outcome.ROLLED_BACK
    assert face.writer.state is SlotState.NEW
    assert face.scenario.emulator.transactions() == []
    face.scenario.assert_both_sides_agree()


def test_a_block_without_records_needs_no_kafka_and_one_without_statements_is_a_kafka_transaction(face: Face) -> None:
    with face.block() as reading:
        assert face.ask(reading.tx, "SELECT count(*) FROM events") == 0
    assert (reading.tx.outcome, face.writer.state) == (Outcome.COMMITTED, SlotState.NEW)
    with face.block() as block:
        block.insert(1)
    with pytest.raises(OrdinaryError), face.block() as failed:
        failed.insert(2)
        raise OrdinaryError
    assert (block.tx.outcome, failed.tx.outcome) == (Outcome.COMMITTED, Outcome.ROLLED_BACK)
    assert block.tx.transactional_id is None
    assert block.tx.prepared_state.is_empty
    assert face.scenario.row().is_empty
    assert face.scenario.emulator.transactions() == []
    assert face.rows == ["1"]
    with face.block() as block:
        block.tx.send(face.scenario.topic, value="1")
    assert face.scenario.row() == block.tx.prepared_state
    assert read_topic(face.scenario.emulator.bootstrap_servers, face.scenario.topic) == [("", "1")]


def test_offsets_are_committed_with_the_block(face: Face) -> None:
    with face.block() as block:
        block.put(1)
        block.tx.send_offsets({TopicPartition(face.scenario.topic, 0): 5}, "group")
    face.scenario.assert_both_sides_agree("1")
    consumer = Consumer({"bootstrap.servers": face.scenario.emulator.bootstrap_servers, "group.id": "group"})
    (position,) = consumer.committed([KafkaPartition(face.scenario.topic, 0)], timeout=60)
    consumer.close()
    assert position.offset == 5


# ---- swallowed failures ---------------------------------------------------------------------------------------------


@by_way(*FACES)
def test_a_failed_statement_ends_the_block_even_if_its_error_is_swallowed(face: Face, block: Opened) -> None:
    with block() as first:
        first.put(1)
    with pytest.raises(face.database_error), block() as failed:
        failed.put(2)
        failed.execute(AGAIN)
    with pytest.raises(TransactionDoomedError) as caught, block() as failed:
        failed.put(2)
        with pytest.raises(face.database_error) as swallowed:
            failed.execute(AGAIN)
        with suppress(face.database_error):  # PostgreSQL refuses it, and others do not
            failed.execute("SELECT 1")
    cause = caught.value.__cause__
    assert str(cause) in str(swallowed.value)  # which is SQLAlchemy's, or the same
    assert type(cause).__name__ in str(caught.value)
    assert failed.tx.outcome is Outcome.ROLLED_BACK
    face.scenario.assert_both_sides_agree("1")


_REFUSED: dict[str, tuple[dict[str, Any], type[DualWriteError]]] = {
    "no bytes": ({"value": 5}, InvalidRecordError),
    "too large": ({"value": b"x" * 50_000_000}, TransactionTooLargeError),
    "partition -1": ({"value": "v", "partition": -1}, InvalidRecordError),
}


@pytest.mark.parametrize(
    ("face", "refused"),
    [(face, refused) for face in FACES for refused in _REFUSED if face in BLOCKING or refused == "no bytes"],
    indirect=["face"],
)
def test_a_refused_record_that_is_swallowed_dooms_the_block(face: Face, refused: str) -> None:
    record, error = _REFUSED[refused]
    with pytest.raises(TransactionDoomedError) as caught, face.block() as block:
        block.put(1)
        with pytest.raises(error) as swallowed:
            block.tx.send(face.scenario.topic, **record)
    assert caught.value.__cause__ is swallowed.value
    face.scenario.assert_both_sides_agree()


# ---- savepoints -----------------------------------------------------------------------------------------------------

OF_DRIVER = pytest.mark.parametrize("of_driver", [False, True], ids=["writer's own", "library's own"])


@OF_DRIVER
def test_a_rolled_back_savepoint_drops_its_records(face: Face, of_driver: bool) -> None:
    with pytest.raises(OrdinaryError), face.block() as block:
        with face.part(block.tx, of_driver=of_driver):  # SQLite's driver would begin with it, and RELEASE would commit
            block.put(1)
        raise OrdinaryError
    with face.block() as block:
        block.put(1)
        with face.part(block.tx, of_driver=of_driver) as same:
            assert of_driver or same is block.tx
            block.put(2)
            with pytest.raises(OrdinaryError), face.part(block.tx, of_driver=of_driver):
                block.put(3)
                with face.part(block.tx, of_driver=of_driver):
                    block.put(4)
                raise OrdinaryError
            block.put(5)
        with pytest.raises(OrdinaryError), face.part(block.tx, of_driver=of_driver):
            block.send(6)
            raise OrdinaryError
        with pytest.raises(face.database_error), face.part(block.tx, of_driver=of_driver):
            block.put(7)
            block.execute(AGAIN)
        block.put(8)
    face.scenario.assert_both_sides_agree("1", "2", "5", "8")


def test_a_refused_record_costs_its_savepoint_only_unless_it_is_swallowed_inside(face: Face) -> None:
    with face.block() as block:
        block.put(1)
        with pytest.raises(InvalidRecordError), face.part(block.tx):
            block.put(2)
            block.tx.send(face.scenario.topic, value=object())
        block.put(3)
    with pytest.raises(TransactionDoomedError) as caught, face.block() as block:
        block.put(4)
        with face.part(block.tx):
            block.put(5)
            with pytest.raises(InvalidRecordError) as refused:
                block.tx.send(face.scenario.topic, value=object())
    assert caught.value.__cause__ is refused.value
    face.scenario.assert_both_sides_agree("1", "3")


def test_a_write_whose_records_all_went_with_a_savepoint_does_not_need_kafka(face: Face) -> None:
    with face.block() as block:
        block.insert(1)
        with pytest.raises(OrdinaryError), face.part(block.tx):
            block.put(2)
            raise OrdinaryError
    assert (block.tx.outcome, block.tx.transactional_id) == (Outcome.COMMITTED, None)
    assert face.writer.state is SlotState.NEW
    assert face.rows == ["1"]
    assert face.scenario.emulator.transactions() == []


# ---- ends of the transaction, and of the writer ---------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:transaction already deassociated")
@pytest.mark.parametrize("call", ["commit", "rollback"])
@by_way(*(face for face in FACES if face not in ON_ASYNCPG))  # whose connections have no commit()
def test_the_transaction_is_ended_by_the_block_only(face: Face, block: Opened, way: str, call: str) -> None:
    def end(tx: Any) -> None:
        face.run(getattr(tx.session if way == "session" else tx.connection, call)())
        tx.send(face.scenario.topic, value="2")

    with pytest.raises(TransactionEndedInsideError), block() as ended:
        ended.put(1)
        end(ended.tx)
    assert ended.tx.outcome is Outcome.ROLLED_BACK
    with pytest.raises(TransactionEndedInsideError if face.is_on_sqlalchemy else TransactionDoomedError):
        with block() as ended:
            ended.put(1)
            with suppress(TransactionEndedInsideError):
                end(ended.tx)
    assert ended.tx.outcome is Outcome.ROLLED_BACK
    with block() as another:
        another.put(3)
    face.scenario.assert_both_sides_agree("3")


def test_one_dual_write_at_a_time_and_none_after_close(face: Face) -> None:
    with face.block() as block:
        block.put(1)
        instead = "" if face.name in AWAITED else r".*tx\.savepoint\(\)"  # a block of another task
        with pytest.raises(IllegalStateError, match=f"already carries a dual write{instead}"), face.block():
            pass
        with pytest.raises(IllegalStateError, match="already carries"):
            face.writer.recover()
        if face.name not in AWAITED:  # where it waits for blocks of other tasks
            with pytest.raises(IllegalStateError, match="leave its block"):
                face.writer.close()
    face.writer.close()
    face.writer.close()
    with pytest.raises(IllegalStateError, match="closed"), face.block():
        pass
    face.scenario.assert_both_sides_agree("1")


# ---- the row --------------------------------------------------------------------------------------------------------


def _aside(face: Face, text: str) -> None:
    with face.database.aside.begin() as connection:
        connection.execute(sa.text(text))


def test_the_table_is_created_by_default_and_a_deleted_row_is_reported(face: Face) -> None:
    _aside(face, "DROP TABLE kafka_transaction_state")
    with face.scenario.writer(create_table=False) as careful:
        with pytest.raises(StateRowError, match=r"create_state_table|schema\.sql"), careful.transaction():
            pass
    face.writer.recover()
    face.writer.recover()
    with face.block() as block:
        block.put(1)
    _aside(face, "DELETE FROM kafka_transaction_state")
    with pytest.raises(StateRowError, match="was deleted"), face.block() as block:
        block.put(2)
    face.scenario.assert_both_sides_agree("1")


# ---- Kafka, and other processes -------------------------------------------------------------------------------------


def test_an_unconfirmed_commit_is_in_doubt_and_completed(face: Face) -> None:
    """A refusal by Kafka to commit a decided transaction does not abort it."""
    face.scenario.emulator.faults.add(Fault(api="EndTxn", action=Error(120)))  # TRANSACTION_ABORTABLE
    assert face.scenario.write(face.writer, 1).error is None
    assert face.writer.state is SlotState.IN_DOUBT
    assert face.writer.in_doubt == face.scenario.row()
    assert [found.outcome for found in face.writer.recover()] == [Outcome.COMMITTED]
    face.scenario.assert_both_sides_agree()


@pytest.mark.parametrize("face", [face for face in FACES if "lite" not in face and face != "mariadb"], indirect=True)
def test_a_forked_child_that_leaves_the_block_does_not_end_it(face: Face) -> None:
    """The child's ROLLBACK would go through the socket and the loop that it shares with its parent."""
    me = os.getpid()

    def fork_and_leave() -> None:
        child = os.fork()
        if child == 0:
            raise SystemExit
        os.waitpid(child, 0)

    with face.scenario.writer(AtPoint(PausePoint.AFTER_SEND, fork_and_leave)) as writer:
        try:
            with suppress(SystemExit):
                seen = face.scenario.write(writer, 1)
        finally:
            if os.getpid() != me:
                os._exit(0)
        assert seen.error is None
        face.scenario.assert_both_sides_agree()


@pytest.mark.parametrize("face", ["postgres", "mariadb", "psycopg"], indirect=True)
def test_a_forked_child_that_reaches_the_end_of_a_block_without_records_does_not_commit_it(face: Face) -> None:
    me, status = os.getpid(), None
    try:
        with suppress(InjectedError), face.block() as block:
            block.insert(1)
            child = os.fork()
            if child:
                status = os.waitpid(child, 0)[1]
                block.insert(2)
                raise InjectedError
    except IllegalStateError as error:
        assert os.getpid() != me
        os._exit(0 if "nothing was" in str(error) else 1)
    finally:
        if os.getpid() != me:
            os._exit(2)
    assert status == 0
    assert face.rows == []
