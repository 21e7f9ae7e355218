"""InitProducerId v0-6, the same on both brokers (KIP-98, KIP-360, KIP-890, KIP-939)."""

from __future__ import annotations

import pytest

from tests.interop.conftest import Broker, every_broker
from tests.interop.wire import NO_IDENTITY, Code, End, Identity, Init, Wire, wait_for


@pytest.mark.parametrize("version", range(7))
def test_first_and_second_initialisation(wire: Wire, transactional_id: str, version: int) -> None:
    first = wire.init_ok(transactional_id, version=version)
    assert first.producer_epoch == 0
    assert wire.init(transactional_id, version=version) == Init(Code.NONE, first.bumped())
    assert wire.describe(transactional_id).state == "Empty"


@every_broker
def test_idempotent_producers_get_fresh_ids(wire: Wire) -> None:
    first, second = wire.init_ok(None), wire.init_ok(None)
    assert first.producer_epoch == second.producer_epoch == 0
    assert first.producer_id != second.producer_id
    # an expected pair without a transactional id is ignored
    third = wire.init_ok(None, first)
    assert third.producer_epoch == 0
    assert third.producer_id not in (first.producer_id, second.producer_id)


@every_broker
@pytest.mark.parametrize("version", range(6))
def test_timeout_out_of_range(wire: Wire, transactional_id: str, version: int) -> None:
    for timeout_ms in (0, -1, 900_001):
        refused = wire.init(transactional_id, timeout_ms=timeout_ms, version=version)
        assert refused == Init(Code.INVALID_TRANSACTION_TIMEOUT, NO_IDENTITY)
    assert wire.init(transactional_id, timeout_ms=900_000, version=version).error == Code.NONE


@every_broker
@pytest.mark.parametrize("version", range(6))
def test_empty_transactional_id(wire: Wire, version: int) -> None:
    assert wire.init("", version=version) == Init(Code.INVALID_REQUEST, NO_IDENTITY)


@every_broker
@pytest.mark.parametrize("half", [Identity(5, -1), Identity(-1, 5)])
def test_half_an_expected_pair(wire: Wire, transactional_id: str, half: Identity) -> None:
    for name in (transactional_id, None):
        assert wire.init(name, half) == Init(Code.INVALID_REQUEST, NO_IDENTITY)


@every_broker
def test_expected_pair_of_an_unknown_id_is_ignored(wire: Wire, transactional_id: str) -> None:
    assert wire.init_ok(transactional_id, Identity(123456, 7)).producer_epoch == 0


@every_broker
@pytest.mark.parametrize(("version", "fenced"), [(3, Code.INVALID_PRODUCER_EPOCH), (4, Code.PRODUCER_FENCED)])
def test_expected_pair(wire: Wire, transactional_id: str, version: int, fenced: Code) -> None:
    first = wire.init_ok(transactional_id)
    assert wire.init(transactional_id, first, version=version) == Init(Code.NONE, first.bumped())
    # the same request again is a retry after a lost response: no second bump (KIP-360)
    assert wire.init(transactional_id, first, version=version) == Init(Code.NONE, first.bumped())
    assert wire.init(transactional_id, first.bumped(7), version=version) == Init(fenced, NO_IDENTITY)
    other_producer = Identity(first.producer_id + 100_000, first.producer_epoch)
    assert wire.init(transactional_id, other_producer, version=version) == Init(fenced, NO_IDENTITY)
    assert wire.describe(transactional_id).identity == first.bumped()


def test_initialisation_aborts_the_open_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    opened = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, opened, topic, 0).error == Code.NONE
    assert wire.init(transactional_id) == Init(Code.CONCURRENT_TRANSACTIONS, NO_IDENTITY)
    settled = wire.wait_until_settled(transactional_id)
    assert (settled.state, settled.identity) == ("CompleteAbort", opened.bumped())
    # one bump for the fence, one for the initialisation
    assert wire.init(transactional_id) == Init(Code.NONE, opened.bumped(2))


def test_own_expected_pair_on_the_open_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    opened = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, opened, topic, 0).error == Code.NONE
    assert wire.init(transactional_id, opened).error == Code.CONCURRENT_TRANSACTIONS
    wire.wait_until_settled(transactional_id)
    # the abort kept the client's epoch as the last one, so its retry is recognised (TV2)
    assert wire.init(transactional_id, opened) == Init(Code.NONE, opened.bumped())


def test_stale_expected_epoch_on_the_open_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    zombie = wire.init_ok(transactional_id)
    opened = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, opened, topic, 0).error == Code.NONE
    # while a transaction is open only the producer id is looked at: the zombie does abort it, and is fenced after
    assert wire.init(transactional_id, zombie) == Init(Code.CONCURRENT_TRANSACTIONS, NO_IDENTITY)
    assert wire.wait_until_settled(transactional_id).state == "CompleteAbort"
    assert wire.init(transactional_id, zombie) == Init(Code.PRODUCER_FENCED, NO_IDENTITY)


def test_foreign_producer_id_on_the_open_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    opened = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, opened, topic, 0).error == Code.NONE
    other_producer = Identity(opened.producer_id + 100_000, 0)
    assert wire.init(transactional_id, other_producer) == Init(Code.PRODUCER_FENCED, NO_IDENTITY)
    assert wire.describe(transactional_id).state == "Ongoing"
    assert wire.end_settled(transactional_id, opened, commit=False).error == Code.NONE


def test_timeout_follows_the_last_initialisation(wire: Wire, transactional_id: str) -> None:
    wire.init_ok(transactional_id, timeout_ms=1234)
    assert wire.describe(transactional_id).timeout_ms == 1234
    wire.init_ok(transactional_id, version=6, enable_2pc=True, timeout_ms=-5)
    assert wire.describe(transactional_id).timeout_ms == 2147483647
    wire.init_ok(transactional_id, timeout_ms=4321)
    assert wire.describe(transactional_id).timeout_ms == 4321


def test_two_phase_commit_transaction_has_no_timeout(wire: Wire, transactional_id: str, topic: str) -> None:
    prepared = wire.init_ok(transactional_id, version=6, enable_2pc=True, timeout_ms=1)
    assert wire.produce(transactional_id, prepared, topic, 0).error == Code.NONE
    # a transaction with the same timeout, opened later, is aborted while this one stays
    other = f"{transactional_id}-other"
    mortal = wire.init_ok(other, timeout_ms=1)
    assert wire.produce(other, mortal, topic, 0).error == Code.NONE
    wait_for(lambda: wire.describe(other), lambda described: described.state == "CompleteAbort")
    assert wire.describe(transactional_id).state == "Ongoing"
    assert wire.end(transactional_id, prepared, commit=True) == End(Code.NONE, prepared.bumped())


def test_released_kafka_refuses_to_keep_prepared_transactions(released_kafka: Broker, transactional_id: str) -> None:
    """KAFKA-20739: no release implements KeepPreparedTxn, which is why the emulator exists."""
    with Wire(released_kafka.bootstrap_servers) as wire:
        wire.wait_for_coordinator(transactional_id)
        for settings in ({"enable_2pc": True}, {}, {"timeout_ms": 0}):
            answer = wire.init(transactional_id, version=6, keep=True, **settings)
            assert answer == Init(Code.UNSUPPORTED_VERSION, NO_IDENTITY)
