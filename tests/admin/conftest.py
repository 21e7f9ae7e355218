"""The clusters that are administered: the emulator in each profile, and real Apache Kafkas; all let old clients be.

Without verification (`transaction.partition.verification.enable=false`) a transactional batch is stored that no
coordinator has heard of: that is how transactions came to hang before KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from dualwrite.testing.apache_kafka import KAFKA_VERSION, ApacheKafka
from dualwrite.testing.server_unavailable import ServerUnavailableError, servers_are_required
from tests.admin.site import Site

PROFILES = list(Profile)
_VERIFICATION = "transaction.partition.verification.enable"


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
def _real(version: str, *, has_tv2: bool) -> Iterator[Site]:
    server = ApacheKafka(version=version, two_phase_commit=has_tv2, properties={_VERIFICATION: "false"})
    try:
        server.start()
    except ServerUnavailableError as error:
        if servers_are_required():
            raise
        pytest.skip(str(error))
    with Site(f"Apache Kafka {version}", server.bootstrap_servers, has_tv2=has_tv2) as site:
        yield site
    server.stop()


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


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[Site]:
    with _real(KAFKA_VERSION, has_tv2=True) as site:
        yield site


@pytest.fixture(scope="session")
def apache_kafka_3_9() -> Iterator[Site]:
    with _real("3.9.1", has_tv2=False) as site:
        yield site


EMULATED = ["kip_939", "kafka_4_3", "kafka_3_9"]


@pytest.fixture(params=[*EMULATED, "apache_kafka", "apache_kafka_3_9"])
def site(request: pytest.FixtureRequest) -> Site:
    """Every cluster in turn."""
    chosen: Site = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(params=EMULATED)
def emulated(request: pytest.FixtureRequest) -> Site:
    """The emulator in each profile."""
    chosen: Site = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def admin(request: pytest.FixtureRequest) -> Iterator[TransactionAdmin]:
    """Administration of the test's cluster."""
    chosen = next(
        name for name in ("site", "emulated", "kip_939", "kafka_4_3", "kafka_3_9") if name in request.fixturenames
    )
    with TransactionAdmin(bootstrap_servers=request.getfixturevalue(chosen).bootstrap_servers) as made:
        yield made
