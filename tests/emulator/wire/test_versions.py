"""Which versions each profile offers."""

from __future__ import annotations

import struct

import pytest
from kio.schema.index import api_key_map

from dualwrite.broker_emulator.api.message_schemas import versions_of
from tests.emulator.wire.world import KAFKA_3_9, KAFKA_4_3, KIP_939, World
from tests.interop.raw_wire.releases import RELEASES
from tests.interop.wire import Code, ConnectionClosedError

rule = pytest.mark.rule


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, object]:
    return {"unstable_api_versions_enable": getattr(request, "param", False)}


def offered(world: World) -> dict[int, tuple[int, int]]:
    return {api.api_key: (api.min_version, api.max_version) for api in world.wire.api_versions().api_keys}


@pytest.mark.profiles(KAFKA_3_9, KAFKA_4_3)
@rule("Versions / a release's profile offers what that release offers, from the oldest that the codec has")
def test_releases(world: World) -> None:
    release = RELEASES[world.profile]
    for key, (oldest, newest) in offered(world).items():
        in_codec = min(versions_of(api_key_map[key])) if key else 0  # KAFKA-18659: Produce names its old ones
        assert (oldest, newest) == (max(release[key][0], in_codec), release[key][1]), api_key_map[key]


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


@rule("Versions / ApiVersions above the range: v0 with 35 from the header alone, the connection lives on")
def test_future_api_versions(world: World) -> None:
    answer = world.wire.exchange(struct.pack(">hhih4sB", 18, 99, 5, 4, b"wire", 0) + b"?")
    assert struct.unpack(">ih", answer[:6]) == (5, Code.UNSUPPORTED_VERSION)
    assert world.wire.api_versions().error_code == 0


@rule("Versions / any other version that is not offered closes the connection")
def test_not_offered(world: World) -> None:
    for key, (_, newest) in offered(world).items():
        if key == 18:
            continue
        with world.connect() as wire, pytest.raises(ConnectionClosedError):
            wire.exchange(struct.pack(">hhih4s", key, newest + 1, 5, 4, b"wire") + bytes(60))
