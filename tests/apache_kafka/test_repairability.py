"""On real brokers of tiers 3 and 4: whether a topic can be repaired is asked before a dual write is decided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from dualwrite.admin import TopicDescription, TransactionAdmin
from dualwrite.errors import AuthorizationError, UnsupportedByBrokerError
from dualwrite.participant import ParticipantProducer
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.testing.certificates import make_certificates
from tests.support.conditions import until
from tests.support.real_kafkas import OLDER_VERSION
from tests.support.servers.apache_kafka import KAFKA_VERSION, ApacheKafka

from .clusters import Cluster
from .conftest import NewName, running
from .reading import DEADLINE_S, create_topics, read_committed
from .secured import LIMITED, LISTENERS, PASSWORDS, by_password, secured_properties

VERSIONS: Final = {OLDER_VERSION: 4, KAFKA_VERSION: 3}
"""Releases, and the tier of each."""

NO_READ: Final = r"this cluster is tier {}: .* this client has no READ on it"


def set_policy(admin: AdminClient, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_S)


def test_without_access_control_a_client_may_read(cluster: Cluster, new_name: NewName) -> None:
    kept, compacted = new_name("topic"), new_name("topic")
    create_topics(cluster.bootstrap_servers, kept, compacted)
    set_policy(AdminClient({"bootstrap.servers": cluster.bootstrap_servers}), compacted, "compact,delete")
    expected = {
        kept: TopicDescription(True, "delete", is_writable=True),
        compacted: TopicDescription(True, "compact,delete", is_writable=True),
    }

    with ParticipantProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        until(lambda: producer.describe_topics([kept, compacted]) == expected)
        (missing,) = producer.describe_topics(["no-such-topic"]).values()
    assert (missing.is_readable, missing.cleanup_policy) == (None, None)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(missing.why_not_known)
    assert expected[compacted].is_compacted


# ---- with access control --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=VERSIONS)
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"))
    yield from running(
        ApacheKafka(
            version=request.param,
            listeners=LISTENERS,
            scram_users=PASSWORDS,
            properties=secured_properties(certificates),
        )
    )


@pytest.fixture
def admin(secured: ApacheKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": secured.bootstrap_servers})


def allow(admin: AdminClient, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    pattern, permit = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
    bindings = [AclBinding(kind, name, pattern, f"User:{LIMITED}", "*", each, permit) for each in operations]
    for future in admin.create_acls(bindings).values():
        future.result(DEADLINE_S)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"sqlite:///{tmp_path / 'db'}")
    yield made
    made.dispose()


def test_a_client_of_limited_rights(
    secured: ApacheKafka, admin: AdminClient, new_name: NewName, engine: sa.Engine
) -> None:
    """It may write, then also read, then also ask whether the topic is compacted, which it is."""
    topic, name = new_name("topic"), new_name("writer")
    create_topics(secured.bootstrap_servers, topic)
    set_policy(admin, topic, "compact")
    allow(admin, ResourceType.TOPIC, topic, AclOperation.WRITE)
    allow(admin, ResourceType.TRANSACTIONAL_ID, name, AclOperation.WRITE)
    where: dict[str, Any] = {"bootstrap_servers": secured.address("SASL"), "security_protocol": "SASL_PLAINTEXT"}
    where |= {setting.replace(".", "_"): value for setting, value in by_password("SCRAM-SHA-256", LIMITED).items()}
    with (
        DualWriter(engine, transactional_id=name, max_block_ms=60_000, **where) as writer,
        TransactionAdmin(**where) as limited,
    ):

        def described() -> TopicDescription:
            return limited.describe_topics([topic])[topic]

        def write(value: str) -> None:
            with writer.transaction() as tx:
                tx.send(topic, value, "key")

        until(lambda: described().is_readable is False)  # brokers hear of a right a moment later
        until(lambda: limited.may_write_with(name))
        assert (described().is_writable, limited.may_write_with(f"not-{name}")) == (True, False)
        tier = VERSIONS[secured.version]
        with pytest.raises(UnsupportedByBrokerError, match=NO_READ.format(tier)):
            write("refused")
        found = described()
        assert isinstance(found.why_not_known, AuthorizationError)
        assert "DESCRIBE_CONFIGS on the topic" in str(found.why_not_known)

        allow(admin, ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)
        until(lambda: described() == TopicDescription(True, "compact", is_writable=True))
        with pytest.raises(UnsupportedByBrokerError, match=r"its cleanup\.policy is 'compact'"):
            write("refused")

        set_policy(admin, topic, "delete")
        until(lambda: described() == TopicDescription(True, "delete", is_writable=True))
        write("accepted")
    assert read_committed({"bootstrap.servers": secured.bootstrap_servers}, topic) == [b"accepted"]
