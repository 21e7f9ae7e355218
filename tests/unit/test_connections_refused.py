"""A refused login is retried after ten seconds, or at once if a new call needs it; no sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from dualwrite.client.error_texts import LastError
from dualwrite.client.pacing import Backoff
from dualwrite.client.wire.codec import Framer
from dualwrite.client.wire.pool import ConnectionPool, NodeState
from dualwrite.client.wire.topology import Topology
from dualwrite.errors import AuthenticationError
from tests.support.narrowing import current


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
        self.connections = ConnectionPool(
            bootstrap=[("h", 1)],
            topology=Topology(),
            framer=Framer("c"),
            connector=self.security,  # type: ignore[arg-type]
            request_timeout_ms=1000,
            max_per_node=1,
            new_backoff=lambda: Backoff(50, 1000),
            clock_ms=lambda: self.now_ms,
            last_error=LastError(),
            on_change=self._changed,
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
