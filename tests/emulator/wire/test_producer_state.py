"""How a partition's state of producers expires (KIP-98, KIP-360, KIP-890)."""

from __future__ import annotations

import pytest

from tests.emulator.wire.world import COMMIT, TV2, World
from tests.interop.wire import Code, Identity, Produced

rule = pytest.mark.rule
NONE, OOO = Code.NONE, Code.OUT_OF_ORDER_SEQUENCE_NUMBER
EXPIRATION_MS = 86_400_000 + 600_000


def idempotent(world: World, identity: Identity, sequence: int, *values: bytes) -> Produced:
    return world.wire.produce(None, identity, "t", sequence, *values, transactional=False, version=11)


@rule("Expiry of producer ids / after producer.id.expiration.ms without an append, at the next check")
@rule("Expiry of producer ids / afterwards the producer is unknown: any first sequence, duplicates are new")
def test_expiry(world: World) -> None:
    identity = world.wire.init_ok(None)
    assert idempotent(world, identity, 0) == Produced(NONE, 0)
    world.emulator.advance_clock(86_400_000 - 600_000)
    assert idempotent(world, identity, 0) == Produced(NONE, 0)  # a duplicate is no append
    world.emulator.advance_clock(600_000)
    assert world.wire.producers("t") == (NONE, {})
    assert idempotent(world, identity, 0) == Produced(NONE, 1)
    world.emulator.advance_clock(EXPIRATION_MS)
    assert idempotent(world, identity, 77) == Produced(NONE, 2)


@rule("Expiry of producer ids / never with an open transaction (KAFKA-9144)")
def test_open_transactions_do_not_expire(world: World) -> None:
    identity = world.wire.init_ok("x", version=6 if world.has_tv2 else 5, enable_2pc=world.has_tv2)
    if not world.has_tv2:  # nothing else keeps a transaction open for longer than a day
        world.change("x", timeout_ms=2147483647)
    assert world.write("x", identity).error == NONE
    world.emulator.advance_clock(3 * EXPIRATION_MS)
    entry = world.wire.producers("t")[1][identity.producer_id]
    assert entry.txn_start_offset == 0
    assert world.write("x", identity, sequence=1).error == NONE
    world.end("x", identity, commit=COMMIT)
    world.emulator.advance_clock(EXPIRATION_MS)
    assert world.wire.producers("t") == (NONE, {})


@pytest.mark.profiles(*TV2)
@rule("Expiry of producer ids / a client that bumps per transaction begins at 0 all the same, else 45")
def test_expiry_of_a_new_client(world: World) -> None:
    identity = world.end("x", world.open(), commit=COMMIT)
    world.emulator.advance_clock(EXPIRATION_MS)
    assert world.wire.producers("t") == (NONE, {})
    assert world.write("x", identity, sequence=1).error == OOO
    assert world.write("x", identity, sequence=0).error == NONE


@rule("Expiry of producer ids / an old client goes on with any sequence after it")
def test_expiry_of_an_old_client(world: World) -> None:
    identity = world.open(old=True)
    world.end("x", identity, commit=COMMIT, old=True)
    world.emulator.advance_clock(EXPIRATION_MS)
    assert world.write("x", identity, sequence=1, old=True).error == NONE
