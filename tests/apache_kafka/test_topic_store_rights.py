"""The commit store in a topic, over TLS with a login, with exactly the rights that docs/spark-topic.md lists."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourceType
from confluent_kafka.admin import ResourcePatternType as PatternType

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.testing.certificates import Certificates, make_certificates
from spark_sink.errors import CommitLogError
from spark_sink.handoff import TaskIdentity
from spark_sink.options import OnNewCheckpoint
from spark_sink.store.attempt_states import Prepared
from spark_sink.store.tables import Decision
from spark_sink.store.topic.kafka_log import KafkaLog
from spark_sink.store.topic.topic_store import TopicStore
from tests.spark.topic_stores import kafka_log
from tests.support.conditions import until
from tests.support.servers.apache_kafka import ApacheKafka

from .conftest import NewName, running
from .reading import DEADLINE_S
from .secured import LIMITED, LISTENERS, by_password, secured_kafka

NEEDED: Final = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS)
FAIL: Final = OnNewCheckpoint.FAIL
QUERY: Final = "query"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(certificates: Certificates) -> Iterator[ApacheKafka]:
    yield from running(secured_kafka(certificates))


@pytest.fixture
def topic(kafka: ApacheKafka, new_name: NewName) -> str:
    """Return a topic with a store in it, created by another client."""
    name = new_name("commits")
    TopicStore(kafka_log(kafka.bootstrap_servers, name)).create()
    return name


def give(kafka: ApacheKafka, topic: str, *operations: AclOperation) -> None:
    literal, permit = PatternType.LITERAL, AclPermissionType.ALLOW
    acls = [AclBinding(ResourceType.TOPIC, topic, literal, f"User:{LIMITED}", "*", each, permit) for each in operations]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_acls(acls).values():
        future.result(DEADLINE_S)


def limited(kafka: ApacheKafka, certificates: Certificates, topic: str) -> TopicStore:
    """Return the store of a client with only the granted rights."""
    settings: dict[str, Any] = {
        "bootstrap.servers": kafka.address("SASL_TLS"),
        "security.protocol": LISTENERS["SASL_TLS"],
        "ssl.ca.location": str(certificates.authority),
        **by_password("SCRAM-SHA-512", LIMITED),
    }
    log = KafkaLog(settings, topic, timeout_ms=20_000, unreachable_timeout_ms=10_000)
    return TopicStore(log, create=False)


def planned(store: TopicStore) -> int | None:
    store.examine()
    return store.plan("s", query_id=QUERY, on_new_checkpoint=FAIL).generation


def test_the_documented_rights_suffice(kafka: ApacheKafka, certificates: Certificates, topic: str) -> None:
    """For the driver and for tasks."""
    give(kafka, topic, *NEEDED)
    store = limited(kafka, certificates, topic)
    generations: list[int | None] = []

    def is_allowed() -> bool:
        with suppress(CommitLogError):
            generations.append(planned(store))
        return bool(generations)

    until(is_allowed)
    (generation,) = generations
    lease = store.lease("s", generation, TaskIdentity(QUERY, 0, 0, 0, "host"))
    assert lease is not None
    assert store.is_open(lease.attempt_id)
    store.mark_prepared(lease.attempt_id, Prepared(PreparedTxnState("7:3"), "manifest"), records=1)
    decision = Decision("s", QUERY, 0, generation, (lease.attempt_id,), 1, 0, False, "digest")
    assert store.decide(decision, FAIL).anew
    assert limited(kafka, certificates, topic).is_decided("s", QUERY, 0)


@pytest.mark.parametrize("right", NEEDED, ids=lambda right: right.name)
def test_a_right_that_is_missing_is_named(
    kafka: ApacheKafka, certificates: Certificates, topic: str, right: AclOperation
) -> None:
    give(kafka, topic, *(each for each in NEEDED if each is not right))
    store = limited(kafka, certificates, topic)
    said: list[str] = []

    def is_named() -> bool:
        with pytest.raises(CommitLogError) as refused:
            planned(store)
        said.append(str(refused.value))
        return right.name in said[-1]

    until(is_named)
    assert topic in said[-1]
    assert "the right that is missing" in said[-1]
    give(kafka, topic, right)

    def is_allowed() -> bool:
        with suppress(CommitLogError):
            return planned(store) is not None
        return False

    until(is_allowed)
