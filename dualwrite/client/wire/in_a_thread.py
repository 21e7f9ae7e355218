"""Steps that block, in a thread of their own.

An event loop's default executor takes no work once the main thread has ended, while other threads go on. A thread can
be started until the interpreter shuts down.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any


def in_a_thread(step: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run `step` in a daemon thread and return its result; a step that never returns does not block the exit.

    Raises `OSError` if no thread can be started.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = step()
        except Exception as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop was closed meanwhile
            return

    try:
        threading.Thread(target=run, name="dualwrite-step", daemon=True).start()
    except RuntimeError as error:
        raise OSError(f"{error} for a step that blocks") from error
    return done
