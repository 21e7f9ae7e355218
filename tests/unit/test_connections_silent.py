"""Beside a bootstrap server that does not even refuse, the next one is tried; no sockets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from dualwrite.client.wire.pool import NodeState
from tests.unit.connection_pools import pool_over

SILENT = ("gone", 1)
ALIVE = ("alive", 2)


class OneIsSilent:
    """A network in which `gone` swallows everything, like a machine that is down, and `alive` responds."""

    def __init__(self) -> None:
        self.tried: list[tuple[str, int]] = []

    async def connect(self, host: str, port: int, *_: Any, **__: Any) -> Any:
        self.tried.append((host, port))
        if (host, port) == SILENT:
            await asyncio.Event().wait()
        return SimpleNamespace(lost=False, in_flight=0, close=lambda: None)


async def test_the_next_address_is_tried_after_a_second() -> None:
    now_ms = 1000.0
    security = OneIsSilent()
    connections = pool_over(security, [SILENT, ALIVE], lambda: now_ms)

    async def ask(at_ms: float) -> object:
        nonlocal now_ms
        now_ms = at_ms
        found = connections.to_any(now_ms, "owner")
        for _ in range(3):
            await asyncio.sleep(0)
        return found

    assert await ask(1000) is NodeState.CONNECTING
    assert await ask(1999) is NodeState.CONNECTING
    assert security.tried == [SILENT]
    assert connections.wake_at_ms(1999) == 2000

    assert await ask(2000) is NodeState.CONNECTING
    assert security.tried == [SILENT, ALIVE]
    assert getattr(await ask(2001), "in_flight", None) == 0
    assert security.tried == [SILENT, ALIVE]
    await connections.close()
