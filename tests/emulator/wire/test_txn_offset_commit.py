"""TxnOffsetCommit, and its effect on OffsetFetch (KIP-98, KIP-447, KIP-890), row by row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import COMMIT, KAFKA_3_9, TV2, World
from tests.interop.wire import Code, Identity

rule = pytest.mark.rule

NONE, ITS, TA, IPE, CT, IPM = (
    Code.NONE,
    Code.INVALID_TXN_STATE,
    Code.TRANSACTION_ABORTABLE,
    Code.INVALID_PRODUCER_EPOCH,
    Code.CONCURRENT_TRANSACTIONS,
    Code.INVALID_PRODUCER_ID_MAPPING,
)


def versions(world: World) -> list[int]:
    return list(range(6 if world.has_tv2 else 5))


def added(world: World, version: int, name: str = "x") -> Identity:
    """An identity whose transaction may commit offsets of group "g"."""
    identity = world.wire.init_ok(name)
    if version < 5:
        assert world.wire.add_offsets(name, identity, "g") == NONE
    return identity


@rule("TxnOffsetCommit / verification says 120: 48 up to v3, 120 in v4")
@pytest.mark.parametrize(("version", "expected"), [(0, ITS), (2, ITS), (3, ITS), (4, TA)])
def test_not_added(world: World, version: int, expected: Code) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.txn_offset_commit("x", identity, "g", "t", 5, version=version) == expected
    assert world.wire.describe("x").state == "Empty"


@pytest.mark.profiles(*TV2)
@rule("TxnOffsetCommit v5+ / adds the group's partition implicitly")
def test_implicit_add(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.txn_offset_commit("x", identity, "g", "t", 5, version=5) == NONE
    assert list(world.wire.describe("x").topics) == ["__consumer_offsets"]
    before = world.metadata()
    assert world.wire.txn_offset_commit("x", identity, "g", "t", 6, version=5) == NONE
    assert world.metadata() == before


@rule("TxnOffsetCommit / the coordinator says 90: 47 in every version")
@rule("TxnOffsetCommit / the coordinator says 49: 49 in every version")
def test_wrong_producers(world: World) -> None:
    for version in versions(world):
        name = f"x{version}"
        identity = added(world, version, name)
        stranger = Identity(identity.producer_id + 1_000_000, 0)
        assert world.wire.txn_offset_commit(name, identity.bumped(), "g", "t", 5, version=version) == IPE
        assert world.wire.txn_offset_commit(name, stranger, "g", "t", 5, version=version) == IPM
        assert world.wire.txn_offset_commit("nobody", stranger, "g", "t", 5, version=version) == IPM


@rule("TxnOffsetCommit / the coordinator says 51: 51 in every version, and nobody retries it here")
def test_busy(world: World) -> None:
    for version in versions(world):
        name = f"x{version}"
        identity = world.wire.init_ok(name)
        assert world.wire.add(name, identity, ("t", 0)) == [NONE]
        held = world.hold(PausePoint.BEFORE_MARKER, transactional_id=name)
        assert world.wire.end(name, identity, commit=COMMIT, version=4).error == NONE
        assert world.wire.txn_offset_commit(name, identity, "g", "t", 5, version=version) == CT
        held.release()


@rule("TxnOffsetCommit / an empty group id is 24")
@rule("TxnOffsetCommit / an unknown partition is 3, alone")
@rule("TxnOffsetCommit / metadata longer than offset.metadata.max.bytes is 12")
@rule("TxnOffsetCommit / without generation and member it is taken, in v0-2 always")
def test_refusals(world: World) -> None:
    for version in versions(world):
        name = f"x{version}"
        identity = added(world, version, name)
        commit = partial(world.wire.txn_offset_commit, name, identity, version=version)
        assert commit("", "t", 5) == Code.INVALID_GROUP_ID
        assert commit("g", "nope", 5) == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert commit("g", "t", 5, metadata="x" * 4097) == 12
        assert commit("g", "t", 5) == NONE


@pytest.mark.profiles(*TV2)
@rule("TxnOffsetCommit v3+ / a generation of an unknown group is 22")
def test_a_generation_of_an_unknown_group(world: World) -> None:
    for version in versions(world)[3:]:
        commit = committing(world, version)
        assert commit(generation=3, member="m") == Code.ILLEGAL_GENERATION


@pytest.mark.profiles(KAFKA_3_9)
@rule("TxnOffsetCommit v3+ / a generation of an unknown group is 25")
def test_a_generation_of_an_unknown_group_in_3_9(world: World) -> None:
    for version in versions(world)[3:]:
        commit = committing(world, version)
        assert commit(generation=3, member="m") == Code.UNKNOWN_MEMBER_ID


@rule("TxnOffsetCommit v3+ / a member that the group does not have is 25")
def test_no_such_member(world: World) -> None:
    for version in versions(world)[3:]:
        commit = committing(world, version)
        assert commit() == NONE
        assert commit(generation=3, member="m") == Code.UNKNOWN_MEMBER_ID


def committing(world: World, version: int) -> Callable[..., Code | int]:
    """A commit in an open transaction, to a group that is not there yet."""
    name, group = f"x{version}", f"g{version}"
    identity = world.wire.init_ok(name)
    if version < 5:
        assert world.wire.add_offsets(name, identity, group) == NONE
    return partial(world.wire.txn_offset_commit, name, identity, group, "t", 5, version=version)


@pytest.mark.parametrize("commit", [True, False])
@rule("Transactional offsets / pending until the marker: 88 where stable is required, else as before")
@rule("Transactional offsets / a commit replaces what was committed, an abort drops it")
@rule("OffsetFetch / RequireStable with pending offsets is 88, without it the last committed value")
def test_offsets_follow_the_transaction(world: World, commit: bool) -> None:
    wire = world.wire
    for version in versions(world):
        name, group = f"x{version}", f"g{version}"
        identity = wire.init_ok(name)
        if version < 5:
            assert wire.add_offsets(name, identity, group) == NONE
        assert wire.txn_offset_commit(name, identity, group, "t", 7, version=version) == NONE
        assert wire.offset_fetch(group, "t") == (NONE, -1)
        assert wire.offset_fetch(group, "t", require_stable=True) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
        world.end(name, identity, commit=commit, old=version < 5)
        assert wire.offset_fetch(group, "t", require_stable=True) == (NONE, 7 if commit else -1)


@rule("Transactional offsets / WriteTxnMarkers is answered after they are settled (KAFKA-17507)")
def test_settled_when_answered(world: World) -> None:
    identity = added(world, 4)
    assert world.wire.txn_offset_commit("x", identity, "g", "t", 7, version=4) == NONE
    ((topic, (partition,)),) = world.wire.describe("x").topics.items()
    assert world.write_marker(identity, topic, commit=COMMIT, partition=partition) == NONE
    assert world.wire.offset_fetch("g", "t", require_stable=True) == (NONE, 7)


@rule("Transactional offsets / of two producers, each settles its own; the newer in the log wins")
def test_two_producers(world: World) -> None:
    first, second = added(world, 4, "x"), added(world, 4, "y")
    assert world.wire.txn_offset_commit("x", first, "g", "t", 7, version=4) == NONE
    assert world.wire.txn_offset_commit("y", second, "g", "t", 9, version=4) == NONE
    world.end("y", second, commit=COMMIT, old=True)
    assert world.wire.offset_fetch("g", "t") == (NONE, 9)
    assert world.wire.offset_fetch("g", "t", require_stable=True)[0] == Code.UNSTABLE_OFFSET_COMMIT
    world.end("x", first, commit=COMMIT, old=True)
    assert world.wire.offset_fetch("g", "t", require_stable=True) == (NONE, 9)


@rule("Transactional offsets / an ordinary transactional batch of offset records, without sequence")
def test_offset_batch(world: World) -> None:
    identity = added(world, 4)
    assert world.wire.txn_offset_commit("x", identity, "g", "t", 7, version=4) == NONE
    ((topic, (partition,)),) = world.wire.describe("x").topics.items()
    (batch,) = world.wire.fetch(topic, partition=partition).batches
    assert (batch.identity, batch.is_transactional, batch.is_control) == (identity, True, False)
    (key,) = batch.keys
    assert key is not None
    assert key.startswith(b"\x00\x01\x00\x01g\x00\x01t")
