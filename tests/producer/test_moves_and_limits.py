"""Moving and dying coordinators and leaders, restarted brokers, and the limits of a producer, in each profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dualwrite.broker_emulator import (
    BrokerConfig,
    CrashAfter,
    CrashBefore,
    DropRequest,
    Emulator,
    Error,
    Fault,
    Profile,
)
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.errors import (
    AbortableError,
    DeliveryError,
    DualWriteError,
    FatalError,
    FencedError,
    IllegalStateError,
    InvalidRecordError,
    KafkaTimeoutError,
    RetriableError,
)
from dualwrite.producer import Producer, ProducerState, TopicPartition
from tests.producer.impatience import impatient
from tests.producer.world import GROUP, PROFILES, World, on_profile, world_of
from tests.support.conditions import until

EACH = pytest.mark.parametrize("profile", list(map(on_profile, PROFILES)))


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> Profile:
    return Profile.KIP_939


@pytest.fixture
def world(profile: Profile) -> Iterator[World]:
    with world_of(profile) as made:
        yield made


@pytest.fixture
def cluster(profile: Profile) -> Iterator[World]:
    with world_of(profile, nodes=3) as made:
        yield made


def half_a_transaction(world: World, producer: Producer, value: str = "v") -> None:
    producer.begin_transaction()
    producer.send("orders", f"{value} 1", partition=0).result(60)
    producer.send_offsets_to_transaction({TopicPartition("inputs", 0): 5}, GROUP)


def patiently(producer: Producer, work: Callable[[], None]) -> None:
    """Repeat a transaction that fails with 48 (KAFKA-14884), as an application would.

    A marker fails the leader's verification of the next transaction's first batch if it is written meanwhile.
    """
    try:
        work()
    except AbortableError as error:
        if error.error_code != 48:
            raise
        producer.abort_transaction()
        work()


# ---- moves -------------------------------------------------------------------------------------------------------


def move_coordinator(world: World) -> None:
    now = world.emulator.coordinator(transactional_id="tid")
    world.emulator.move_coordinator((now + 1) % 3, transactional_id="tid")


def move_leader(world: World) -> None:
    for node in (0, 1, 2):
        world.emulator.move_leader("orders", 0, node)


def move_group(world: World) -> None:
    now = world.emulator.coordinator(group=GROUP)
    world.emulator.move_coordinator((now + 1) % 3, group=GROUP)


def crash_coordinator(world: World) -> None:
    world.emulator.crash_node(world.emulator.coordinator(transactional_id="tid"))


def restart_coordinator(world: World) -> None:
    node = world.emulator.coordinator(transactional_id="tid")
    world.emulator.crash_node(node)
    world.emulator.start_node(node)


def stop_group_coordinator(world: World) -> None:
    world.emulator.stop_node(world.emulator.coordinator(group=GROUP))


def restart_all(world: World) -> None:
    for node in (0, 1, 2):
        world.emulator.crash_node(node)
        world.emulator.start_node(node)


MOVES = [
    move_coordinator,
    move_leader,
    move_group,
    crash_coordinator,
    restart_coordinator,
    stop_group_coordinator,
    restart_all,
]


@EACH
@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
@pytest.mark.parametrize("when", ["between", "inside"])
def test_every_move_between_and_inside_transactions(cluster: World, move: Callable[[World], None], when: str) -> None:
    producer = cluster.ready()
    cluster.run(producer, "before")
    if when == "between":
        move(cluster)
    patiently(producer, lambda: half_a_transaction(cluster, producer))
    if when == "inside":
        move(cluster)
    producer.send("orders", "v 2", partition=0)
    cluster.commit(producer)
    patiently(producer, lambda: cluster.run(producer, "after"))
    assert cluster.committed() == ["before", "v 1", "v 2", "after"]
    assert cluster.offset() == 5
    assert cluster.nothing_is_open()


@EACH
@pytest.mark.parametrize("api", ["InitProducerId", "Produce", "TxnOffsetCommit", "EndTxn"])
@pytest.mark.parametrize("action", [CrashBefore(), CrashAfter()], ids=["before", "after"])
def test_a_node_that_dies_of_a_request(cluster: World, api: str, action: Any) -> None:
    fault = cluster.fault(api, action)
    producer = cluster.ready()
    half_a_transaction(cluster, producer)
    cluster.commit(producer)
    patiently(producer, lambda: cluster.run(producer, "after"))
    fault.wait(1)
    assert cluster.committed() == ["v 1", "after"]
    assert cluster.offset() == 5
    assert cluster.nothing_is_open()


@EACH
@pytest.mark.parametrize(
    "point", [PausePoint.BEFORE_PREPARE_APPEND, PausePoint.AFTER_PREPARE_APPEND, PausePoint.AFTER_MARKER]
)
def test_a_coordinator_dies_during_the_commit(cluster: World, point: PausePoint) -> None:
    producer = cluster.ready()
    half_a_transaction(cluster, producer)
    fault = cluster.faults.add(Fault(point=point, transactional_id="tid", action=CrashBefore()))
    cluster.commit(producer)
    fault.wait(1)
    patiently(producer, lambda: cluster.run(producer, "after"))
    assert cluster.committed() == ["v 1", "after"]
    assert cluster.offset() == 5
    assert cluster.nothing_is_open()


# ---- other ends of a transaction ---------------------------------------------------------------------------------


@contextmanager
def timed_out(profile: Profile) -> Iterator[tuple[World, Producer]]:
    """Yield a producer whose transaction the broker has aborted for its timeout."""
    with Emulator(topics={"orders": 2}, clock=VirtualClock(), config=BrokerConfig(profile=profile)) as emulator:
        world = World(emulator)
        producer = world.ready(transaction_two_phase_commit_enable=False, transaction_timeout_ms=1_000)
        producer.begin_transaction()
        producer.send("orders", "late", partition=0).result(60)
        emulator.advance_clock(60_000)
        until(lambda: world.states()["tid"] == "CompleteAbort")
        yield world, producer
        world.close()


@EACH
def test_a_transaction_aborted_by_the_broker_for_its_timeout(profile: Profile) -> None:
    """The commit fails, the data is not there, and the sentence names the timeout or the other producer."""
    with timed_out(profile) as (world, producer):
        with pytest.raises(FatalError, match=r"timeout.*close this producer"):
            producer.commit_transaction()
        world.run(world.ready(), "after")
        assert world.committed() == ["after"]
        assert world.nothing_is_open()


@EACH
def test_a_record_after_the_brokers_timeout_fails_with_the_reason(profile: Profile) -> None:
    with timed_out(profile) as (world, producer):
        with pytest.raises(AbortableError) as raised:
            producer.send("orders", "later", partition=0).result(60)
        assert raised.value.error_code == 47
        if profile is Profile.KAFKA_3_9:  # its epoch was raised by the broker, and no abort of ours is known there
            with pytest.raises(FencedError):
                producer.abort_transaction()
            producer = world.ready(transaction_two_phase_commit_enable=False)
        else:
            producer.abort_transaction()  # an abort of an aborted transaction is a replay (KIP-890)
        producer.begin_transaction()
        producer.send("orders", "after", partition=0)
        producer.commit_transaction()
        assert world.committed() == ["after"]


@EACH
def test_a_zombie_is_fenced_wherever_it_stands(world: World) -> None:
    for step in range(3):
        zombie = world.ready()
        zombie.begin_transaction()
        if step > 0:
            zombie.send("orders", f"zombie {step}", partition=0).result(60)
        if step > 1:
            zombie.send_offsets_to_transaction({TopicPartition("inputs", 0): 9}, GROUP)
        successor = world.ready()
        zombie.send("orders", "zombie", partition=0)
        with pytest.raises(DualWriteError) as raised:
            zombie.commit_transaction()
        assert not isinstance(raised.value, RetriableError)
        if isinstance(raised.value, AbortableError):
            with pytest.raises(FencedError):
                zombie.abort_transaction()
        world.run(successor, f"successor {step}")
    assert world.committed() == ["successor 0", "successor 1", "successor 2"]
    assert world.offset() == -1
    assert world.nothing_is_open()


@EACH
def test_markers_that_take_long_are_waited_for(world: World) -> None:
    """CONCURRENT_TRANSACTIONS (KAFKA-5477): the next transaction asks again after 20 ms at first."""
    producer = world.ready(retry_backoff_ms=60_000, retry_backoff_max_ms=60_000)
    held = world.emulator.hold(PausePoint.BEFORE_MARKER)
    world.run(producer, "a")
    held.wait_reached()
    producer.begin_transaction()
    refused = world.faults.add(Fault(api="Produce" if not _is_v1(world) else "AddPartitionsToTxn"))
    future = producer.send("orders", "b", partition=0)
    refused.wait(1)
    held.release()
    future.result(30)  # less than retry.backoff.ms
    world.commit(producer)
    assert world.committed() == ["a", "b"]


def _is_v1(world: World) -> bool:
    return world.profile is Profile.KAFKA_3_9


# ---- limits of the producer --------------------------------------------------------------------------------------


def test_unacknowledged_records_expire_and_the_transaction_is_aborted(world: World) -> None:
    producer = world.ready(delivery_timeout_ms=1_000, request_timeout_ms=500)
    world.run(producer, "before")
    fault = world.fault("Produce", DropRequest(), count=None)
    producer.begin_transaction()
    future = producer.send("orders", "lost", partition=0)
    with pytest.raises(DeliveryError, match=r"delivery\.timeout\.ms=1000"):
        producer.commit_transaction()
    with pytest.raises(DeliveryError):
        future.result(0)
    assert producer.state is ProducerState.ABORTABLE_ERROR
    fault.remove()
    producer.abort_transaction()
    world.run(producer, "after")
    assert world.committed() == ["before", "after"]
    assert world.nothing_is_open()


def test_a_full_buffer_blocks_for_max_block_ms_and_costs_only_the_record(world: World) -> None:
    producer = world.ready(buffer_memory=2_000, batch_size=1_000)
    fault = world.fault("Produce", Error(19), count=None)
    producer.begin_transaction()
    values = [f"{number} {'x' * 600}" for number in range(8)]
    sent: list[str] = []
    full = r"buffer\.memory.*max\.block\.ms=100.*the record was not sent"
    with impatient(producer, 100), pytest.raises(KafkaTimeoutError, match=full):
        for value in values:
            producer.send("orders", value, partition=0)
            sent.append(value)
    assert 0 < len(sent) < len(values)
    assert producer.state is ProducerState.IN_TRANSACTION
    fault.remove()
    producer.flush()
    producer.send("orders", "more", partition=0)
    world.commit(producer)
    assert world.committed() == [*sent, "more"]


def test_records_that_cannot_be_sent_cost_nothing_but_themselves(world: World) -> None:
    producer = world.ready(max_request_size=1_000)
    producer.begin_transaction()
    with pytest.raises(InvalidRecordError, match=r"max\.request\.size=1000"):
        producer.send("orders", "x" * 2_000)
    with pytest.raises(InvalidRecordError, match="the record was not sent"):
        producer.send("no/such name", "v")
    with pytest.raises(InvalidRecordError, match="partitions 0 to 1"):
        producer.send("orders", "v", partition=2)
    assert producer.state is ProducerState.IN_TRANSACTION
    producer.send("orders", "v", partition=0)
    world.commit(producer)
    assert world.committed() == ["v"]


def test_a_missing_topic(profile: Profile) -> None:
    with Emulator(config=BrokerConfig(profile=profile, auto_create_topics_enable=False)) as emulator:
        world = World(emulator)
        producer = world.ready(retry_backoff_ms=1_000, retry_backoff_max_ms=60_000)  # longer than the wait
        producer.begin_transaction()
        unknown = r"UNKNOWN_TOPIC_OR_PARTITION.*the record was not sent"
        with impatient(producer, 500), pytest.raises(KafkaTimeoutError, match=unknown):
            producer.send("nowhere", "v")
        assert producer.state is ProducerState.IN_TRANSACTION
        emulator.create_topic("nowhere")
        producer.send("nowhere", "v").result(60)
        world.commit(producer)
        assert world.committed("nowhere") == ["v"]
        world.close()


# ---- time that is up, and the same call again --------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("call", ["init", "commit", "abort", "offsets"])
def test_a_call_whose_time_is_up_is_joined_by_the_same_call(world: World, call: str) -> None:
    producer = world.producer(request_timeout_ms=30_000)
    calls: dict[str, tuple[str, Callable[[], None]]] = {
        "init": ("InitProducerId", producer.init_transactions),
        "commit": ("EndTxn", producer.commit_transaction),
        "abort": ("EndTxn", producer.abort_transaction),
        "offsets": (
            "TxnOffsetCommit",
            lambda: producer.send_offsets_to_transaction({TopicPartition("inputs", 0): 5}, GROUP),
        ),
    }
    api, make = calls[call]
    if call != "init":
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", "v", partition=0).result(60)
    fault = world.fault(api, Error(51), count=None)
    for _ in range(2):
        with impatient(producer, 80), pytest.raises(KafkaTimeoutError, match="repeat the same call") as raised:
            make()
        assert isinstance(raised.value, RetriableError)
    with pytest.raises(IllegalStateError, match=r"is not known yet.*'tid'"):
        producer.begin_transaction()
    fault.remove()
    make()
    if call == "init":
        world.run(producer, "v")
    elif call == "offsets":
        producer.commit_transaction()
        assert world.offset() == 5
    assert world.committed() == ([] if call == "abort" else ["v"])
    assert world.nothing_is_open()


@EACH
@pytest.mark.parametrize("stand", ["nothing sent", "sent", "in flight", "failed"])
def test_abort_works_wherever_kafka_allows_it(world: World, stand: str) -> None:
    producer = world.ready()
    world.run(producer, "before")
    producer.begin_transaction()
    if stand == "sent":
        producer.send("orders", "gone", partition=0).result(60)
    elif stand == "in flight":
        for number in range(50):
            producer.send("orders", f"gone {number}", partition=number % 2)
    elif stand == "failed":
        world.fault("Produce", Error(87))
        with pytest.raises(DeliveryError):
            producer.send("orders", "gone", partition=0).result(60)
    producer.abort_transaction()
    assert producer.state is ProducerState.READY
    world.run(producer, "after")
    assert world.committed() == ["before", "after"]
    assert world.nothing_is_open()
