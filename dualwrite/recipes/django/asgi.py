"""The lifespan of an ASGI application, which Django's lacks: ids are given back when the server ends.

    application = with_lifespan(get_asgi_application())

Servers such as uvicorn end a process by the signal that asked for it, without Python's exit handlers. Its ids would be
recovered after their leases have expired, as those of a process that was killed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import sync_to_async
from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    LifespanShutdownCompleteEvent,
    LifespanStartupCompleteEvent,
    Scope,
)

from dualwrite.recipes.django.pools import close_at_exit

__all__ = ["with_lifespan"]


def with_lifespan(application: Callable[[Any, Any, Any], Awaitable[None]]) -> ASGI3Application:
    """Return an application that closes the pools of the process when the server ends, after the last request."""

    async def with_its_end(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        else:
            await application(scope, receive, send)

    return with_its_end


async def _live(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send(LifespanStartupCompleteEvent(type="lifespan.startup.complete"))
    await sync_to_async(close_at_exit, thread_sensitive=False)()
    await send(LifespanShutdownCompleteEvent(type="lifespan.shutdown.complete"))
