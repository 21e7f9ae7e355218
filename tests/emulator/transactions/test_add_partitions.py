"""AddPartitionsToTxn as the coordinator sees it: adding, and verifying only."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.transactions.coordinator import verify_partitions
from dualwrite.broker_emulator.transactions.metadata import CoordinatorRules, ProducerPair
from dualwrite.broker_emulator.transactions.states import COMPLETE_STATES, PREPARE_STATES, TransactionState

from .simulated_id import KIP, T0, T1, SimulatedId, metadata, with_pending

STORED_STATES = sorted(set(TransactionState) - {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})
IDLE = sorted({TransactionState.EMPTY} | COMPLETE_STATES)
BEFORE_KAFKA_18660 = CoordinatorRules(pending_checked_before_identity=False)


def test_an_unknown_id() -> None:
    assert SimulatedId().add(42, 5) == 49


@pytest.mark.parametrize("state", STORED_STATES)
@pytest.mark.parametrize(("pair", "response"), [((41, 5), 49), ((42, 4), 90), ((42, 6), 90)])
def test_another_pair(state: TransactionState, pair: tuple[int, int], response: int) -> None:
    before = metadata(state)
    simulated = SimulatedId(before)
    assert simulated.add(*pair) == response
    assert simulated.known == before


@pytest.mark.parametrize("state", STORED_STATES)
@pytest.mark.parametrize("pending", list(TransactionState))
@pytest.mark.parametrize(
    ("pair", "rules", "response"),
    [
        ((42, 5), KIP, 51),
        ((42, 4), KIP, 51),
        ((41, 5), KIP, 51),
        ((42, 5), BEFORE_KAFKA_18660, 51),
        ((42, 4), BEFORE_KAFKA_18660, 90),
        ((41, 5), BEFORE_KAFKA_18660, 49),
    ],
)
def test_while_a_transition_is_pending(
    state: TransactionState, pending: TransactionState, pair: tuple[int, int], rules: CoordinatorRules, response: int
) -> None:
    assert SimulatedId(with_pending(metadata(state), pending), rules).add(*pair) == response


@pytest.mark.parametrize("state", sorted(PREPARE_STATES))
def test_while_being_ended(state: TransactionState) -> None:
    assert SimulatedId(metadata(state)).add(42, 5) == 51


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize("version", [0, 2])
def test_the_first_partition_opens_the_transaction(state: TransactionState, version: int) -> None:
    simulated = SimulatedId(metadata(state))
    assert simulated.add(42, 5, T0, T1, version=version) == 0
    assert simulated.row() == ("Ongoing", 42, 5, -1, -1, -1)
    known = simulated.known
    assert known.topic_partitions == {T0, T1}
    assert (known.start_timestamp_ms, known.last_update_timestamp_ms) == (10_000, 10_000)
    assert (known.last_producer_epoch, known.client_transaction_version) == (4, version)


def test_more_partitions_join_and_the_start_stays() -> None:
    simulated = SimulatedId(metadata(TransactionState.ONGOING))
    assert simulated.add(42, 5, T1) == 0
    assert simulated.known.topic_partitions == {T0, T1}
    assert (simulated.known.start_timestamp_ms, simulated.known.last_update_timestamp_ms) == (900, 10_000)


def test_known_partitions_are_not_written_again() -> None:
    simulated = SimulatedId(metadata(TransactionState.ONGOING, topic_partitions=frozenset({T0, T1})))
    assert simulated.add(42, 5, T1) == 0
    assert simulated.log == []


def _verify(simulated: SimulatedId, pid: int, epoch: int) -> dict[int, int]:
    responses = verify_partitions(simulated.metadata, ProducerPair(pid, epoch), [T0, T1])
    return {topic_partition.partition: int(error) for topic_partition, error in responses.items()}


@pytest.mark.parametrize("state", STORED_STATES)
@pytest.mark.parametrize(("pair", "response"), [((41, 5), 49), ((42, 4), 90), ((42, 6), 90)])
def test_verifying_another_pair(state: TransactionState, pair: tuple[int, int], response: int) -> None:
    assert _verify(SimulatedId(metadata(state)), *pair) == {0: response, 1: response}


@pytest.mark.parametrize(
    ("state", "known", "unknown"),
    [
        (TransactionState.EMPTY, 120, 120),
        (TransactionState.ONGOING, 0, 120),
        (TransactionState.PREPARE_COMMIT, 51, 51),
        (TransactionState.PREPARE_ABORT, 51, 51),
        (TransactionState.COMPLETE_COMMIT, 120, 120),
        (TransactionState.COMPLETE_ABORT, 120, 120),
    ],
)
@pytest.mark.parametrize("pending", [None, *TransactionState])
def test_verifying_ignores_a_pending_transition(
    state: TransactionState, known: int, unknown: int, pending: TransactionState | None
) -> None:
    """KAFKA-14904: a batch of a partition that is in the transaction must not be refused because another is added."""
    simulated = SimulatedId(metadata(state))
    if pending is not None:
        simulated.metadata = with_pending(simulated.known, pending)
    assert _verify(simulated, 42, 5) == {0: known, 1: unknown}


def test_verifying_an_unknown_id() -> None:
    assert _verify(SimulatedId(), 42, 5) == {0: ErrorCode.invalid_producer_id_mapping, 1: 49}
