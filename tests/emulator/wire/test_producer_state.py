"""A partition's state of producers (KIP-98, KIP-360, KIP-890), and how it expires."""

from __future__ import annotations

import pytest

from tests.emulator.wire.world import ABORT, COMMIT, TV2, World
from tests.interop.wire import Code, Identity, Produced

rule = pytest.mark.rule
NONE, OOO, IPE = Code.NONE, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH
LAST_SEQUENCE = 2147483647
EXPIRATION_MS = 86_400_000 + 600_000


def idempotent(world: World, identity: Identity, sequence: int, *values: bytes) -> Produced:
    return world.wire.produce(None, identity, "t", sequence, *values, transactional=False, version=11)


@rule("Sequences / the next one is taken, a gap or an older one is 45")
@rule("Sequences / a batch of the last five again: its original offset, nothing is appended")
@rule("Sequences / duplicates older than five batches are 45, not 46")
def test_sequences(world: World) -> None:
    identity = world.wire.init_ok(None)
    for sequence in range(6):
        assert idempotent(world, identity, sequence) == Produced(NONE, sequence)
    assert idempotent(world, identity, 7).error == OOO
    for sequence in range(1, 6):
        assert idempotent(world, identity, sequence) == Produced(NONE, sequence)
    assert idempotent(world, identity, 0).error == OOO
    assert world.wire.list_offsets("t") == 6


@rule("Sequences / wrap around after 2147483647, also within a batch")
def test_wrap_around(world: World) -> None:
    identity = world.wire.init_ok(None)
    assert idempotent(world, identity, LAST_SEQUENCE - 1, b"a").error == NONE
    assert idempotent(world, identity, LAST_SEQUENCE, b"b", b"c") == Produced(NONE, 1)
    assert idempotent(world, identity, 1, b"d") == Produced(NONE, 3)
    assert idempotent(world, identity, LAST_SEQUENCE, b"b", b"c") == Produced(NONE, 1)


@rule("Sequences / without state: any first one, from clients that do not bump per transaction")
def test_first_sequence(world: World) -> None:
    assert idempotent(world, world.wire.init_ok(None), 41).error == NONE
    identity = world.wire.init_ok("x")
    assert world.write("x", identity, sequence=41, old=True).error == NONE


@pytest.mark.profiles(*TV2)
@rule("Sequences / without state: 0, from clients that bump per transaction; else 45")
def test_first_sequence_of_a_new_client(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert world.write("x", identity, sequence=1).error == OOO
    assert world.write("x", identity, sequence=0).error == NONE


@rule("Epochs / a lower one is 47")
@rule("Epochs / a higher one must begin at 0, else 45")
@rule("Epochs / a higher one forgets the batches before")
def test_epochs(world: World) -> None:
    identity = world.wire.init_ok(None)
    assert idempotent(world, identity, 0).error == NONE
    assert idempotent(world, identity.bumped(), 1).error == OOO
    assert idempotent(world, identity.bumped(), 0) == Produced(NONE, 1)
    assert idempotent(world, identity, 1).error == IPE
    assert idempotent(world, identity.bumped(), 0) == Produced(NONE, 1)


@rule("Sequences / after a marker of a later epoch the next batch begins at 0")
def test_after_a_marker(world: World) -> None:
    identity = world.wire.init_ok(None)
    assert idempotent(world, identity, 0).error == NONE
    assert world.write_marker(identity.bumped()) == NONE
    assert idempotent(world, identity.bumped(), 1).error == OOO
    assert idempotent(world, identity.bumped(), 0).error == NONE


@rule("Sequences / transactions of one epoch go on with the sequence (old clients)")
def test_old_client_goes_on(world: World) -> None:
    identity = world.open(old=True)
    world.end("x", identity, commit=COMMIT, old=True)
    assert world.write("x", identity, sequence=2, old=True).error == OOO
    world.end("x", identity, commit=ABORT, old=True)
    assert world.write("x", identity, sequence=1, old=True).error == NONE


@rule("Producer state / a transaction begins with its first batch and ends with the marker")
def test_transaction_start(world: World) -> None:
    identity = world.open()
    assert world.write("x", identity, sequence=1).error == NONE
    assert world.wire.producers("t")[1][identity.producer_id].txn_start_offset == 0
    world.end("x", identity, commit=COMMIT)
    assert world.wire.producers("t")[1][identity.producer_id].txn_start_offset == -1


@rule("Produce / a batch outside the transaction that its producer has open is 48")
def test_outside_the_transaction(world: World) -> None:
    identity = world.open()
    refused = world.wire.produce(None, identity, "t", 1, transactional=False, version=11)
    assert refused.error == Code.INVALID_TXN_STATE


# -- expiry


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


@rule("Expiry of producer ids / by the broker's time of append, not the records' timestamps (KAFKA-9144)")
def test_expiry_by_append_time(world: World) -> None:
    identity = world.wire.init_ok(None)
    # the test's batches carry the machine's present time, years from the broker's
    assert idempotent(world, identity, 0).error == NONE
    world.emulator.advance_clock(600_000)
    assert list(world.wire.producers("t")[1]) == [identity.producer_id]


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
