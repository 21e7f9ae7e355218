"""The clusters that are administered: the emulator in each profile, and real Apache Kafkas; all accept old clients.

Without verification (`transaction.partition.verification.enable=false`) a transactional batch is stored that no
coordinator has heard of: that is how transactions came to hang before KIP-890. The real ones, which others use too, are
told to do without it for as long as a test of this folder runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.admin.site import Site
from tests.interop.wire import DEADLINE_S
from tests.support.real_kafkas import OLDER, TWO_PHASE_COMMIT, Kind, shared_kafka
from tests.support.unavailable import skip

PROFILES = [Profile.KIP_939, Profile.KAFKA_4_3, Profile.KAFKA_3_9]
_VERIFICATION = "transaction.partition.verification.enable"
_THE_NODE = "1"


def settings_of(profile: Profile) -> BrokerConfig:
    return BrokerConfig(
        profile=profile,
        unstable_api_versions_enable=True,
        transaction_partition_verification_enable=False,
        transaction_state_log_num_partitions=5,
        offsets_topic_num_partitions=5,
    )


@contextmanager
def _emulated(profile: Profile) -> Iterator[Site]:
    with Emulator(config=settings_of(profile)) as emulator:
        with Site(str(profile), emulator.bootstrap_servers, has_tv2=profile is not Profile.KAFKA_3_9) as site:
            yield site


@contextmanager
def _real(kind: Kind) -> Iterator[Site]:
    try:
        server = shared_kafka(kind)
    except ServerUnavailableError as error:
        skip(error)
    name = f"Apache Kafka {kind.version}"
    with _without_verification(server.bootstrap_servers):
        with Site(name, server.bootstrap_servers, has_tv2=kind is not OLDER) as site:
            yield site


@contextmanager
def _without_verification(bootstrap_servers: str) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def alter(operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry(_VERIFICATION, value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.BROKER, _THE_NODE, incremental_configs=[entry])
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(DEADLINE_S)

    alter(AlterConfigOpType.SET, "false")
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE, None)


@pytest.fixture(scope="session")
def kip_939() -> Iterator[Site]:
    with _emulated(Profile.KIP_939) as site:
        yield site


@pytest.fixture(scope="session")
def kafka_4_3() -> Iterator[Site]:
    with _emulated(Profile.KAFKA_4_3) as site:
        yield site


@pytest.fixture(scope="session")
def kafka_3_9() -> Iterator[Site]:
    with _emulated(Profile.KAFKA_3_9) as site:
        yield site


@pytest.fixture(scope="module")
def apache_kafka() -> Iterator[Site]:
    with _real(TWO_PHASE_COMMIT) as site:
        yield site


@pytest.fixture(scope="module")
def apache_kafka_3_9() -> Iterator[Site]:
    with _real(OLDER) as site:
        yield site


EMULATED = ["kip_939", "kafka_4_3", "kafka_3_9"]


@pytest.fixture(params=[*EMULATED, "apache_kafka", pytest.param("apache_kafka_3_9", marks=pytest.mark.proof)])
def site(request: pytest.FixtureRequest) -> Site:
    """Give every cluster in turn."""
    chosen: Site = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(params=EMULATED)
def emulated(request: pytest.FixtureRequest) -> Site:
    """Give the emulator in each profile."""
    chosen: Site = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def admin(request: pytest.FixtureRequest) -> Iterator[TransactionAdmin]:
    """Give an admin client of the test's cluster."""
    chosen = next(
        name for name in ("site", "emulated", "kip_939", "kafka_4_3", "kafka_3_9") if name in request.fixturenames
    )
    with TransactionAdmin(bootstrap_servers=request.getfixturevalue(chosen).bootstrap_servers) as made:
        yield made
