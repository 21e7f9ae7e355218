"""Every test here runs in three profiles, unless `@pytest.mark.profiles(...)` says in which; one emulator per test.

The profile between the other two is for `make proof` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile, VirtualClock
from tests.emulator.wire.world import ALL, World
from tests.interop.wire import Wire


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "profile" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("profiles")
        chosen = sorted(ALL if marker is None else marker.args)
        between = [pytest.mark.proof] if len(chosen) > 1 else []
        marks = {profile: between if profile is Profile.KAFKA_4_3 else [] for profile in chosen}
        metafunc.parametrize("profile", [pytest.param(each, id=str(each), marks=marks[each]) for each in chosen])


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Other broker settings, as an indirect parameter."""
    return dict(getattr(request, "param", {}))


@pytest.fixture
def world(profile: Profile, settings: dict[str, Any]) -> Iterator[World]:
    config = BrokerConfig(
        **{
            "profile": profile,
            "unstable_api_versions_enable": True,
            "transaction_state_log_num_partitions": 5,
            "offsets_topic_num_partitions": 5,
            **settings,
        }
    )
    with Emulator(config=config, clock=VirtualClock(), topics={"t": 1, "many": 3}) as emulator:
        with Wire(emulator.bootstrap_servers) as wire:
            yield World(emulator, wire, profile)


@pytest.fixture
def wire(world: World) -> Wire:
    return world.wire
