"""Transactional ids over time: transactions time out, ids expire (KIP-98, KIP-890, KIP-939)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import ABORT, COMMIT, KIP_939, TV2, World
from tests.interop.wire import READ_COMMITTED, Code, End, wait_until

rule = pytest.mark.rule
NONE, CT, PF, IPM = (
    Code.NONE,
    Code.CONCURRENT_TRANSACTIONS,
    Code.PRODUCER_FENCED,
    Code.INVALID_PRODUCER_ID_MAPPING,
)
SCAN_MS = 10_000
EXPIRATION_MS, SWEEP_MS = 604_800_000, 3_600_000


# -- timeouts


@rule("Timeouts / open for longer than the timeout, strictly, at the next scan")
def test_strictly_longer(world: World) -> None:
    world.open(timeout_ms=SCAN_MS)
    world.emulator.advance_clock(SCAN_MS)  # the scan sees exactly the timeout
    assert world.wire.describe("x").state == "Ongoing"
    world.emulator.advance_clock(SCAN_MS)
    wait_until(lambda: world.wire.describe("x").state == "CompleteAbort")


@rule("Timeouts / begin with the transaction, not with the initialisation")
def test_idle_ids_do_not_time_out(world: World) -> None:
    identity = world.wire.init_ok("x", timeout_ms=SCAN_MS)
    world.emulator.advance_clock(10 * SCAN_MS)
    assert world.wire.describe("x").identity == identity
    assert world.write("x", identity).error == NONE


@rule("Timeouts / a pending transition is left alone, and a client's end and the scan see 51 from one another")
def test_scan_during_an_end(world: World) -> None:
    identity = world.open()
    held = world.hold(PausePoint.BEFORE_PREPARE_APPEND)
    version = 5 if world.has_tv2 else 4
    with world.connect() as other:
        ending = threading.Thread(target=lambda: other.end("x", identity, commit=COMMIT, version=version))
        ending.start()
        held.wait_reached()
        world.emulator.advance_clock(70_000)
        held.release()
        ending.join()
    assert world.wire.wait_until_settled("x").state == "CompleteCommit"


@rule("Timeouts / a pending transition is left alone, and a client's end and the scan see 51 from one another")
def test_end_during_a_scan(world: World) -> None:
    identity = world.open()
    held, marker = world.hold(PausePoint.BEFORE_PREPARE_APPEND), world.hold(PausePoint.BEFORE_MARKER)
    world.emulator.advance_clock(70_000)
    held.wait_reached()
    version = 5 if world.has_tv2 else 4
    assert world.wire.end("x", identity, commit=COMMIT, version=version).error == CT
    held.release()
    marker.wait_reached()
    # the old rules look at the epoch first, which the Prepare record has raised
    assert world.wire.end("x", identity, commit=COMMIT, version=version).error == (CT if world.has_tv2 else PF)
    assert world.wire.list_offsets("t", isolation=READ_COMMITTED) == 0
    marker.release()
    wait_until(lambda: world.wire.describe("x").state == "CompleteAbort")


@rule("Server abort / follows the cluster's transaction version of that moment")
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.profiles(*TV2)
def test_cluster_version(world: World, level: int) -> None:
    identity = world.open()
    world.emulator.set_transaction_version(level)
    assert world.time_out().identity == identity.bumped()
    expected = End(NONE, identity.bumped()) if level == 2 or world.profile is not KIP_939 else End(PF)
    assert world.wire.end("x", identity, commit=ABORT) == expected
    answer = world.wire.init("x", identity)
    assert answer.error == (NONE if level == 2 else PF)


# -- ids


rare_scans = pytest.mark.parametrize(
    "settings", [{"transaction_abort_timed_out_transaction_cleanup_interval_ms": SWEEP_MS}], indirect=True, ids=[""]
)
"""A week has 60,000 of the usual scans for timeouts, and nothing to find."""


def expire(world: World) -> None:
    world.emulator.advance_clock(EXPIRATION_MS + SWEEP_MS)


@rare_scans
@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
@rule("Expiry of transactional ids / Empty and Complete ids, unused for transactional.id.expiration.ms")
@rule("Expiry of transactional ids / afterwards: Describe 105, List without it, EndTxn and AddPartitions 49")
@rule("Expiry of transactional ids / afterwards: InitProducerId gives a new producer id at epoch 0")
@rule("Expiry of transactional ids / a tombstone is appended")
def test_expiry(world: World, state: str) -> None:
    wire = world.wire
    identity = wire.init_ok("x")
    if state != "Empty":
        assert world.write("x", identity).error == NONE
        identity = world.end("x", identity, commit=state == "CompleteCommit")
    expire(world)
    wait_until(lambda: wire.describe("x").error == Code.TRANSACTIONAL_ID_NOT_FOUND)
    assert wire.list_transactions(version=1)[2] == {}
    for version in (4, 5) if world.has_tv2 else (4,):
        assert wire.end("x", identity, commit=COMMIT, version=version) == End(IPM)
    assert wire.add("x", identity, ("t", 0)) == [IPM]
    assert world.write("x", identity, "many").error == IPM
    assert last_values(world)["x"] is None
    fresh = wire.init_ok("x", identity)
    assert fresh.producer_epoch == 0
    assert fresh.producer_id != identity.producer_id


def last_values(world: World) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for index in range(5):
        for batch in world.wire.fetch("__transaction_state", partition=index).batches:
            for key, value in zip(batch.keys, batch.values, strict=True):
                assert key is not None
                found[key[4:].decode()] = value
    return found


@rare_scans
@rule("Expiry of transactional ids / never Ongoing, prepared ones neither")
@rule("Expiry of transactional ids / what is used does not expire")
def test_transactions_that_do_not_expire(world: World) -> None:
    wire = world.wire
    version = 6 if world.has_tv2 else 5
    opened = wire.init_ok("open", version=version, enable_2pc=world.has_tv2)
    if not world.has_tv2:
        world.change("open", timeout_ms=2147483647)
    assert world.write("open", opened).error == NONE
    wire.init_ok("used")
    world.emulator.advance_clock(EXPIRATION_MS - SWEEP_MS)
    wire.init_ok("used")
    world.emulator.advance_clock(2 * SWEEP_MS)
    assert wire.describe("open").state == "Ongoing"
    assert wire.describe("used").state == "Empty"
    world.end("open", opened, commit=COMMIT)


@rare_scans
@rule("Expiry of transactional ids / not while a transition is pending")
def test_initialisation_during_a_sweep(world: World) -> None:
    identity = world.wire.init_ok("x")
    held = world.hold(PausePoint.BEFORE_STATE_APPEND)
    with ThreadPoolExecutor() as threads, world.connect() as other:
        initialising = threads.submit(other.init_ok, "x")
        held.wait_reached()
        expire(world)
        held.release()
        assert initialising.result() == identity.bumped()
