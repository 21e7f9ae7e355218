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


def with_lifespan(application: Callable[[Any, Any, Any], Awaitable[None]]) -> ASGI3Application:
    """Return an application that closes the pools of the process when the server ends, after the last request.

    If `application` has its own lifespan, the pools are closed after its shutdown, which may still use them.
    """

    async def with_its_end(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await _Lifespan(receive, send).run(application, scope)
        else:
            await application(scope, receive, send)

    return with_its_end


class _Lifespan:
    """The events of one lifespan, on their way to an application that may not support it."""

    def __init__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self._from_server = receive
        self._to_server = send
        self._is_known = False
        """Whether the application has asked for an event."""
        self._unanswered: str | None = None
        self._is_over = False

    async def run(self, application: Callable[[Any, Any, Any], Awaitable[None]], scope: Scope) -> None:
        """Pass the events to the application, and answer those that it leaves unanswered."""
        try:
            await application(scope, self._receive, self._send)
        except Exception:
            if self._is_known:
                await _close_pools()
                raise
            # Django raises ValueError for an unknown scope, as ASGI requires
        while not self._is_over:
            await self._answer()

    async def _receive(self) -> ASGIReceiveEvent:
        self._is_known = True
        event = await self._from_server()
        self._unanswered = event["type"]
        return event

    async def _send(self, event: ASGISendEvent) -> None:
        self._unanswered = None
        if event["type"] in _LAST:
            await _close_pools()
            self._is_over = True
        await self._to_server(event)

    async def _answer(self) -> None:
        if (self._unanswered or (await self._receive())["type"]) == "lifespan.shutdown":
            await self._send(LifespanShutdownCompleteEvent(type="lifespan.shutdown.complete"))
        else:
            await self._send(LifespanStartupCompleteEvent(type="lifespan.startup.complete"))


async def _close_pools() -> None:
    await sync_to_async(close_at_exit, thread_sensitive=False)()
