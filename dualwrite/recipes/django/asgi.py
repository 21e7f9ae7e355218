"""The ASGI lifespan that Django lacks: it releases the transactional ids when the server ends.

    application = with_lifespan(get_asgi_application())

Servers such as uvicorn end a process by the signal that asked for it, without Python's exit handlers. Without a
lifespan its ids would be recovered only after their leases have expired, like those of a killed process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from asgiref.sync import sync_to_async
from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    LifespanShutdownCompleteEvent,
    LifespanStartupCompleteEvent,
    Scope,
)

from dualwrite.recipes.django.pools import close_at_exit

__all__ = ["with_lifespan"]

_LAST: Final = ("lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed")
"""The last events that an application sends."""

_close_pools: Final = sync_to_async(close_at_exit, thread_sensitive=False)


def with_lifespan(application: Callable[[Any, Any, Any], Awaitable[None]]) -> ASGI3Application:
    """Return an application that closes the pools of the process when the server ends, after the last request.

    If `application` has its own lifespan, the pools are closed after its shutdown, which may still use them.
    """

    async def with_its_end(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
        elif not await _has_lifespan(application, scope, receive, send):
            await receive()
            await send(LifespanStartupCompleteEvent(type="lifespan.startup.complete"))
            await receive()
            await _close_pools()
            await send(LifespanShutdownCompleteEvent(type="lifespan.shutdown.complete"))

    return with_its_end


async def _has_lifespan(
    application: Callable[[Any, Any, Any], Awaitable[None]],
    scope: Scope,
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
) -> bool:
    """Pass the lifespan to the application; close the pools before its last event. Return whether it takes one."""
    has_received = False

    async def receive_noted() -> ASGIReceiveEvent:
        nonlocal has_received
        has_received = True
        return await receive()

    async def send_last(event: ASGISendEvent) -> None:
        if event["type"] in _LAST:
            await _close_pools()
        await send(event)

    try:
        await application(scope, receive_noted, send_last)
    except Exception:  # Django raises ValueError for an unknown scope, as ASGI requires
        if has_received:
            await _close_pools()
            raise
    return has_received
