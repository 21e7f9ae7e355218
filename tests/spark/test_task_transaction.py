"""The Kafka transaction of one attempt: how it takes its id over, and the limits of a stalled attempt."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from dualwrite.broker_emulator import DropReply, Fault
from dualwrite.errors import AbortableError, InvalidRecordError, KafkaTimeoutError
from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import AttemptCondemnedError, SinkOptionError
from spark_sink.store.attempt_states import Ending, Prepared, Verdict
from tests.spark.kafka_world import (
    TIERS,
    KafkaWorld,
    claim,
    endings,
    everything,
    kafka_world,
    mine,
    rows,
)


@pytest.fixture(params=TIERS, ids=lambda tier: f"tier {int(tier)}")
def world(request: pytest.FixtureRequest) -> Iterator[KafkaWorld]:
    with kafka_world(request.param) as running:
        yield running


@pytest.fixture
def newest() -> Iterator[KafkaWorld]:
    """The newest broker, for tests where the tier makes no difference."""
    with kafka_world(Tier.KEEP_PREPARED) as running:
        yield running


def commit(world: KafkaWorld, transactional_id: str, state: Prepared) -> None:
    claims = [claim(transactional_id, Verdict.COMMIT, state)]
    assert endings(claims, world.side().end(claims, everything)) == [Ending.COMMITTED]


def test_a_prepared_attempt_stays_hidden_and_causes_no_warning(
    world: KafkaWorld, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        transaction = world.side().open("s-0-0", mine)
        transaction.write(rows("a", "b"))
        transaction.write(rows("c"))
        assert (transaction.records, transaction.bytes) == (3, 3)
        state = transaction.prepare()
        transaction.close()
        transaction.close()
    assert not state.state.is_empty
    assert state.manifest
    assert not [record for record in caplog.records if record.name.partition(".")[0] in ("dualwrite", "spark_sink")]
    assert world.committed() == []
    commit(world, "s-0-0", state)
    assert world.committed() == ["a", "b", "c"]


def test_an_id_is_used_repeatedly(world: KafkaWorld) -> None:
    side = world.side()
    states = []
    for value in ("a", "b", "c"):
        states.append(world.prepared(side, "s-0-0", value))
        commit(world, "s-0-0", states[-1])
    assert len({str(each.state) for each in states}) == 3
    assert world.committed() == ["a", "b", "c"]


def test_a_transaction_left_open_by_a_dead_attempt_is_aborted_by_the_next_holder(world: KafkaWorld) -> None:
    world.sent(world.side(), "s-0-0", "dead").close()
    assert world.state("s-0-0") == "Ongoing"
    commit(world, "s-0-0", world.prepared(world.side(), "s-0-0", "living"))
    assert world.committed() == ["living"]


def test_an_abort_leaves_nothing_open(world: KafkaWorld) -> None:
    side = world.side()
    at_work, prepared, idle = world.sent(side, "s-0-0", "a"), side.open("s-1-0", mine), side.open("s-2-0", mine)
    prepared.write(rows("b"))
    prepared.prepare()
    for transaction in (at_work, prepared, idle):
        transaction.abort()
        transaction.abort()
        transaction.close()
    assert world.open_ids() == []
    assert world.committed() == []


# ---- zombies ----------------------------------------------------------------------------------------------------


def test_an_attempt_that_was_given_up_leaves_the_next_holders_transaction_alone(world: KafkaWorld) -> None:
    """The attempt stalled between lease and initialisation; meanwhile another attempt leased the id and prepared."""
    state = world.prepared(world.side(), "s-0-0", "next holder")
    with pytest.raises(AttemptCondemnedError, match="was not touched"):
        world.side().open("s-0-0", lambda: False)
    assert world.state("s-0-0") == "Ongoing"
    commit(world, "s-0-0", state)
    assert world.committed() == ["next holder"]


@pytest.mark.parametrize("left_open", [False, True], ids=["clean", "left open"])
def test_an_attempt_that_stalls_after_its_check(world: KafkaWorld, left_open: bool) -> None:
    """While it stalls, it is condemned and finished, and the next owner of its id prepares."""
    if left_open:
        world.sent(world.side(), "s-0-0", "older").close()
    states: list[Prepared] = []

    def stale() -> bool:
        claims = [claim("s-0-0", Verdict.ABORT)]
        assert endings(claims, world.side().end(claims, everything)) == [Ending.ABORTED]
        states.append(world.prepared(world.side(), "s-0-0", "next holder"))
        return True

    with pytest.raises(AttemptCondemnedError, match="taken over"):
        zombie = world.side().open("s-0-0", stale)
        zombie.write(rows("zombie"))
        zombie.prepare()
    commit(world, "s-0-0", states[0])
    assert world.committed() == ["next holder"]


def test_an_attempt_is_given_up_while_it_writes(world: KafkaWorld) -> None:
    writer = world.sent(world.side(), "s-0-0", "a")
    claims = [claim("s-0-0", Verdict.ABORT)]
    assert endings(claims, world.side().end(claims, everything)) == [Ending.ABORTED]
    state = world.prepared(world.side(), "s-0-0", "next holder")
    with pytest.raises(AttemptCondemnedError, match="taken over"):
        writer.write(rows("b"))
        writer.prepare()
    writer.abort()
    writer.close()
    commit(world, "s-0-0", state)
    assert world.committed() == ["next holder"]


# ---- requirements on the broker ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tier", "mode", "refusal"),
    [
        (Tier.KEEP_PREPARED, "kip939", None),
        (Tier.KEEP_PREPARED, "auto", None),
        (Tier.STORED_PAIR, "auto", None),
        (Tier.STORED_PAIR, "kip939", r"txn\.mode=kip939.*KeepPreparedTxn.*refuses.*txn\.mode=auto"),
        (Tier.BOUNDED, "kip939", r"txn\.mode=kip939: .*tier 3.*txn\.timeoutMs=900000.*set txn\.mode=resume"),
        (Tier.BOUNDED, "auto", None),
        (Tier.BOUNDED_V1, "auto", None),
    ],
)
def test_modes(tier: Tier, mode: str, refusal: str | None) -> None:
    with kafka_world(tier) as world:
        side = world.side(txn__mode=mode)
        if refusal is None:
            commit(world, "s-0-0", world.prepared(side, "s-0-0", "a"))
            return
        with pytest.raises(SinkOptionError, match=refusal):
            side.open("s-0-0", mine)
        assert world.open_ids() == []


def test_a_bound_that_the_broker_does_not_allow() -> None:
    sentence = (
        r"txn\.timeoutMs=900001 is more than .* transaction\.max\.timeout\.ms; nothing was written: set txn\.time"
    )
    with kafka_world(Tier.BOUNDED) as world:
        with pytest.raises(SinkOptionError, match=sentence):
            world.side(txn__timeoutMs=900_001).open("s-0-0", mine)
        assert world.open_ids() == []


def test_an_unreachable_broker_is_waited_for_as_long_as_configured() -> None:
    with kafka_world(Tier.KEEP_PREPARED) as world:
        side = world.side(kafka__max__block__ms=100)
        world.emulator.crash_node(0)
        with pytest.raises(KafkaTimeoutError, match=r"max\.block\.ms=100"):
            side.open("s-0-0", mine)
        world.emulator.start_node(0)


def test_lost_answers_change_nothing(world: KafkaWorld) -> None:
    apis = ("InitProducerId", "Produce")
    lost = [world.faults.add(Fault(api=api, action=DropReply(), client_id="sink")) for api in apis]
    state = world.prepared(world.side(kafka__request__timeout__ms=500), "s-0-0", "a")
    assert [each.hits for each in lost] == [1, 1]
    commit(world, "s-0-0", state)
    assert world.committed() == ["a"]


# ---- rows and processes -----------------------------------------------------------------------------------------


def test_rows_that_cannot_be_sent_end_the_attempt_with_a_sentence(newest: KafkaWorld) -> None:
    transaction = newest.side().open("s-0-0", mine)
    with pytest.raises(InvalidRecordError, match="partitions 0 to 1"):
        transaction.write(pa.record_batch({"value": ["a"], "partition": pa.array([7], pa.int32())}))
    transaction.abort()
    transaction.close()
    assert newest.open_ids() == []


def test_a_row_that_is_larger_than_a_request_names_the_option(newest: KafkaWorld) -> None:
    transaction = newest.side(kafka__max__request__size=1_000).open("s-0-0", mine)
    sentence = (
        r"row 1 takes up to \d+ bytes, more than kafka\.max\.request\.size=1000; .*"
        r"No part of this attempt becomes visible: make the row smaller, or set kafka\.max\.request\.size higher"
    )
    with pytest.raises(InvalidRecordError, match=sentence):
        transaction.write(rows("small", "x" * 1_000))
    transaction.abort()
    transaction.close()
    assert newest.open_ids() == []
    assert newest.committed() == []


def test_a_row_that_is_larger_than_the_topic_allows_names_the_setting(newest: KafkaWorld) -> None:
    newest.emulator.set_config({"max.message.bytes": "1000"}, topic="orders")
    transaction = newest.side().open("s-0-0", mine)
    sentence = (
        r"exceeds 1000;.*A row is larger than max\.message\.bytes of the topic.*"
        r"No part of this attempt becomes visible: raise it, or make the row smaller"
    )
    with pytest.raises(AbortableError, match=sentence):
        transaction.write(rows("x" * 1200))
        transaction.prepare()
    transaction.abort()
    transaction.close()
    assert newest.open_ids() == []
    side = newest.side()
    commit(newest, "s-0-0", newest.prepared(side, "s-0-0", *["x" * 300] * 20))
    assert len(newest.committed()) == 20, "smaller rows are split into batches that fit"


def test_connections_are_kept_from_one_task_to_the_next(newest: KafkaWorld) -> None:
    side = newest.side()
    for number in range(5):
        newest.prepared(side, f"s-{number}-0", "a")
    assert 1 <= newest.emulator.disconnect_clients(client_id="sink") <= 2
    newest.prepared(side, "s-9-0", "a")
    side.close()
    side.close()


def test_a_forked_child_makes_connections_of_its_own(newest: KafkaWorld) -> None:
    side = newest.side()
    first = newest.prepared(side, "s-0-0", "parent")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            state = newest.prepared(side, "s-1-0", "child")
            os.write(writer, str(state.state).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        second = Prepared(PreparedTxnState(pipe.read()))
    os.waitpid(child, 0)
    claims = [claim("s-0-0", Verdict.COMMIT, first), claim("s-1-0", Verdict.COMMIT, second)]
    assert endings(claims, side.end(claims, everything)) == [Ending.COMMITTED] * 2
    assert newest.committed() == ["child", "parent"]


def test_an_attempt_that_was_given_up_before_it_fenced_others_begins_nothing(world: KafkaWorld) -> None:
    """No process would end its transaction: the driver has finished with the id (seed 19 of the simulation)."""
    given_up = [claim("s-0-0", Verdict.ABORT)]
    assert endings(given_up, world.side().end(given_up, everything)) == [Ending.ABORTED]
    with pytest.raises(AttemptCondemnedError, match="it has sent nothing"):
        world.side().open("s-0-0", lambda: False)
    assert world.state("s-0-0") != "Ongoing"


def test_the_row_is_read_once_if_nothing_is_open(world: KafkaWorld) -> None:
    """Each read costs the database a round trip, and comes when all other holders are fenced."""
    looks: list[str | None] = []

    def look() -> bool:
        looks.append(world.state("s-0-0"))
        return True

    world.side().open("s-0-0", look).close()
    assert looks == ["Empty"]
    world.sent(world.side(), "s-1-0", "older").close()
    looks.clear()
    world.side().open("s-1-0", look).close()
    assert len(looks) == 2
