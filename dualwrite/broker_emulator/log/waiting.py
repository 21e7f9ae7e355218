"""Waiting until a log moves: what long polls and producers with acks=all do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from dualwrite.broker_emulator.log.partition_log import PartitionLog


async def any_advance(logs: Collection[PartitionLog], deadline_s: float) -> None:
    """Wait until one of `logs` moves or changes its leader, at most until the event loop's `deadline_s`."""
    loop = asyncio.get_running_loop()
    advanced: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not advanced.done():
            advanced.set_result(None)

    timer = loop.call_at(deadline_s, wake)
    for log in logs:
        log.on_advance.append(wake)
    try:
        await advanced
    finally:
        timer.cancel()
        for log in logs:
            log.on_advance.remove(wake)
