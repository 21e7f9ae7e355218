"""Levels of `transaction.version` that a profile or its log has no place for (KIP-584, KIP-890, KIP-1022)."""

from __future__ import annotations

import pytest

from tests.emulator.wire.world import ABORT, COMMIT, KAFKA_3_9, KIP_939, World
from tests.interop.wire import Code, End

rule = pytest.mark.rule


NONE = Code.NONE
FEATURE = "transaction.version"
INVALID_UPDATE_VERSION = 95
UPGRADE = 1


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
