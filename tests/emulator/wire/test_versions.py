"""Which versions and features each profile offers (KIP-584, KIP-890, KIP-1022)."""

from __future__ import annotations

import struct

import pytest
from kio.schema.index import api_key_map

from dualwrite.broker_emulator.messages.schemas import versions_of
from tests.emulator.wire.world import ABORT, COMMIT, KAFKA_3_9, KIP_939, World
from tests.interop.wire import Code, ConnectionClosedError, End

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


NONE = Code.NONE
FEATURE = "transaction.version"
INVALID_UPDATE_VERSION = 95
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


@pytest.mark.profiles(KAFKA_3_9)
@rule("Features / kafka-3.9 does not know transaction.version")
def test_unknown_feature(world: World) -> None:
    answer = world.wire.api_versions()
    assert FEATURE not in [feature.name for feature in answer.supported_features]
    assert world.finalized()[0] == 0
    hows: list[dict[str, int]] = [{"allow_downgrade": False}, {"upgrade_type": UPGRADE}]
    for version, how in enumerate(hows):
        more = {"validate_only": False} if version else {}
        row = {"feature": FEATURE, "max_version_level": 2, **how}
        updated = world.wire.ask("UpdateFeatures", version, timeout_ms=10_000, feature_updates=[row], **more)
        assert [row.error_code for row in (updated, *updated.results)] == [0, INVALID_UPDATE_VERSION]
    with pytest.raises(ValueError, match="does not support"):
        world.emulator.set_transaction_version(2)


def ask_for_version_2(world: World) -> list[Code | int]:
    """The responses to a client of transaction version 2, on four ids in four states."""
    wire, idle = world.wire, world.end("idle", world.open("idle"), commit=COMMIT)
    opened, empty = world.open("open"), wire.init_ok("empty")
    world.emulator.set_transaction_version(0)
    fresh = wire.init_ok("fresh")
    return [
        wire.end("open", opened, commit=COMMIT).error,
        wire.end("empty", empty, commit=ABORT).error,
        wire.produce("fresh", fresh, "many", 0).error,
        wire.init("idle", idle).error,
    ]


NAMES = ("open", "empty", "fresh", "idle")


@pytest.mark.profiles(KIP_939)
@rule("Version change / at level 0 the log has no place for requests of version 2: 35, and nothing changes")
def test_level_0(world: World) -> None:
    assert ask_for_version_2(world) == [Code.UNSUPPORTED_VERSION] * 4
    assert [world.metadata(name).pending_state for name in NAMES] == [None] * 4
    # an old client goes on, and so does the new one after the next upgrade
    empty = world.wire.describe("empty").identity
    assert world.write("empty", empty, "many", old=True).error == NONE
    world.emulator.set_transaction_version(2)
    opened = world.wire.describe("open").identity
    assert world.wire.end_settled("open", opened, commit=COMMIT) == End(NONE, opened.bumped())
