"""The I/O thread serves all producers of a process, so nothing that a callback raises may end it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable

import pytest
import uvloop

from dualwrite.client import io_thread
from dualwrite.client.io_thread import IoThread


async def _thread_goes_on() -> bool:
    return True


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_callback_that_exits_leaves_the_thread_and_other_callbacks_running(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    monkeypatch.setattr(io_thread, "_new_event_loop", new_loop)
    thread = IoThread()
    called: list[str] = []

    def exit_between_two() -> None:
        thread.loop.call_soon(sys.exit, 1)
        thread.loop.call_soon(called.append, "the next of the same turn")

    with caplog.at_level(logging.WARNING):
        thread.loop.call_soon_threadsafe(exit_between_two)
        assert thread.start(_thread_goes_on()).result(60)
    assert called == ["the next of the same turn"]
    assert [record.getMessage() for record in caplog.records if record.name == io_thread.__name__] == [
        "a callback raised SystemExit in the I/O thread, which continues"
    ]
