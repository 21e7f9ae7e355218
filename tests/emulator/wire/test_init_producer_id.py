"""InitProducerId, row by row (KIP-98, KIP-360, KIP-890, KIP-939)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka.protocol.producer.transaction import InitProducerIdRequest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import ABORT, COMMIT, KAFKA_3_9, KAFKA_4_3, KIP_939, LAST, TV2, World
from tests.interop.wire import NOBODY, Code, ConnectionClosedError, End, Identity, Init, Wire

rule = pytest.mark.rule
tv2 = pytest.mark.profiles(*TV2)

TWO_PHASE_COMMIT_TIMEOUT_MS = 2147483647
REFUSED = {code: Init(code, NOBODY) for code in Code}
"""Every error answers -1 for the pair, and in v6 for the ongoing pair."""


def newest(world: World) -> int:
    return 6 if world.has_tv2 else 5


@rule("InitProducerId / half an expected pair is 42, even without a transactional id")
def test_half_a_pair(wire: Wire) -> None:
    for half in (Identity(5, -1), Identity(-1, 5)):
        assert wire.init("x", half) == REFUSED[Code.INVALID_REQUEST]
        assert wire.init(None, half) == REFUSED[Code.INVALID_REQUEST]


@rule("InitProducerId / without a transactional id: a fresh producer id at epoch 0, whatever pair is given")
@rule("Producer ids / are given out once")
def test_idempotent(wire: Wire) -> None:
    answers = [wire.init_ok(None), wire.init_ok(None), wire.init_ok(None, Identity(77, 3))]
    assert [identity.producer_epoch for identity in answers] == [0, 0, 0]
    assert len({identity.producer_id for identity in answers}) == 3


@rule("InitProducerId / an empty transactional id is 42")
def test_empty_id(wire: Wire) -> None:
    for version in range(6):
        assert wire.init("", version=version) == REFUSED[Code.INVALID_REQUEST]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
@rule("InitProducerId / a timeout of 0, below, or above transaction.max.timeout.ms is 50")
@rule("InitProducerId / every error carries -1 for ids and epochs")
def test_timeouts(world: World, timeout_ms: int) -> None:
    for version in range(newest(world) + 1):
        assert world.wire.init("x", version=version, timeout_ms=timeout_ms) == REFUSED[Code.INVALID_TRANSACTION_TIMEOUT]
    assert world.wire.init("x", timeout_ms=900_000).error == Code.NONE


@rule("InitProducerId / an unknown id: a new producer id at epoch 0, whatever pair is given")
@rule("InitProducerId / an unknown id is Empty afterwards, without a start")
def test_unknown_id(world: World) -> None:
    for version in range(newest(world) + 1):
        assert world.wire.init_ok(f"x{version}", Identity(7, 7), version=version).producer_epoch == 0
        described = world.wire.describe(f"x{version}")
        assert (described.state, described.started, described.topics) == ("Empty", False, {})


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


@rule("InitProducerId / Empty or Complete / no pair: the epoch grows by one")
@rule("InitProducerId / Empty or Complete / the current pair: the epoch grows by one, the old one is remembered")
@rule("InitProducerId / Empty or Complete / the pair before: the same answer again, no bump")
@rule("InitProducerId / Empty or Complete / any other epoch is 90")
@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_nothing_open(world: World, state: str) -> None:
    wire = world.wire
    current = wire.init_ok("x")
    if state != "Empty":
        assert world.write("x", current).error == Code.NONE
        current = world.end("x", current, commit=state == "CompleteCommit")
    assert wire.init("x") == Init(Code.NONE, current.bumped())
    current = current.bumped()
    assert wire.init("x", current) == Init(Code.NONE, current.bumped())
    assert wire.init("x", current) == Init(Code.NONE, current.bumped())
    assert wire.describe("x").state == "Empty"
    for by in (-1, 2, 9):
        assert wire.init("x", current.bumped(by)) == REFUSED[Code.PRODUCER_FENCED]
    assert wire.describe("x").identity == current.bumped()


@rule("InitProducerId / a pair with another producer id is 90")
@rule("InitProducerId / 90 goes out as 47 below v4")
def test_fenced(wire: Wire) -> None:
    current = wire.init_ok("x")
    stranger = Identity(current.producer_id + 1, current.producer_epoch)
    for version, fenced in ((3, Code.INVALID_PRODUCER_EPOCH), (4, Code.PRODUCER_FENCED), (5, Code.PRODUCER_FENCED)):
        assert wire.init("x", stranger, version=version) == REFUSED[fenced]
        assert wire.init("x", current.bumped(5), version=version) == REFUSED[fenced]


@rule("InitProducerId / Empty or Complete / replaces the timeout")
def test_new_timeout(world: World) -> None:
    world.wire.init_ok("x", timeout_ms=1000)
    world.wire.init_ok("x", timeout_ms=2000)
    assert world.wire.describe("x").timeout_ms == 2000


# -- a transaction is open


@rule("InitProducerId / Ongoing / the abort is begun and 51 is answered once it is in the log")
@rule("InitProducerId / Ongoing / one bump for the fence, one for the initialisation")
@rule("InitProducerId / while the markers are written / 51")
@rule("Server abort / markers carry the epoch of the fence")
def test_open_transaction(world: World) -> None:
    opened = world.open()
    held = world.hold(PausePoint.BEFORE_MARKER)
    assert world.wire.init("x") == REFUSED[Code.CONCURRENT_TRANSACTIONS]
    assert world.wire.describe("x").state == "PrepareAbort"
    assert world.wire.init("x") == REFUSED[Code.CONCURRENT_TRANSACTIONS]
    assert world.wire.init("x", opened) == REFUSED[Code.CONCURRENT_TRANSACTIONS]
    held.release()
    settled = world.wire.wait_until_settled("x")
    assert (settled.state, settled.identity) == ("CompleteAbort", opened.bumped())
    marker = world.wire.fetch("t").batches[-1]
    assert (marker.is_control, marker.identity) == (True, opened.bumped())
    assert world.wire.init("x") == Init(Code.NONE, opened.bumped(2))


@pytest.mark.parametrize("decided", [COMMIT, ABORT])
@rule("InitProducerId / while the markers are written / 51")
def test_decided_transaction(world: World, decided: bool) -> None:
    opened = world.open()
    held = world.hold(PausePoint.BEFORE_MARKER)
    assert world.wire.end("x", opened, commit=decided, version=5 if world.has_tv2 else 4).error == Code.NONE
    assert world.wire.init("x") == REFUSED[Code.CONCURRENT_TRANSACTIONS]
    held.release()
    assert world.wire.wait_until_settled("x").state == ("CompleteCommit" if decided else "CompleteAbort")


@rule("InitProducerId / the pending transition is looked at before the pair")
def test_pending_before_the_pair(world: World) -> None:
    opened = world.open()
    held = world.hold(PausePoint.BEFORE_MARKER)
    assert world.wire.end("x", opened, commit=COMMIT, version=5 if world.has_tv2 else 4).error == Code.NONE
    assert world.wire.init("x", Identity(opened.producer_id + 1, 0)).error == Code.CONCURRENT_TRANSACTIONS
    held.release()


@rule("InitProducerId / Ongoing / only the producer id is looked at: a zombie aborts, and is fenced after")
def test_zombie(world: World) -> None:
    zombie = world.wire.init_ok("x")
    opened = world.open()
    assert world.wire.init("x", zombie).error == Code.CONCURRENT_TRANSACTIONS
    assert world.wire.wait_until_settled("x").identity == opened.bumped()
    assert world.wire.init("x", zombie) == REFUSED[Code.PRODUCER_FENCED]


@rule("InitProducerId / Ongoing / another producer id is 90 and aborts nothing")
def test_stranger(world: World) -> None:
    opened = world.open()
    assert world.wire.init("x", Identity(opened.producer_id + 1, 0)) == REFUSED[Code.PRODUCER_FENCED]
    assert world.wire.describe("x").state == "Ongoing"


@tv2
@rule("InitProducerId / Ongoing / the client's own pair is answered one epoch on (transaction version 2)")
def test_own_pair(world: World) -> None:
    opened = world.open()
    assert world.wire.init("x", opened).error == Code.CONCURRENT_TRANSACTIONS
    world.wire.wait_until_settled("x")
    assert world.wire.init("x", opened) == Init(Code.NONE, opened.bumped())


@rule("InitProducerId / Ongoing / the client's own pair is 90 after the abort (transaction version 0 and 1)")
@pytest.mark.parametrize("level", [0, 1])
def test_own_pair_before_version_2(world: World, level: int) -> None:
    if world.has_tv2:
        world.emulator.set_transaction_version(level)
    opened = world.open(old=True)
    assert world.wire.init("x", opened).error == Code.CONCURRENT_TRANSACTIONS
    assert world.wire.wait_until_settled("x").identity == opened.bumped()
    assert world.wire.init("x", opened) == REFUSED[Code.PRODUCER_FENCED]
    assert world.wire.init("x") == Init(Code.NONE, opened.bumped(2))


# -- the epoch limit


@rule("Epoch limit / InitProducerId at 32766 / a new producer id at epoch 0")
@rule("Epoch limit / InitProducerId retry after the rotation / the same answer again")
@pytest.mark.parametrize("names_itself", [True, False])
def test_limit(world: World, names_itself: bool) -> None:
    last = world.at_epoch(LAST)
    answer = world.wire.init("x", last if names_itself else NOBODY)
    assert (answer.error, answer.identity.producer_epoch) == (Code.NONE, 0)
    assert answer.identity.producer_id != last.producer_id
    if names_itself:
        assert world.wire.init("x", last) == answer


@pytest.mark.profiles(KIP_939)
@rule("Epoch limit / InitProducerId at 32766 with another epoch / judged as below the limit")
def test_limit_with_the_epoch_before(world: World) -> None:
    before = world.at_epoch(LAST - 1)
    assert world.wire.init("x", before) == Init(Code.NONE, before.bumped())
    assert world.wire.init("x", before) == Init(Code.NONE, before.bumped())
    assert world.wire.init("x", before.bumped(-1)) == REFUSED[Code.PRODUCER_FENCED]


@pytest.mark.profiles(KAFKA_4_3, KAFKA_3_9)
@rule("Epoch limit / InitProducerId at 32766 with another epoch / -1 in releases")
def test_limit_with_the_epoch_before_in_releases(world: World) -> None:
    before = world.at_epoch(LAST - 1)
    assert world.wire.init("x", before) == Init(Code.NONE, before.bumped())
    assert world.wire.init("x", before) == REFUSED[Code.UNKNOWN_SERVER_ERROR]
    assert world.wire.describe("x").identity == before.bumped()


@tv2
@rule("Epoch limit / server abort at 32766 / rotates (KAFKA-20090)")
@rule("Epoch limit / late abort after a rotating server abort / NONE with the new pair")
@rule("Epoch limit / InitProducerId after a rotating server abort / NONE with the new pair, no bump")
@rule("Epoch limit / late commit after a rotating server abort / 90 or 48 as without a rotation")
@pytest.mark.parametrize("by_timeout", [True, False])
def test_server_abort_at_the_limit(world: World, by_timeout: bool) -> None:
    last = world.at_epoch(LAST)
    assert world.write("x", last).error == Code.NONE
    if by_timeout:
        settled = world.time_out()
    else:
        assert world.wire.init("x").error == Code.CONCURRENT_TRANSACTIONS
        settled = world.wire.wait_until_settled("x")
    assert (settled.state, settled.identity.producer_epoch) == ("CompleteAbort", 0)
    assert settled.identity.producer_id != last.producer_id
    assert world.wire.fetch("t").batches[-1].identity == last.bumped()
    assert world.wire.end("x", last, commit=ABORT) == End(Code.NONE, settled.identity)
    late = Code.PRODUCER_FENCED if world.profile is KIP_939 else Code.INVALID_TXN_STATE
    assert world.wire.end("x", last, commit=COMMIT) == End(late)
    assert world.wire.init("x", last) == Init(Code.NONE, settled.identity)


@rule("Epoch limit / server abort at 32766 before transaction version 2 / stays at 32767, the next init rotates")
def test_old_server_abort_at_the_limit(world: World) -> None:
    if world.has_tv2:
        world.emulator.set_transaction_version(1)
    last = world.at_epoch(LAST)
    assert world.write("x", last, old=True).error == Code.NONE
    settled = world.time_out()
    assert (settled.state, settled.identity) == ("CompleteAbort", last.bumped())
    answer = world.wire.init("x")
    assert (answer.error, answer.identity.producer_epoch) == (Code.NONE, 0)
    assert answer.identity.producer_id != last.producer_id


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
@rule("InitProducerId v6 / Enable2Pc: stored and described with the timeout 2147483647, whatever was sent")
@rule("InitProducerId v6 / from two-phase commit back to a normal timeout")
@rule("Timeouts / a two-phase commit transaction has none")
def test_two_phase_commit(world: World) -> None:
    wire = world.wire
    identity = wire.init_ok("x", version=6, enable_2pc=True, timeout_ms=-5)
    assert wire.describe("x").timeout_ms == TWO_PHASE_COMMIT_TIMEOUT_MS
    assert world.write("x", identity).error == Code.NONE
    world.emulator.advance_clock(7_200_000)
    assert wire.describe("x").state == "Ongoing"
    identity = world.end("x", identity, commit=COMMIT)
    wire.init_ok("x", timeout_ms=1234)
    assert wire.describe("x").timeout_ms == 1234


@tv2
@pytest.mark.parametrize("settings", [{"transaction_two_phase_commit_enable": False}], indirect=True)
@rule("InitProducerId v6 / Enable2Pc where two-phase commit is off is 53, before all that follows")
def test_two_phase_commit_is_off(world: World) -> None:
    refused = REFUSED[Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    assert world.wire.init("x", version=6, enable_2pc=True) == refused
    assert world.wire.init("x", version=6, enable_2pc=True, keep=True, timeout_ms=0) == refused
    assert world.wire.init("x", version=6).error == Code.NONE


@pytest.mark.profiles(KAFKA_4_3)
@rule("InitProducerId v6 / KeepPreparedTxn is 35 in releases, before the timeout is looked at")
def test_keep_in_releases(world: World) -> None:
    refused = REFUSED[Code.UNSUPPORTED_VERSION]
    assert world.wire.init("x", version=6, enable_2pc=True, keep=True) == refused
    assert world.wire.init("x", version=6, keep=True, timeout_ms=0) == refused


@pytest.mark.profiles(KAFKA_4_3, KAFKA_3_9)
@pytest.mark.parametrize("settings", [{"unstable_api_versions_enable": False}], indirect=True)
@rule("InitProducerId v6 / hidden without unstable.api.versions.enable: not advertised, closes the connection")
def test_v6_is_hidden(world: World) -> None:
    offered = {api.api_key: api.max_version for api in world.wire.api_versions().api_keys}
    assert offered[22] == 5
    with pytest.raises(ConnectionClosedError):
        world.wire.init("x", version=6)


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
def test_keep(world: World, enable_2pc: bool) -> None:
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
    assert (first.error, first.identity.producer_epoch, first.ongoing) == (Code.NONE, 0, NOBODY)
    assert wire.init("x", version=6, keep=True) == Init(Code.NONE, first.identity.bumped(), NOBODY)
    current = first.identity.bumped()
    assert world.write("x", current).error == Code.NONE
    held = world.hold(PausePoint.BEFORE_MARKER)
    wire.end("x", current, commit=COMMIT)
    assert wire.init("x", version=6, keep=True) == REFUSED[Code.CONCURRENT_TRANSACTIONS]
    held.release()
    wire.wait_until_settled("x")
    assert wire.init("x", version=6, keep=True) == Init(Code.NONE, current.bumped(2), NOBODY)


@pytest.mark.profiles(KIP_939)
@pytest.mark.parametrize("commit", [COMMIT, ABORT])
@rule("Dual identity / EndTxn of the ongoing pair while the recovery is being appended is 51, after it 90")
def test_end_while_the_recovery_is_appended(world: World, commit: bool) -> None:
    opened = world.open()
    held = world.hold(PausePoint.BEFORE_STATE_APPEND)
    with ThreadPoolExecutor() as threads, world.connect() as other:
        recovering = threads.submit(lambda: other.init("x", version=6, keep=True, enable_2pc=True))
        held.wait_reached()
        assert world.wire.end("x", opened, commit=commit) == End(Code.CONCURRENT_TRANSACTIONS)
        held.release()
        assert recovering.result() == Init(Code.NONE, opened.bumped(), ongoing=opened)
    assert world.wire.end("x", opened, commit=commit) == End(Code.PRODUCER_FENCED)


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
    assert world.wire.init("x", version=6, keep=True) == Init(Code.NONE, opened.bumped(2), NOBODY)
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
