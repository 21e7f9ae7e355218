"""InitProducerId: the decision table, and how it changes the id (KIP-98, KIP-360, KIP-890, KIP-939)."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import TWO_PHASE_COMMIT_TIMEOUT_MS, BrokerConfig
from dualwrite.broker_emulator.profiles import KeepPrepared, Profile
from dualwrite.broker_emulator.transactions.coordinator import InitProducerIdRequest, check_init_request
from dualwrite.broker_emulator.transactions.metadata import CoordinatorRules, ProducerPair
from dualwrite.broker_emulator.transactions.states import COMPLETE_STATES, PREPARE_STATES, TransactionState

from .simulated_id import KIP, MAX, SimulatedId, metadata, with_pending

IDLE = sorted({TransactionState.EMPTY} | COMPLETE_STATES)
TV0 = CoordinatorRules(transaction_version=0)


@pytest.mark.parametrize(
    ("transactional_id", "request_", "rules", "expected"),
    [
        ("x", InitProducerIdRequest(1000, ProducerPair(1, -1)), KIP, 42),
        ("x", InitProducerIdRequest(1000, ProducerPair(-1, 1)), KIP, 42),
        (None, InitProducerIdRequest(1000, ProducerPair(1, -1)), KIP, 42),
        (None, InitProducerIdRequest(0, ProducerPair(1, 1)), KIP, 0),
        ("", InitProducerIdRequest(1000), KIP, 42),
        ("", InitProducerIdRequest(0, enable_2pc=True), CoordinatorRules(two_phase_commit_enabled=False), 42),
        ("x", InitProducerIdRequest(0, enable_2pc=True), CoordinatorRules(two_phase_commit_enabled=False), 53),
        ("x", InitProducerIdRequest(0, enable_2pc=True), KIP, 0),
        ("x", InitProducerIdRequest(0, keep_prepared=True), CoordinatorRules(keep_prepared=KeepPrepared.REFUSED), 35),
        ("x", InitProducerIdRequest(0, ProducerPair(1, 1), keep_prepared=True), KIP, 42),
        ("x", InitProducerIdRequest(0, keep_prepared=True), KIP, 50),
        ("x", InitProducerIdRequest(1000, keep_prepared=True), KIP, 0),
        ("x", InitProducerIdRequest(0), KIP, 50),
        ("x", InitProducerIdRequest(-1), KIP, 50),
        ("x", InitProducerIdRequest(900_001), KIP, 50),
        ("x", InitProducerIdRequest(900_000), KIP, 0),
        ("x", InitProducerIdRequest(1), KIP, 0),
    ],
)
def test_checks_that_precede_the_coordinator(
    transactional_id: str | None, request_: InitProducerIdRequest, rules: CoordinatorRules, expected: int
) -> None:
    assert check_init_request(transactional_id, request_, rules) == expected


@pytest.mark.parametrize(
    ("config", "keep_supported"),
    [
        (BrokerConfig(), True),
        (BrokerConfig(transaction_version=1), False),  # no epoch bump, no dual identity
        (BrokerConfig(profile=Profile.KAFKA_4_3), False),
        (BrokerConfig(profile=Profile.KAFKA_3_9), False),
    ],
)
def test_which_clusters_can_keep_a_prepared_transaction(config: BrokerConfig, keep_supported: bool) -> None:
    expected = KeepPrepared.SECOND_PAIR if keep_supported else KeepPrepared.REFUSED
    assert CoordinatorRules.from_config(config).keep_prepared is expected


@pytest.mark.parametrize("expected", [(), (7, 3)])
def test_a_new_id_gets_a_new_pid_at_epoch_0(expected: tuple[int, ...]) -> None:
    simulated = SimulatedId()
    assert simulated.init(*expected) == (0, 1000, 0, -1, -1)
    assert simulated.row() == ("Empty", 1000, 0, -1, -1, -1)
    assert (simulated.known.start_timestamp_ms, simulated.known.last_update_timestamp_ms) == (-1, 10_000)
    assert simulated.known.last_producer_epoch == -1
    assert simulated.known.client_transaction_version == 0


def test_a_new_id_whose_record_could_not_be_written_is_forgotten() -> None:
    simulated = SimulatedId()
    _, transition = simulated.decide_init()
    assert transition is not None
    simulated.begin(transition)
    assert simulated.init().error is ErrorCode.concurrent_transactions
    simulated.fail(transition)
    assert simulated.metadata is None


# (expected pair, last epoch) at (42, 5) -> (error, pid, epoch), (last epoch)
IDLE_CELLS: list[tuple[tuple[int, ...], int, tuple[int, int, int], int]] = [
    ((), 4, (0, 42, 6), -1),
    ((42, 5), 4, (0, 42, 6), 5),
    ((42, 4), 4, (0, 42, 5), 4),  # the response to the last bump was lost: no second bump
    ((42, 4), -1, (90, -1, -1), -1),
    ((42, 3), 4, (90, -1, -1), 4),
    ((42, 6), 4, (90, -1, -1), 4),
    ((41, 5), 4, (90, -1, -1), 4),
]


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize(("expected", "last", "response", "last_after"), IDLE_CELLS)
def test_with_nothing_open(
    state: TransactionState, expected: tuple[int, ...], last: int, response: tuple[int, int, int], last_after: int
) -> None:
    before = metadata(state, last_producer_epoch=last)
    simulated = SimulatedId(before)
    assert simulated.init(*expected, timeout_ms=1234)[:3] == response
    if response[0]:
        assert simulated.known == before
        return
    assert simulated.row() == ("Empty", *response[1:], -1, -1, -1)
    known = simulated.known
    assert known.last_producer_epoch == last_after
    assert (known.timeout_ms, known.start_timestamp_ms, known.last_update_timestamp_ms) == (1234, -1, 10_000)
    assert (known.topic_partitions, known.client_transaction_version) == (frozenset(), 2)


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize("epoch", [MAX - 1, MAX])
@pytest.mark.parametrize("is_claimed", [True, False])
def test_the_last_epoch_rotates_to_a_new_pid(state: TransactionState, epoch: int, is_claimed: bool) -> None:
    simulated = SimulatedId(metadata(state, 42, epoch))
    assert simulated.init(*((42, epoch) if is_claimed else ())) == (0, 1000, 0, -1, -1)
    assert simulated.row() == ("Empty", 1000, 0, 42, -1, -1)
    assert simulated.known.last_producer_epoch == (epoch if is_claimed else -1)


def test_a_lost_response_to_a_rotation_is_sent_again() -> None:
    simulated = SimulatedId(metadata(TransactionState.EMPTY, 42, MAX - 1))
    assert simulated.init(42, MAX - 1)[:3] == (0, 1000, 0)
    assert simulated.init(42, MAX - 1)[:3] == (0, 1000, 0)
    assert simulated.init(42, MAX - 2).error == 90


def test_the_memory_of_a_rotation_ends_with_the_next_step() -> None:
    simulated = SimulatedId(metadata(TransactionState.EMPTY, 42, MAX - 1))
    simulated.init(42, MAX - 1)
    simulated.add(1000, 0)
    assert simulated.init(42, MAX - 1).error == 90


@pytest.mark.parametrize(("rules", "response"), [(KIP, 0), (CoordinatorRules(exhausted_init_retry_fails=True), -1)])
def test_retry_of_an_earlier_bump_at_the_last_epoch(rules: CoordinatorRules, response: int) -> None:
    """KIP-360 wants the idempotent response; Kafka's code throws before it checks the epoch."""
    simulated = SimulatedId(metadata(TransactionState.EMPTY, 42, MAX - 1), rules)
    assert simulated.init(42, MAX - 2).error == response


@pytest.mark.parametrize("state", [s for s in TransactionState if s not in (6, 7)])
@pytest.mark.parametrize("pending", list(TransactionState))
@pytest.mark.parametrize("options", [{}, {"keep": True}])
@pytest.mark.parametrize("expected", [(), (42, 5), (1, 1)])
def test_a_pending_transition_comes_before_any_fencing(
    state: TransactionState, pending: TransactionState, options: dict[str, Any], expected: tuple[int, ...]
) -> None:
    before = with_pending(metadata(state), pending)
    simulated = SimulatedId(before)
    response = simulated.init(*expected, **options).error
    assert response == (42 if expected and options else 51)
    assert simulated.known == before


@pytest.mark.parametrize("state", sorted(PREPARE_STATES))
@pytest.mark.parametrize(
    ("expected", "options", "response"),
    [((), {}, 51), ((), {"keep": True}, 51), ((42, 5), {}, 51), ((42, 1), {}, 51), ((41, 5), {}, 90)],
)
def test_while_being_ended(
    state: TransactionState, expected: tuple[int, ...], options: dict[str, Any], response: int
) -> None:
    before = metadata(state)
    simulated = SimulatedId(before)
    assert simulated.init(*expected, **options) == (response, -1, -1, -1, -1)
    assert simulated.known == before


@pytest.mark.parametrize(
    ("rules", "expected_row", "last", "version"),
    [
        (TV0, ("PrepareAbort", 42, 6, -1, -1, -1), -1, 0),
        (CoordinatorRules(transaction_version=1), ("PrepareAbort", 42, 6, -1, -1, -1), -1, 0),
        (KIP, ("PrepareAbort", 42, 6, -1, -1, -1), 5, 2),
    ],
)
@pytest.mark.parametrize("expected", [(), (42, 5), (42, 1)])  # only the pid is looked at while a transaction is open
def test_an_open_transaction_is_aborted(
    rules: CoordinatorRules,
    expected_row: tuple[str, int, int, int, int, int],
    last: int,
    version: int,
    expected: tuple[int, ...],
) -> None:
    before = metadata(TransactionState.ONGOING, client_transaction_version=0)
    simulated = SimulatedId(before, rules)
    assert simulated.init(*expected) == (51, -1, -1, -1, -1)
    assert simulated.row() == expected_row
    known = simulated.known
    assert (known.last_producer_epoch, known.client_transaction_version) == (last, version)
    assert known.topic_partitions == before.topic_partitions
    assert (known.start_timestamp_ms, known.last_update_timestamp_ms) == (900, 10_000)
    assert known.timeout_ms == before.timeout_ms
    assert simulated.init(*expected).error is ErrorCode.concurrent_transactions
    simulated.write_markers()
    assert simulated.row()[:3] == ("CompleteAbort", 42, 6)
    assert simulated.init()[:3] == (0, 42, 7)


@pytest.mark.parametrize(("rules", "response"), [(KIP, (0, 42, 6)), (TV0, (90, -1, -1))])
def test_the_holder_that_had_its_own_transaction_aborted_retries(
    rules: CoordinatorRules, response: tuple[int, int, int]
) -> None:
    simulated = SimulatedId(metadata(TransactionState.ONGOING), rules)
    assert simulated.init(42, 5).error == 51
    simulated.write_markers()
    assert simulated.init(42, 5)[:3] == response


def test_a_zombie_with_the_right_pid_aborts_and_is_fenced_on_its_retry() -> None:
    simulated = SimulatedId(metadata(TransactionState.ONGOING))
    assert simulated.init(42, 1).error == 51
    simulated.write_markers()
    assert simulated.init(42, 1).error == 90


def test_a_stranger_cannot_abort() -> None:
    before = metadata(TransactionState.ONGOING)
    simulated = SimulatedId(before)
    assert simulated.init(41, 5).error == 90
    assert simulated.known == before


def test_two_phase_commit_has_no_timeout_and_going_back_has_one() -> None:
    simulated = SimulatedId()
    simulated.init(two_pc=True, timeout_ms=5)
    assert simulated.known.timeout_ms == TWO_PHASE_COMMIT_TIMEOUT_MS
    assert simulated.known.is_two_phase_commit
    simulated.init(timeout_ms=5)
    assert simulated.known.timeout_ms == 5


@pytest.mark.parametrize("state", IDLE)
def test_keep_with_nothing_open_is_a_normal_bump(state: TransactionState) -> None:
    simulated = SimulatedId(metadata(state))
    assert simulated.keep() == (0, 42, 6, -1, -1)
    assert simulated.row() == ("Empty", 42, 6, -1, -1, -1)


def test_keep_for_a_new_id_is_a_first_init() -> None:
    assert SimulatedId().keep() == (0, 1000, 0, -1, -1)
