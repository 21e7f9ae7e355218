"""Wait until one of several logs has new data to read."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from dualwrite.broker_emulator.log.partition_log import PartitionLog


async def wait_for_advance(logs: Collection[PartitionLog], deadline_s: float) -> None:
    """Wait until the high watermark or last stable offset of one of `logs` moves, or its leader changes.

    Waits until the event loop's time `deadline_s` at most.
    """
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
