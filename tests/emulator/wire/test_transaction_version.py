"""The feature transaction.version (KIP-584, KIP-890, KIP-1022), and how it changes while transactions are open."""

from __future__ import annotations

import pytest

from tests.emulator.wire.test_transaction_log import StateLog
from tests.emulator.wire.world import ABORT, COMMIT, KAFKA_3_9, KIP_939, TV2, World
from tests.interop.wire import Code, End

rule = pytest.mark.rule
tv2 = pytest.mark.profiles(*TV2)

NONE = Code.NONE
FEATURE = "transaction.version"
INVALID_UPDATE_VERSION = 95
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


@tv2
@rule("Features / transaction.version is supported from 0 to 2 and finalized at 2")
@rule("Features / a level of 0 is not among the finalized ones; the epoch grows with every update")
def test_levels(world: World) -> None:
    answer = world.wire.api_versions()
    (supported,) = [feature for feature in answer.supported_features if feature.name == FEATURE]
    assert (supported.min_version, supported.max_version) == (0, 2)
    level, epoch = world.finalized()
    assert level == 2
    for downgraded in (1, 0):
        world.emulator.set_transaction_version(downgraded)
        assert world.finalized() == (downgraded, epoch + 2 - downgraded)
    with pytest.raises(ValueError, match="does not support"):
        world.emulator.set_transaction_version(3)


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


@tv2
@rule("Version change / level 1 changes the log's records only, not the wire")
def test_level_1(world: World) -> None:
    world.emulator.set_transaction_version(1)
    log = StateLog(world)
    identity = world.open(old=True)
    assert world.wire.end_settled("x", identity, commit=COMMIT, version=4) == End(NONE)
    assert {value.version for value in log.values("x")} == {1}
    # a new client is served by the version of its requests
    assert world.write("x", identity, sequence=1).error == NONE
    assert world.wire.end_settled("x", identity, commit=COMMIT) == End(NONE, identity.bumped())


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
