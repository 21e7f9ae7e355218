"""UpdateFeatures and a change of `transaction.version` under open transactions, the same on both brokers."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.profiles import Profile
from tests.interop.conftest import KAFKA_VERSION_USED, RELEASED, Broker, start
from tests.interop.wire import Code, End, Wire, wait_until
from tests.support.servers.apache_kafka import ApacheKafka

FEATURE = "transaction.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
INVALID_UPDATE_VERSION = 95


@pytest.fixture(scope="module")
def emulated_kafka_that_changes() -> Iterator[Broker]:
    config = BrokerConfig(
        profile=Profile.KAFKA_4_3, transaction_state_log_num_partitions=5, offsets_topic_num_partitions=5
    )
    with Emulator(config=config) as emulator:
        yield Broker("the emulator as Kafka 4.3", emulator.bootstrap_servers, RELEASED, emulator)


@pytest.fixture(scope="module")
def apache_kafka_that_changes() -> Iterator[Broker]:
    yield from start(ApacheKafka(version=KAFKA_VERSION_USED))


@pytest.fixture(scope="module", params=["emulated_kafka_that_changes", "apache_kafka_that_changes"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Brokers of their own, because all clients of a cluster see its features."""
    chosen: Broker = request.getfixturevalue(request.param)
    return chosen


def update(
    wire: Wire,
    level: int,
    upgrade_type: int,
    *,
    version: int = 2,
    validate_only: bool = False,
    features: Sequence[str] = (FEATURE,),
) -> int:
    how = {"upgrade_type": upgrade_type} if version else {"allow_downgrade": upgrade_type > UPGRADE}
    extra = {"validate_only": validate_only} if version else {}
    rows = [{"feature": feature, "max_version_level": level, **how} for feature in features]
    return int(wire.ask("UpdateFeatures", version, timeout_ms=10_000, feature_updates=rows, **extra).error_code)


def level(wire: Wire) -> int:
    features = wire.api_versions().finalized_features
    return {feature.name: int(feature.max_version_level) for feature in features}.get(FEATURE, 0)


def change(wire: Wire, to: int) -> None:
    assert update(wire, to, UPGRADE if to > level(wire) else SAFE_DOWNGRADE) == 0
    wait_until(lambda: level(wire) == to)


@pytest.fixture(autouse=True)
def _level_2(wire: Wire) -> Iterator[None]:
    yield
    if level(wire) < 2:
        change(wire, 2)


@pytest.mark.parametrize("version", range(3))
def test_refusals(wire: Wire, version: int) -> None:
    for refused in (1, 3, -1):
        assert update(wire, refused, UPGRADE, version=version) == INVALID_UPDATE_VERSION
    assert update(wire, 1, UPGRADE, version=version, features=["no-such-feature"]) == INVALID_UPDATE_VERSION
    assert update(wire, 2, UPGRADE, version=version) == 0
    if version == 0:
        assert update(wire, 1, SAFE_DOWNGRADE, version=0) == INVALID_UPDATE_VERSION
    else:
        assert update(wire, 1, 0, version=version) == INVALID_UPDATE_VERSION
        both = (FEATURE, "no-such-feature")
        assert update(wire, 1, SAFE_DOWNGRADE, version=version, features=both) == INVALID_UPDATE_VERSION
        assert update(wire, 1, SAFE_DOWNGRADE, version=version, validate_only=True) == 0
    assert level(wire) == 2


def test_down_and_up(wire: Wire) -> None:
    epoch = wire.api_versions().finalized_features_epoch
    change(wire, 1)
    change(wire, 0)
    assert wire.api_versions().finalized_features_epoch > epoch
    assert update(wire, 1, SAFE_DOWNGRADE) == INVALID_UPDATE_VERSION
    change(wire, 2)
    assert update(wire, 0, UNSAFE_DOWNGRADE) == 0
    wait_until(lambda: level(wire) == 0)


def state_versions(wire: Wire, transactional_id: str) -> list[tuple[int, int]]:
    """(value version, state) of the id's records."""
    key = struct.pack(">hh", 0, len(transactional_id)) + transactional_id.encode()
    return [
        (*struct.unpack_from(">h", value), value[16])
        for index in range(5)
        for batch in wire.fetch("__transaction_state", partition=index).batches
        for found, value in zip(batch.keys, batch.values, strict=True)
        if found == key and value is not None
    ]


@pytest.mark.parametrize("version", [4, 5])
def test_an_addition_that_the_log_cannot_store_fails_the_request(
    wire: Wire, transactional_id: str, topic: str, version: int
) -> None:
    change(wire, 0)
    identity = wire.init_ok(transactional_id)
    topics = [{"name": topic, "partitions": [0]}]
    transaction = {"transactional_id": transactional_id, "verify_only": False, "topics": topics, **identity.fields}
    answer = wire.ask("AddPartitionsToTxn", version, transactions=[transaction])
    assert (answer.error_code, answer.results_by_transaction) == (Code.UNSUPPORTED_VERSION, [])


def test_upgrade_during_a_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    change(wire, 0)
    identity = wire.init_ok(transactional_id)
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
    assert wire.produce(transactional_id, identity, topic, 0, version=11).error == Code.NONE
    change(wire, 2)
    assert wire.end_settled(transactional_id, identity, commit=True, version=4) == End(Code.NONE)
    assert state_versions(wire, transactional_id) == [(0, 0), (0, 1), (1, 2), (1, 4)]
    assert wire.describe(transactional_id).identity == identity


def test_downgrade_during_a_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    change(wire, 1)
    assert wire.end_settled(transactional_id, identity, commit=False) == End(Code.NONE, identity.bumped())
    assert state_versions(wire, transactional_id) == [(1, 0), (1, 1), (1, 3), (1, 5)]


def test_level_0_cannot_record_new_clients(wire: Wire, transactional_id: str, topic: str) -> None:
    """The log's old format has no place for the new fields, and the id does not recover."""
    opened, empty, idle = (f"{transactional_id}-{name}" for name in ("open", "empty", "idle"))
    identity, other, ended = (wire.init_ok(name) for name in (opened, empty, idle))
    assert wire.produce(opened, identity, topic, 0).error == Code.NONE
    assert wire.produce(idle, ended, topic, 0).error == Code.NONE
    ended = wire.end_settled(idle, ended, commit=True).identity
    change(wire, 0)
    assert wire.end(opened, identity, commit=True) == End(Code.UNSUPPORTED_VERSION)
    assert wire.end(empty, other, commit=False) == End(Code.UNSUPPORTED_VERSION)
    assert wire.init(idle, ended).error == Code.UNSUPPORTED_VERSION
    fresh = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, fresh, topic, 0).error == Code.UNSUPPORTED_VERSION
    for name in (opened, empty, idle, transactional_id):
        assert wire.init(name).error == Code.CONCURRENT_TRANSACTIONS


def test_server_abort_at_level_0(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    change(wire, 0)
    assert wire.init(transactional_id).error == Code.CONCURRENT_TRANSACTIONS
    assert wire.wait_until_settled(transactional_id).identity == identity.bumped()
    assert wire.init_ok(transactional_id) == identity.bumped(2)


def test_initialisation_of_an_open_transaction_at_level_1(wire: Wire, transactional_id: str, topic: str) -> None:
    change(wire, 1)
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    assert wire.init(transactional_id, identity).error == Code.CONCURRENT_TRANSACTIONS
    assert wire.wait_until_settled(transactional_id).identity == identity.bumped()
    assert wire.init(transactional_id, identity).error == Code.PRODUCER_FENCED
