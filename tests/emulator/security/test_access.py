"""Access control in one process: rules from Python, stored and logged, and how clients react to refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from dualwrite.broker_emulator import (
    Acl,
    AclFilter,
    AclOperation,
    BrokerConfig,
    Emulator,
    PatternType,
    ResourceType,
)
from dualwrite.broker_emulator.security.authorizer import STANDARD_AUTHORIZER
from dualwrite.errors import AuthorizationError, FatalError
from dualwrite.producer import Producer

ME = "User:ANONYMOUS"
CONFIG = BrokerConfig(transaction_state_log_num_partitions=3, offsets_topic_num_partitions=3)
WRITES_ORDERS = Acl.allow(ME, AclOperation.WRITE, ResourceType.TOPIC, "orders")
TWO_PHASE_COMMIT = (
    Acl.allow(ME, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "orders-1"),
    Acl.allow(ME, AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, "orders-1"),
)


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(config=CONFIG, topics={"orders": 1, "secret": 1}, acls=()) as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator) -> Iterator[Emulator]:
    """An emulator without any rule."""
    yield running
    running.remove_acls()


# -- from Python


def test_rules_are_added_shown_and_removed(emulator: Emulator) -> None:
    everything = Acl.allow("User:*", AclOperation.ALL, ResourceType.TOPIC, "o", pattern_type=PatternType.PREFIXED)
    emulator.add_acls(WRITES_ORDERS, everything, WRITES_ORDERS)
    assert emulator.acls() == [WRITES_ORDERS, everything]
    assert emulator.acls(AclFilter(principal=ME)) == [WRITES_ORDERS]
    assert emulator.remove_acls(AclFilter(pattern_type=PatternType.PREFIXED)) == [everything]
    assert emulator.acls() == [WRITES_ORDERS]
    with pytest.raises(ValueError, match="Invalid operation ANY"):
        emulator.add_acls(WRITES_ORDERS._replace(operation=AclOperation.ANY))
    assert str(everything) == "User:* may ALL PREFIXED TOPIC 'o' from host *"


def test_without_access_control_there_are_no_rules() -> None:
    with Emulator(config=CONFIG) as emulator:
        with pytest.raises(RuntimeError, match="access control is off: start with Emulator"):
            emulator.add_acls(WRITES_ORDERS)
        with pytest.raises(RuntimeError, match=STANDARD_AUTHORIZER):
            emulator.acls()


def test_settings_enable_access_control() -> None:
    names = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin; User:root",
        "allow.everyone.if.no.acl.found": "true",
    }
    with Emulator(config=BrokerConfig.from_properties(names), topics={"orders": 1}) as emulator:
        assert send(emulator, "orders") is None
        emulator.add_acls(Acl.allow("User:other", AclOperation.WRITE, ResourceType.TOPIC, "orders"))
        assert send(emulator, "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert send(emulator, "new") is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"authorizer_class_name": "my.Authorizer"}, "authorizer.class.name=my.Authorizer is not supported"),
        ({"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "admin"}, "'admin' is not a principal"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Emulator(config=BrokerConfig(**settings))


def test_rules_outlive_a_restart(tmp_path: Path) -> None:
    refusal = Acl.deny("User:bob", AclOperation.READ, ResourceType.TOPIC, "secret", host="10.0.0.1")
    with Emulator(config=CONFIG, data_dir=tmp_path, acls=[WRITES_ORDERS, refusal]) as emulator:
        emulator.add_acls(*TWO_PHASE_COMMIT)
        emulator.remove_acls(AclFilter(operation=AclOperation.TWO_PHASE_COMMIT))
    with Emulator(config=CONFIG, data_dir=tmp_path, acls=[refusal]) as emulator:
        assert set(emulator.acls()) == {WRITES_ORDERS, refusal, TWO_PHASE_COMMIT[0]}


# -- clients that are refused


def send(emulator: Emulator, topic: str) -> int | None:
    """Return the error code that librdkafka gives the record, or None if it was written."""
    settings = {"bootstrap.servers": emulator.bootstrap_servers, "enable.idempotence": False}
    producer = confluent_kafka.Producer(settings | {"log_level": 0})
    told: list[KafkaError | None] = []
    producer.produce(topic, b"v", on_delivery=lambda error, _: told.append(error))
    producer.flush(10)
    return None if told[0] is None else told[0].code()


def test_dual_writes_need_the_right_to_two_phase_commit(emulator: Emulator) -> None:
    """KIP-939: the error names the missing right, and once that is granted the same call succeeds."""
    emulator.add_acls(WRITES_ORDERS, TWO_PHASE_COMMIT[0])
    producer = Producer(
        {
            "bootstrap.servers": emulator.bootstrap_servers,
            "transactional.id": "orders-1",
            "transaction.two.phase.commit.enable": True,
            "max.block.ms": 10_000,
        }
    )
    try:
        with pytest.raises(AuthorizationError, match="TWO_PHASE_COMMIT on it"):
            producer.init_transactions()
        emulator.add_acls(TWO_PHASE_COMMIT[1])
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(AuthorizationError, match="DESCRIBE on the topic 'secret'"):
            producer.send("secret", b"v").result(60)
        producer.send("orders", b"v")
        producer.prepare_transaction()
        emulator.remove_acls(AclFilter(resource_type=ResourceType.TRANSACTIONAL_ID))
        with pytest.raises(FatalError, match="the right that is missing is WRITE on the transactional id"):
            producer.commit_transaction()
    finally:
        producer.close(timeout_s=0)
