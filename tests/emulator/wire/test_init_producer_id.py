"""InitProducerId, row by row (KIP-98, KIP-360, KIP-890, KIP-939)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka.protocol.producer.transaction import InitProducerIdRequest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import ABORT, COMMIT, KIP_939, LAST, TV2, World
from tests.interop.wire import NO_IDENTITY, Code, End, Identity, Init

rule = pytest.mark.rule
tv2 = pytest.mark.profiles(*TV2)

REFUSED = {code: Init(code, NO_IDENTITY) for code in Code}
"""Every error answers -1 for the pair, and in v6 for the ongoing pair."""


@rule("InitProducerId / concurrent first ones serialise on the same entry")
def test_concurrent_first_initialisations(world: World) -> None:
    held = world.hold(PausePoint.BEFORE_STATE_APPEND)
    with world.connect() as other:
        first, second = world.wire, other
        first._socket.sendall(init_frame("x"))
        held.wait_reached()
        assert second.init("x").error == Code.CONCURRENT_TRANSACTIONS
        held.release()
        first._receive()
    assert world.wire.describe("x").identity.producer_epoch == 0
    assert world.wire.init("x").identity.producer_epoch == 1


def init_frame(transactional_id: str) -> bytes:
    request = InitProducerIdRequest(
        version=4, transactional_id=transactional_id, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
    )
    request.with_header(correlation_id=1, client_id="other")
    frame: bytes = request.encode(header=True, framed=True)
    return frame


# -- a transaction is open


@rule("InitProducerId / the pending transition is looked at before the pair")
def test_pending_before_the_pair(world: World) -> None:
    opened = world.open()
    held = world.hold(PausePoint.BEFORE_MARKER)
    assert world.wire.end("x", opened, commit=COMMIT, version=5 if world.has_tv2 else 4).error == Code.NONE
    assert world.wire.init("x", Identity(opened.producer_id + 1, 0)).error == Code.CONCURRENT_TRANSACTIONS
    held.release()


# -- the epoch limit


@tv2
@rule("Epoch limit / server abort at 32766 / rotates (KAFKA-20090)")
@rule("Epoch limit / late abort after a rotating server abort / NONE with the new pair")
@rule("Epoch limit / InitProducerId after a rotating server abort / NONE with the new pair, no bump")
@rule("Epoch limit / late commit after a rotating server abort / 90 or 48 as without a rotation")
def test_server_abort_at_the_limit(world: World) -> None:
    last = world.at_epoch(LAST)
    assert world.write("x", last).error == Code.NONE
    assert world.wire.init("x").error == Code.CONCURRENT_TRANSACTIONS
    settled = world.wire.wait_until_settled("x")
    assert (settled.state, settled.identity.producer_epoch) == ("CompleteAbort", 0)
    assert settled.identity.producer_id != last.producer_id
    assert world.wire.fetch("t").batches[-1].identity == last.bumped()
    assert world.wire.end("x", last, commit=ABORT) == End(Code.NONE, settled.identity)
    late = Code.PRODUCER_FENCED if world.profile is KIP_939 else Code.INVALID_TXN_STATE
    assert world.wire.end("x", last, commit=COMMIT) == End(late)
    assert world.wire.init("x", last) == Init(Code.NONE, settled.identity)


@rule("Epoch limit / an id stuck at 32767 is aborted there and rotates at the next init (KAFKA-20090)")
def test_stuck_at_the_limit(world: World) -> None:
    last = world.at_epoch(LAST)
    assert world.write("x", last).error == Code.NONE
    world.change("x", producer_epoch=LAST + 1)
    if world.has_tv2:
        assert world.wire.end("x", last.bumped(), commit=ABORT) == End(Code.PRODUCER_FENCED)
    settled = world.time_out()
    assert (settled.state, settled.identity.producer_epoch) == ("CompleteAbort", LAST + 1)
    assert world.wire.init("x").identity.producer_epoch == 0


# -- two-phase commit


@tv2
@pytest.mark.parametrize("settings", [{"transaction_two_phase_commit_enable": False}], indirect=True)
@rule("InitProducerId v6 / Enable2Pc where two-phase commit is off is 53, before all that follows")
def test_two_phase_commit_is_off(world: World) -> None:
    refused = REFUSED[Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    assert world.wire.init("x", version=6, enable_2pc=True) == refused
    assert world.wire.init("x", version=6, enable_2pc=True, keep=True, timeout_ms=0) == refused
    assert world.wire.init("x", version=6).error == Code.NONE


@pytest.mark.profiles(KIP_939)
@rule("InitProducerId v6 / KeepPreparedTxn with an expected pair is 42")
@rule("InitProducerId v6 / KeepPreparedTxn below transaction version 2 is 35")
def test_keep_refused(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.init("x", identity, version=6, keep=True) == REFUSED[Code.INVALID_REQUEST]
    world.emulator.set_transaction_version(1)
    assert world.wire.init("x", version=6, keep=True) == REFUSED[Code.UNSUPPORTED_VERSION]


@pytest.mark.profiles(KIP_939)
@pytest.mark.parametrize("enable_2pc", [True, False])
@rule("InitProducerId v6 / KeepPreparedTxn on Ongoing / NONE with the client's pair bumped and the ongoing pair")
@rule("InitProducerId v6 / KeepPreparedTxn without Enable2Pc is accepted")
@rule("Dual identity / DescribeTransactions shows the ongoing pair")
@rule("Dual identity / each further KeepPreparedTxn moves the client's pair only")
@rule("Dual identity / the ongoing pair cannot end the transaction: 90")
@rule("Dual identity / EndTxn completes one epoch beyond the client's pair, markers follow the ongoing pair")
@rule("Dual identity / a retry of that EndTxn is NONE with the final pair")
@rule("Dual identity / EndTxn while its markers are written is 51")
def test_keep_prepared_bumps_only_the_pair_of_the_client(world: World, enable_2pc: bool) -> None:
    wire = world.wire
    opened = wire.init_ok("x", version=6, enable_2pc=enable_2pc)
    assert world.write("x", opened).error == Code.NONE
    for by in (1, 2, 3):
        kept = wire.init("x", version=6, enable_2pc=enable_2pc, keep=True)
        assert kept == Init(Code.NONE, opened.bumped(by), ongoing=opened)
        described = wire.describe("x")
        assert (described.state, described.identity) == ("Ongoing", opened)
    for commit in (COMMIT, ABORT):
        for fenced in (opened, opened.bumped(1), opened.bumped(2), opened.bumped(4)):
            assert wire.end("x", fenced, commit=commit) == End(Code.PRODUCER_FENCED)
    held = world.hold(PausePoint.BEFORE_MARKER)
    answer = wire.end("x", kept.identity, commit=COMMIT)
    assert answer == End(Code.NONE, kept.identity.bumped())
    assert wire.end("x", kept.identity, commit=COMMIT) == End(Code.CONCURRENT_TRANSACTIONS)
    held.release()
    wire.wait_until_settled("x")
    assert wire.fetch("t").batches[-1].identity == opened.bumped()
    assert wire.end("x", kept.identity, commit=COMMIT) == answer


@pytest.mark.profiles(KIP_939)
@rule("Dual identity / AddPartitions: the ongoing pair NONE, the client's pair 48, any other 90")
@rule("Dual identity / InitProducerId without KeepPreparedTxn aborts the prepared transaction")
@rule("Dual identity / InitProducerId with another pair than the client's is 90")
@rule("Dual identity / EndTxn below v5 is 35")
def test_dual_identity(world: World) -> None:
    wire = world.wire
    opened = wire.init_ok("x", version=6, enable_2pc=True)
    assert world.write("x", opened).error == Code.NONE
    kept = wire.init("x", version=6, enable_2pc=True, keep=True).identity
    assert wire.add("x", opened, ("many", 0)) == [Code.NONE]
    assert wire.add("x", kept, ("many", 1)) == [Code.INVALID_TXN_STATE]
    assert wire.add("x", kept.bumped(), ("many", 1)) == [Code.PRODUCER_FENCED]
    assert wire.end("x", kept, commit=COMMIT, version=4) == End(Code.UNSUPPORTED_VERSION)
    for fenced in (opened, kept.bumped()):
        assert wire.init("x", fenced) == REFUSED[Code.PRODUCER_FENCED]
    assert wire.init("x", version=6, enable_2pc=True) == REFUSED[Code.CONCURRENT_TRANSACTIONS]
    assert wire.wait_until_settled("x").state == "CompleteAbort"
    assert wire.end("x", kept, commit=COMMIT).error == Code.PRODUCER_FENCED


@pytest.mark.profiles(KIP_939)
@rule("InitProducerId v6 / KeepPreparedTxn with nothing open: NONE, a normal bump, no ongoing pair")
@rule("InitProducerId v6 / KeepPreparedTxn while the markers are written is 51")
def test_keep_nothing(world: World) -> None:
    wire = world.wire
    first = wire.init("x", version=6, keep=True, enable_2pc=True)
    assert (first.error, first.identity.producer_epoch, first.ongoing) == (Code.NONE, 0, NO_IDENTITY)
    assert wire.init("x", version=6, keep=True) == Init(Code.NONE, first.identity.bumped(), NO_IDENTITY)
    current = first.identity.bumped()
    assert world.write("x", current).error == Code.NONE
    held = world.hold(PausePoint.BEFORE_MARKER)
    wire.end("x", current, commit=COMMIT)
    assert wire.init("x", version=6, keep=True) == REFUSED[Code.CONCURRENT_TRANSACTIONS]
    held.release()
    wire.wait_until_settled("x")
    assert wire.init("x", version=6, keep=True) == Init(Code.NONE, current.bumped(2), NO_IDENTITY)


@pytest.mark.profiles(KIP_939)
@pytest.mark.parametrize("commit", [COMMIT, ABORT])
@rule("InitProducerId v6 / KeepPreparedTxn while the decision is being appended is 51, and finds nothing open after it")
def test_keep_while_the_decision_is_appended(world: World, commit: bool) -> None:
    opened = world.open()
    held = world.hold(PausePoint.BEFORE_PREPARE_APPEND)
    with ThreadPoolExecutor() as threads, world.connect() as other:
        ending = threads.submit(lambda: other.end("x", opened, commit=commit))
        held.wait_reached()
        assert world.wire.init("x", version=6, keep=True) == REFUSED[Code.CONCURRENT_TRANSACTIONS]
        held.release()
        assert ending.result() == End(Code.NONE, opened.bumped())
    world.wire.wait_until_settled("x")
    assert world.wire.init("x", version=6, keep=True) == Init(Code.NONE, opened.bumped(2), NO_IDENTITY)
    assert world.wire.produce("x", opened, "t", 1).error == Code.INVALID_PRODUCER_EPOCH


@pytest.mark.profiles(KIP_939)
@rule("KIP-939 example B / two overflows, a recovering client may hold 32767")
def test_two_overflows(world: World) -> None:
    wire = world.wire
    opened = world.at_epoch(LAST)
    assert world.write("x", opened).error == Code.NONE
    kept = wire.init("x", version=6, keep=True, enable_2pc=True)
    assert (kept.error, kept.identity.producer_epoch, kept.ongoing) == (Code.NONE, 0, opened)
    second = kept.identity
    assert second.producer_id != opened.producer_id
    world.change("x", next_producer_epoch=LAST)
    kept = wire.init("x", version=6, keep=True, enable_2pc=True)
    assert kept == Init(Code.NONE, Identity(second.producer_id, LAST + 1), ongoing=opened)
    answer = wire.end_settled("x", kept.identity, commit=COMMIT)
    assert (answer.error, answer.identity.producer_epoch) == (Code.NONE, 0)
    assert answer.identity.producer_id not in (opened.producer_id, second.producer_id)
    assert wire.fetch("t").batches[-1].identity == opened.bumped()
    assert wire.end("x", kept.identity, commit=COMMIT) == answer
    assert wire.describe("x").identity == answer.identity
