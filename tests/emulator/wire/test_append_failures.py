"""Responses to clients when `__transaction_state` cannot be written (KIP-98, KAFKA-9666, KAFKA-19367)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.emulator.wire.test_time import SCAN_MS, expire, rare_scans
from tests.emulator.wire.world import COMMIT, TV2, World
from tests.interop.wire import Code, wait_until

rule = pytest.mark.rule
NONE, CT = Code.NONE, Code.CONCURRENT_TRANSACTIONS


_STATUS = 16
"""The offset of the state in a value: after version, producer id, epoch and timeout."""


class FailingLog:
    """The state log of a coordinator, whose next appends end with these errors."""

    def __init__(self, world: World) -> None:
        (node,) = world.emulator.cluster.nodes.values()
        execution = node.transactions._execution
        self._log = execution._log
        self.errors: list[ErrorCode] = []
        self.completion_errors: list[ErrorCode] = []
        execution._log = self

    async def append(self, partition: int, key: bytes, value: bytes | None) -> ErrorCode:
        if self.errors:
            return self.errors.pop(0)
        if self.completion_errors and value is not None and value[_STATUS] in (4, 5):
            return self.completion_errors.pop()
        error = self._log.append(partition, key, value)
        return error if isinstance(error, ErrorCode) else await error

    def replay(self, partition: int, apply: Callable[[bytes, bytes | None], None]) -> None:
        self._log.replay(partition, apply)


@pytest.mark.parametrize(
    ("appended", "answered"),
    [
        (3, Code.COORDINATOR_NOT_AVAILABLE),
        (7, Code.COORDINATOR_NOT_AVAILABLE),
        (19, Code.COORDINATOR_NOT_AVAILABLE),
        (20, Code.COORDINATOR_NOT_AVAILABLE),
        (6, Code.NOT_COORDINATOR),
        (56, Code.NOT_COORDINATOR),
        (10, Code.UNKNOWN_SERVER_ERROR),
        (18, Code.UNKNOWN_SERVER_ERROR),
        (2, Code.CORRUPT_MESSAGE),
    ],
)
@rule("Transitions / a failed append: 3, 7, 19, 20 are 15; 6, 56 are 16; 10, 18 are -1; others pass")
@rule("Transitions / a failed append changes nothing, and the next request is served")
def test_failed_append(world: World, appended: int, answered: Code) -> None:
    log = FailingLog(world)
    identity = world.wire.init_ok("x")
    version = 5 if world.has_tv2 else 4
    log.errors = [ErrorCode(appended)]
    assert world.wire.init("x").error == answered
    assert world.wire.describe("x").identity == identity
    log.errors = [ErrorCode(appended)]
    assert world.wire.add("x", identity, ("t", 0)) == [answered]
    assert world.wire.describe("x").state == "Empty"
    assert world.wire.add("x", identity, ("t", 0)) == [NONE]
    log.errors = [ErrorCode(appended)]
    assert world.wire.end("x", identity, commit=COMMIT, version=version).error == answered
    described = world.wire.describe("x")
    assert (described.state, described.identity) == ("Ongoing", identity)
    assert world.wire.end_settled("x", identity, commit=COMMIT, version=version).error == NONE


@rule("Transitions / a new id whose record cannot be written does not exist")
def test_failed_first_append(world: World) -> None:
    log = FailingLog(world)
    log.errors = [ErrorCode.not_enough_replicas]
    assert world.wire.init("x").error == Code.COORDINATOR_NOT_AVAILABLE
    assert world.wire.describe("x").error == Code.TRANSACTIONAL_ID_NOT_FOUND
    assert world.wire.init("x").identity.producer_epoch == 0


@rule("Transitions / Complete is appended until it is in the log")
def test_complete_is_retried(world: World) -> None:
    log = FailingLog(world)
    identity = world.open()
    log.completion_errors = [ErrorCode.not_enough_replicas] * 3
    version = 5 if world.has_tv2 else 4
    assert world.wire.end("x", identity, commit=COMMIT, version=version).error == NONE
    wait_until(lambda: world.wire.describe("x").state == "CompleteCommit")
    assert log.completion_errors == []


@rule("Server abort / a fence that could not be appended does not bump twice (KAFKA-9666)")
def test_failed_fence(world: World) -> None:
    if world.has_tv2:
        world.emulator.set_transaction_version(1)
    log = FailingLog(world)
    identity = world.open(old=True)
    for _ in range(2):
        log.errors = [ErrorCode.not_enough_replicas]
        assert world.wire.init("x").error == Code.COORDINATOR_NOT_AVAILABLE
    assert world.wire.init("x").error == CT
    assert world.wire.wait_until_settled("x").identity == identity.bumped()


@pytest.mark.profiles(*TV2)
@rule("Server abort / one that could not be appended changes nothing (transaction version 2, KAFKA-19367)")
def test_failed_abort(world: World) -> None:
    log = FailingLog(world)
    identity = world.open()
    for _ in range(2):
        log.errors = [ErrorCode.not_enough_replicas]
        assert world.wire.init("x").error == Code.COORDINATOR_NOT_AVAILABLE
        assert world.wire.describe("x").identity == identity
    assert world.wire.init("x").error == CT
    assert world.wire.wait_until_settled("x").identity == identity.bumped()


@rule("Server abort / one that could not be appended is made by the next scan")
def test_failed_timeout(world: World) -> None:
    identity = world.open(timeout_ms=SCAN_MS)
    log = FailingLog(world)
    log.errors = [ErrorCode.not_enough_replicas]
    world.emulator.advance_clock(2 * SCAN_MS)
    wait_until(lambda: not log.errors)
    assert world.wire.describe("x").state == "Ongoing"
    world.emulator.advance_clock(SCAN_MS)
    wait_until(lambda: world.wire.describe("x").state == "CompleteAbort")
    assert world.wire.describe("x").identity == identity.bumped()


@rare_scans
@rule("Expiry of transactional ids / an id whose tombstone cannot be written stays")
def test_failed_tombstone(world: World) -> None:
    identity = world.wire.init_ok("x")
    log = FailingLog(world)
    log.errors = [ErrorCode.not_enough_replicas] * 9
    expire(world)
    wait_until(lambda: len(log.errors) < 9)
    log.errors.clear()
    assert world.wire.describe("x").state == "Empty"
    assert world.wire.init_ok("x") == identity.bumped()
