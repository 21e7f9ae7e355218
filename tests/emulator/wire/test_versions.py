"""Which versions each profile offers."""

from __future__ import annotations

import struct

import pytest
from kio.schema.index import api_key_map

from dualwrite.broker_emulator.api.message_schemas import versions_of
from tests.emulator.wire.world import KAFKA_3_9, KIP_939, World
from tests.interop.wire import ConnectionClosedError

rule = pytest.mark.rule


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, object]:
    return {"unstable_api_versions_enable": getattr(request, "param", False)}


def offered(world: World) -> dict[int, tuple[int, int]]:
    return {api.api_key: (api.min_version, api.max_version) for api in world.wire.api_versions().api_keys}


@pytest.mark.profiles(KIP_939)
@rule("Versions / kip-939 offers all that the codec has, InitProducerId v6 among them")
def test_kip_939(world: World) -> None:
    for key, (_, newest) in offered(world).items():
        assert newest == max(versions_of(api_key_map[key]))
    assert offered(world)[22] == (0, 6)


@pytest.mark.parametrize("settings", [True], indirect=True)
@rule("Versions / unstable.api.versions.enable shows InitProducerId v6 in kafka-4.3 and not in kafka-3.9")
def test_unstable(world: World) -> None:
    assert offered(world)[22] == (0, 5 if world.profile is KAFKA_3_9 else 6)


@rule("Versions / any other version that is not offered closes the connection")
def test_not_offered(world: World) -> None:
    for key, (_, newest) in offered(world).items():
        if key == 18:
            continue
        with world.connect() as wire, pytest.raises(ConnectionClosedError):
            wire.exchange(struct.pack(">hhih4s", key, newest + 1, 5, 4, b"wire") + bytes(60))
