"""EndTxn, cell by cell of its tables (KIP-98, KIP-890)."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import ABORT, COMMIT, KIP_939, TV2, World
from tests.interop.wire import Code, End, Identity

rule = pytest.mark.rule
tv2 = pytest.mark.profiles(*TV2)

NONE, CT, PF, IPM = (
    Code.NONE,
    Code.CONCURRENT_TRANSACTIONS,
    Code.PRODUCER_FENCED,
    Code.INVALID_PRODUCER_ID_MAPPING,
)


# -- v0-4


@rule("EndTxn v0-4 / producer id, then epoch, then the pending transition is looked at")
def test_v0_order_of_checks(world: World) -> None:
    identity = world.open(old=True)
    held = world.hold(PausePoint.BEFORE_MARKER)
    assert world.wire.end("x", identity, commit=COMMIT, version=4).error == NONE
    for version, fenced in ((0, Code.INVALID_PRODUCER_EPOCH), (2, PF), (4, PF)):
        assert world.wire.end("x", identity.bumped(), commit=COMMIT, version=version).error == fenced
        other_producer = Identity(identity.producer_id + 1, identity.producer_epoch)
        assert world.wire.end("x", other_producer, commit=COMMIT, version=version).error == IPM
    held.release()


# -- v5: current is the id's pair, retry is the one before


@pytest.mark.profiles(KIP_939)
@rule("EndTxn v5 / a retry is one of the pair that ended the transaction, no other")
def test_v5_retry_by_the_kips(world: World) -> None:
    world.wire.init_ok("x")
    fenced = world.end("x", world.open(old=True), commit=COMMIT, old=True)
    assert world.wire.end("x", fenced.bumped(-1), commit=COMMIT) == End(PF)
    # also where the epoch before is remembered, because the initialisation named it
    current = world.wire.init_ok("x", fenced)
    assert world.write("x", current, old=True).error == NONE
    world.end("x", current, commit=COMMIT, old=True)
    assert world.wire.end("x", fenced, commit=COMMIT) == End(PF)


@tv2
@pytest.mark.parametrize("decided", [COMMIT, ABORT])
@pytest.mark.parametrize("commit", [COMMIT, ABORT])
@rule("EndTxn v5 / while the markers are written / 51, before any look at the pair (KAFKA-18464, KAFKA-18660)")
def test_v5_while_markers_are_written(world: World, decided: bool, commit: bool) -> None:
    identity = world.open()
    held = world.hold(PausePoint.BEFORE_MARKER)
    answer = world.wire.end("x", identity, commit=decided)
    assert answer == End(NONE, identity.bumped())
    for asked in (identity, answer.identity, identity.bumped(9), Identity(identity.producer_id + 1, 0)):
        assert world.wire.end("x", asked, commit=commit) == End(CT)
    held.release()
    world.wire.wait_until_settled("x")


@rule("EndTxn / is answered once the decision is in the log, before the markers")
@rule("EndTxn / the next add is 51 until Complete is in the log")
def test_answer_before_the_markers(world: World) -> None:
    identity = world.open()
    held = world.hold(PausePoint.BEFORE_MARKER)
    version = 5 if world.has_tv2 else 4
    answer = world.wire.end("x", identity, commit=COMMIT, version=version)
    assert answer.error == NONE
    held.wait_reached()
    assert len(world.wire.fetch("t").batches) == 1
    following = answer.identity if world.has_tv2 else identity
    assert world.wire.add("x", following, ("many", 0)) == [CT]
    held.release()
    world.wire.wait_until_settled("x")
    assert world.wire.add("x", following, ("many", 0)) == [NONE]


@tv2
@rule("EndTxn v5 / the version of the request decides, not that of the requests before")
def test_v5_ends_the_transaction_of_an_old_client(world: World) -> None:
    identity = world.open(old=True)
    assert world.wire.end_settled("x", identity, commit=COMMIT, version=5) == End(NONE, identity.bumped())
    assert world.wire.fetch("t").batches[-1].identity == identity.bumped()
