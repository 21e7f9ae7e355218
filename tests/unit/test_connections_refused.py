"""A refused login is retried after ten seconds, or at once if a new call needs it; no sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from dualwrite.client.wire.pool import NodeState
from dualwrite.errors import AuthenticationError
from tests.support.narrowing import current
from tests.unit.connection_pools import pool_over


class RefusingSecurity:
    def __init__(self) -> None:
        self.attempts = 0

    async def connect(self, *_: Any, **__: Any) -> None:
        self.attempts += 1
        raise AuthenticationError("wrong password", error_code=58)


class BrokenConnector:
    def __init__(self) -> None:
        self.attempts = 0

    async def connect(self, *_: Any, **__: Any) -> None:
        self.attempts += 1
        raise RuntimeError("not a failure of the network")


class Fixture:
    def __init__(self, security: RefusingSecurity | BrokenConnector | None = None) -> None:
        self.now_ms = 1000.0
        self.security = security or RefusingSecurity()
        self.changes = 0
        self.connections = pool_over(
            self.security, [("h", 1)], lambda: self.now_ms, request_timeout_ms=1000, on_change=self._changed
        )

    def _changed(self) -> None:
        self.changes += 1

    async def ask(self) -> NodeState | object:
        found = self.connections.to_any(self.now_ms, self)
        before = self.changes
        if found is NodeState.CONNECTING:
            while self.changes == before:  # noqa: ASYNC110 - a few turns of the loop
                await asyncio.sleep(0)
        return found


async def test_one_attempt_until_a_new_call_needs_it() -> None:
    fixture = Fixture()
    assert await fixture.ask() is NodeState.CONNECTING
    refusal = fixture.connections.refusal
    assert refusal is not None
    assert str(refusal) == "cannot connect to h:1: wrong password"
    assert refusal.error_code == 58
    for _ in range(9):
        fixture.now_ms += 1000
        assert await fixture.ask() is NodeState.FAILED
    assert fixture.security.attempts == 1

    fixture.connections.retry_refused()
    assert current(fixture.connections.refusal) is None
    assert await fixture.ask() is NodeState.CONNECTING
    assert fixture.security.attempts == 2
    assert fixture.connections.refusal is not None

    assert fixture.connections.wake_at_ms(fixture.now_ms) == fixture.now_ms + 10_100
    fixture.now_ms += 10_100
    assert await fixture.ask() is NodeState.CONNECTING
    assert fixture.security.attempts == 3


async def test_callers_in_a_row_keep_to_the_back_off() -> None:
    fixture = Fixture()
    for _ in range(10):
        fixture.connections.retry_refused()
        await fixture.ask()
    assert fixture.security.attempts == 1


async def test_a_bug_in_an_attempt_ends_the_attempt() -> None:
    fixture = Fixture(BrokenConnector())
    assert await fixture.ask() is NodeState.CONNECTING
    assert await fixture.ask() is NodeState.FAILED
    assert fixture.connections.failing_since_ms == fixture.now_ms
    fixture.now_ms += 1000
    assert await fixture.ask() is NodeState.CONNECTING
    assert fixture.security.attempts == 2
