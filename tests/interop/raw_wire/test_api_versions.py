"""ApiVersions of each profile beside that of its release: the same for each API that the emulator serves."""

from __future__ import annotations

from typing import Final

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.wire import Wire
from tests.support.real_kafkas import Kind, shared_kafka
from tests.support.unavailable import skip

from .releases import FEATURES, NOT_IN_THE_CODEC, RELEASES, VERSIONS

Ranges = dict[int, tuple[int, int]]
Features = dict[str, tuple[int, int, int]]

_SHARES: Final[Features] = {"share.version": (0, 1, 1)}
"""Without level 2, the dead letter queue, which the emulator does not serve."""


def offered(address: str) -> tuple[Ranges, Features]:
    """The versions of each API; the levels of each feature: lowest, highest, finalized."""
    with Wire(address) as wire:
        answer = wire.api_versions()
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    return (
        {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys},
        {
            feature.name: (feature.min_version, feature.max_version, finalized.get(feature.name, 0))
            for feature in answer.supported_features
        },
    )


@pytest.mark.parametrize("profile", VERSIONS)
def test_a_profile_offers_the_apis_of_its_release(profile: Profile) -> None:
    with Emulator(config=BrokerConfig(profile=profile)) as emulator:
        ranges, features = offered(emulator.bootstrap_servers)
    released = RELEASES[profile]
    different = {key for key in ranges if ranges[key] != released[key]}
    assert different == (NOT_IN_THE_CODEC.keys() if profile is Profile.KAFKA_3_9 else set())
    assert all(ranges[key][1] == released[key][1] for key in different)
    assert features == FEATURES[profile] | ({} if profile is Profile.KAFKA_3_9 else _SHARES)


@pytest.mark.parametrize("apache_kafka", [f"apache_kafka {version}" for version in VERSIONS.values()])
def test_a_release_offers_the_apis_of_the_table(apache_kafka: str) -> None:
    version = apache_kafka.split()[1]
    profile = next(profile for profile, imitated in VERSIONS.items() if imitated == version)
    try:
        ranges, features = offered(shared_kafka(Kind(version)).bootstrap_servers)
    except ServerUnavailableError as error:
        skip(error)
    assert ranges == RELEASES[profile]
    assert features.items() >= FEATURES[profile].items()
    assert {"group.version", "transaction.version"} & features.keys() == FEATURES[profile].keys()
