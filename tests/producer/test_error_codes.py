"""An error in every response to a request of a transaction: the caller gets the right error, and it is true."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import DropReply, Error, Hold, Profile
from dualwrite.errors import (
    AbortableError,
    AuthorizationError,
    CommitOutcomeUnknown,
    FatalError,
    FencedCommitOutcomeUnknown,
    FencedError,
    InvalidRecordError,
    KafkaError,
    OutcomeUnknown,
    UnsupportedByBrokerError,
)
from dualwrite.producer import Producer, ProducerState, TopicPartition
from tests.producer.world import GROUP, PROFILES, World, on_profile, world_of

OF_V1 = ("AddPartitionsToTxn", "AddOffsetsToTxn")

# One code of each class for each request; tests/unit/test_error_table.py has every code.

# Hidden from the caller: the producer repeats the request, or first asks for the coordinator or leader.
RETRIED: dict[str, list[int]] = {
    "Metadata": [5],
    "FindCoordinator": [15],
    "InitProducerId": [16, 51],
    "AddPartitionsToTxn": [3, 16, 51],
    "AddOffsetsToTxn": [16, 51],
    "Produce": [6, 19],
    "TxnOffsetCommit": [14, 16],
    "EndTxn": [16, 51],
}
# The transaction is lost, the producer is not. Of FindCoordinator the one for the group.
ABORTED: dict[str, list[int]] = {
    "FindCoordinator": [30],
    "AddPartitionsToTxn": [29],
    "AddOffsetsToTxn": [30],
    "Produce": [-1, 10, 29, 45, 47],
    "TxnOffsetCommit": [22, 30],
    "EndTxn": [120],
}
# The producer is finished.
FATAL: dict[str, dict[int, type[FatalError]]] = {
    "FindCoordinator": {35: UnsupportedByBrokerError, 42: FatalError},
    "InitProducerId": {49: FatalError, 90: FencedError},
    "AddPartitionsToTxn": {47: FencedError, 53: FatalError},
    "AddOffsetsToTxn": {48: FatalError, 90: FencedError},
    "Produce": {31: FatalError, 35: UnsupportedByBrokerError, 90: FencedError},
    "TxnOffsetCommit": {-1: FatalError, 35: UnsupportedByBrokerError, 47: FencedError},
    "EndTxn": {
        -1: CommitOutcomeUnknown,  # the broker itself does not know the outcome
        35: UnsupportedByBrokerError,
        48: FatalError,
        90: FencedError,
    },
}


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_of(request.param) as made:
        yield made


def cases(table: dict[str, list[int]]) -> pytest.MarkDecorator:
    """Return every code on the newest profile that has the request; on the oldest as well it is for `make proof`."""
    rows = [
        pytest.param(profile, api, code, id=f"{profile.value}-{api}-{code}", marks=marks)
        for api, codes in table.items()
        for profile, marks in (
            [(Profile.KAFKA_3_9, [])]
            if api in OF_V1
            else [(Profile.KIP_939, []), (Profile.KAFKA_3_9, [pytest.mark.proof])]
        )
        for code in codes
    ]
    return pytest.mark.parametrize(("world", "api", "code"), rows, indirect=["world"])


def transaction(producer: Producer, value: str, offset: int) -> None:
    """Every kind of request, one after the other."""
    producer.begin_transaction()
    producer.send("orders", value, partition=0).result(60)
    producer.send_offsets_to_transaction({TopicPartition("inputs", 0): offset}, GROUP)
    producer.commit_transaction()


@cases(RETRIED)
def test_a_transient_error_is_retried_silently(world: World, api: str, code: int) -> None:
    fault = world.fault(api, Error(code), count=2)
    producer = world.ready()
    transaction(producer, "first", 1)
    transaction(producer, "second", 2)
    assert fault.hits == 2
    assert world.committed() == ["first", "second"]
    assert world.offset() == 2
    assert world.nothing_is_open()


@cases(ABORTED)
def test_an_error_after_which_the_transaction_is_aborted(world: World, api: str, code: int) -> None:
    producer = world.ready()
    world.run(producer, "before")
    fault = world.fault(api, Error(code))
    with pytest.raises(AbortableError, match=r"transactional id 'tid' .*call abort_transaction\(\)") as raised:
        transaction(producer, "lost", 1)
    assert fault.hits == 1
    assert raised.value.error_code == code
    assert not isinstance(raised.value, FatalError)
    assert producer.state is ProducerState.ABORTABLE_ERROR
    for call in (producer.commit_transaction, producer.begin_transaction, lambda: producer.send("orders", "more")):
        with pytest.raises(AbortableError, match="abort_transaction") as again:
            call()
        assert again.value.error_code == code
    producer.abort_transaction()
    transaction(producer, "after", 7)
    assert world.committed() == ["before", "after"]
    assert world.offset() == 7
    assert world.nothing_is_open()


@cases({api: list(codes) for api, codes in FATAL.items()})
def test_an_error_that_ends_the_producer(world: World, api: str, code: int) -> None:
    expected = FATAL[api][code]
    world.run(world.ready(), "before")
    producer = world.producer()
    fault = world.fault(api, Error(code))
    with pytest.raises(KafkaError, match=r"'tid'.*close this producer") as raised:
        producer.init_transactions()
        transaction(producer, "lost", 1)
    assert fault.hits == 1
    assert type(raised.value) is expected
    assert raised.value.error_code == code
    assert producer.state is ProducerState.FATAL_ERROR
    for call in (producer.abort_transaction, producer.begin_transaction, producer.init_transactions):
        with pytest.raises(expected, match="close this producer"):
            call()
    producer.close()
    transaction(world.ready(), "after", 7)
    assert world.committed() == ["before", "after"]
    assert world.offset() == 7
    assert world.nothing_is_open()


@cases({"InitProducerId": [53], "FindCoordinator": [53]})
def test_a_right_that_is_granted_in_between(world: World, api: str, code: int) -> None:
    producer = world.producer()
    world.fault(api, Error(code))
    with pytest.raises(AuthorizationError, match=r"'tid'.*grant it, then repeat the call") as raised:
        producer.init_transactions()
    assert raised.value.error_code == code
    assert producer.state is ProducerState.UNINITIALIZED
    producer.init_transactions()
    transaction(producer, "v", 1)
    assert world.committed() == ["v"]


@cases({"Metadata": [17, 29]})
def test_a_topic_that_is_refused_costs_the_record_and_not_the_transaction(world: World, api: str, code: int) -> None:
    producer = world.ready()
    producer.begin_transaction()
    world.fault(api, Error(code))
    with pytest.raises(InvalidRecordError if code == 17 else AuthorizationError, match="the record was not sent"):
        producer.send("orders", "v")
    assert producer.state is ProducerState.IN_TRANSACTION
    producer.send("orders", "v")
    world.commit(producer)
    assert world.committed() == ["v"]


@cases({"EndTxn": [48, 53, 90, 120]})
def test_a_commit_that_took_effect_never_raises_an_error_that_denies_it(world: World, api: str, code: int) -> None:
    """The commit was applied, its response lost, and the next response is a refusal, as after a takeover in between."""
    producer = world.ready()
    world.fault(api, DropReply())
    world.fault(api, Error(code))
    with pytest.raises(OutcomeUnknown, match="outcome is unknown") as raised:
        transaction(producer, "v", 1)
    assert isinstance(raised.value, FencedCommitOutcomeUnknown if code == 90 else CommitOutcomeUnknown)
    assert raised.value.transactional_id == "tid"
    assert world.committed() == ["v"]
    assert world.offset() == 1


@pytest.mark.parametrize("world", list(map(on_profile, PROFILES)), indirect=True)
def test_a_takeover_between_a_commit_and_its_description(world: World) -> None:
    producer = world.ready()
    world.fault("EndTxn", DropReply())
    held = world.fault("EndTxn", Hold())
    told: list[BaseException] = []

    def commit() -> None:
        try:
            transaction(producer, "v", 1)
        except OutcomeUnknown as error:
            told.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    held.wait_held(1)
    successor = world.ready(client_id="another process")
    held.release()
    thread.join(60)
    assert [type(error) for error in told] == [FencedCommitOutcomeUnknown]
    world.run(successor, "after")
    assert world.committed() == ["v", "after"]
    assert world.nothing_is_open()
