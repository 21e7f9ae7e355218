"""When the pool of connections declares that no broker can be reached; no sockets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from dualwrite.errors import AuthenticationError
from tests.unit.connection_pools import pool_over

A, B = ("a", 1), ("b", 2)
BACKOFF_MS = 200


class Network:
    """Each address refuses, says nothing, refuses the login, or serves."""

    def __init__(self, **hosts: str) -> None:
        self.hosts = hosts
        self.now_ms = 1000.0
        self.on_lost: Any = None
        self.connections = pool_over(self, [A, B], lambda: self.now_ms, backoff_ms=(BACKOFF_MS, BACKOFF_MS))

    async def connect(self, host: str, *_: Any, **__: Any) -> Any:
        match self.hosts[host]:
            case "refuses":
                raise ConnectionRefusedError(111, "Connection refused")
            case "refuses the login":
                raise AuthenticationError("wrong password")
            case "is silent":
                await asyncio.Event().wait()
        return SimpleNamespace(lost=False, in_flight=0, close=lambda: None, problem="lost", unserved=False)

    async def unreachable_since_ms(self, at_ms: float) -> float | None:
        """Try every due address at that time, one after the other."""
        self.now_ms = at_ms
        for _ in range(3):
            self.connections.to_any(at_ms, "owner")
            for _ in range(3):
                await asyncio.sleep(0)
        return self.connections.unreachable_since_ms(at_ms)


async def test_since_the_first_failure() -> None:
    network = Network(a="refuses", b="refuses")
    assert network.connections.unreachable_since_ms(1000) is None  # nothing was tried
    assert await network.unreachable_since_ms(1000) == 1000
    assert await network.unreachable_since_ms(1100) == 1000
    assert await network.unreachable_since_ms(9000) == 1000


async def test_not_without_a_recent_attempt() -> None:
    network = Network(a="refuses", b="refuses")
    assert await network.unreachable_since_ms(1000) == 1000
    assert network.connections.unreachable_since_ms(1000 + BACKOFF_MS - 1) == 1000
    assert network.connections.unreachable_since_ms(1000 + BACKOFF_MS) is None


async def test_not_before_every_address_has_failed() -> None:
    network = Network(a="refuses", b="is silent")
    assert await network.unreachable_since_ms(1000) is None
    assert await network.unreachable_since_ms(5000) is None
    await network.connections.close()


async def test_a_node_that_falls_silent_after_refusals() -> None:
    """A machine that goes down: its attempts end only by the timeout."""
    network = Network(a="refuses", b="refuses")
    assert await network.unreachable_since_ms(1000) == 1000
    network.hosts["b"] = "is silent"
    assert await network.unreachable_since_ms(2000) is None
    assert await network.unreachable_since_ms(3000) == 1000
    await network.connections.close()


async def test_one_serving_node_is_enough() -> None:
    network = Network(a="refuses", b="serves")
    assert await network.unreachable_since_ms(1000) is None
    assert network.connections.failing_since_ms is None


async def test_no_connection_is_tried_once_a_node_serves() -> None:
    network = Network(a="refuses", b="refuses")
    assert await network.unreachable_since_ms(1000) == 1000
    network.hosts["a"] = "serves"
    assert await network.unreachable_since_ms(2000) is None
    assert network.connections.failing_since_ms is None


async def test_a_broker_that_refuses_the_login_is_reached() -> None:
    network = Network(a="refuses", b="refuses the login")
    assert await network.unreachable_since_ms(1000) is None
    assert network.connections.refusal is not None
