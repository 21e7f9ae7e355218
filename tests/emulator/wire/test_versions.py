"""Which versions each profile offers. The tables of the releases are what Apache Kafka 3.9.1 and 4.3.1 answered."""

from __future__ import annotations

import struct

import pytest
from kio.schema.index import api_key_map, schema_name_map

from tests.emulator.wire.world import KAFKA_3_9, KAFKA_4_3, KIP_939, World
from tests.interop.wire import Code, ConnectionClosedError

rule = pytest.mark.rule

# fmt: off
RELEASES = {
    KAFKA_3_9: {
        0: (0, 11), 1: (0, 17), 2: (0, 9), 3: (0, 12), 8: (0, 9), 9: (0, 9), 10: (0, 6), 11: (0, 9), 12: (0, 4),
        13: (0, 5), 14: (0, 5), 15: (0, 5), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (0, 7), 20: (0, 6), 21: (0, 2),
        22: (0, 5), 23: (0, 4), 24: (0, 5), 25: (0, 4), 26: (0, 4), 27: (0, 1), 28: (0, 4), 29: (0, 3), 30: (0, 3),
        31: (0, 3), 32: (0, 4), 33: (0, 2), 34: (0, 2), 35: (0, 4), 36: (0, 2), 37: (0, 3), 38: (0, 3), 39: (0, 2),
        40: (0, 2), 41: (0, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 0), 46: (0, 0), 47: (0, 0), 48: (0, 1),
        49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 1), 60: (0, 1), 61: (0, 0), 64: (0, 0), 65: (0, 0),
        66: (0, 1), 68: (0, 0), 69: (0, 0), 74: (0, 0), 75: (0, 0), 80: (0, 0), 81: (0, 0),
    },
    KAFKA_4_3: {
        0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
        13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
        22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3),
        31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2),
        40: (1, 2), 41: (1, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1),
        49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0),
        66: (0, 2), 68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2),
        80: (0, 1), 81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1), 88: (0, 0), 89: (0, 0),
        90: (0, 1), 91: (0, 0), 92: (0, 0),
    },
}
# fmt: on


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
        in_codec = min(schema_name_map[api_key_map[key]]) if key else 0  # KAFKA-18659: Produce names its old ones
        assert (oldest, newest) == (max(release[key][0], in_codec), release[key][1]), api_key_map[key]


@pytest.mark.profiles(KIP_939)
@rule("Versions / kip-939 offers all that the codec has, InitProducerId v6 among them")
def test_kip_939(world: World) -> None:
    for key, (_, newest) in offered(world).items():
        assert newest == max(schema_name_map[api_key_map[key]])
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
