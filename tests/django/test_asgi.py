"""The lifespan messages of an ASGI server, and views that are cancelled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application
from django.db import connections

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.django.asgi import with_lifespan
from tests.crash.scenario import AtPoint
from tests.django.project import Shop, shop_on
from tests.support.databases import Database


def leases(shop: Shop) -> list[str | None]:
    with shop.database.aside.connect() as connection:
        return list(connection.scalars(sa.text("SELECT owner FROM kafka_transaction_lease")))


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("Django's application knows nothing of lifespans")


def live(application: Any) -> list[str]:
    """Start and end a server of the application. Return its messages to the application."""
    told: list[str] = []
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Any:
        return {"type": next(messages)}

    async def send(message: Any) -> None:
        told.append(message["type"])

    asyncio.run(with_lifespan(application)({"type": "lifespan"}, receive, send))  # type: ignore[arg-type]
    return told


async def djangos(scope: Any, receive: Any, send: Any) -> None:
    await get_asgi_application()(scope, receive, send)


async def return_at_once(scope: Any, receive: Any, send: Any) -> None:
    """Act as an application that ignores unknown scopes."""


@pytest.mark.parametrize("application", [djangos, refuse, return_at_once])
def test_the_ids_are_given_back_when_the_server_ends(shop: Shop, application: Any) -> None:
    with shop.atomic():
        shop.put(1)
    assert leases(shop) != [None]
    assert live(application) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert leases(shop) == [None]


def test_the_lifespan_of_the_application_is_passed_on(shop: Shop) -> None:
    """Records written at its end are published, and the ids are given back after that."""
    seen: list[str] = []

    def place(number: int) -> None:
        with shop.atomic():
            shop.put(number)
        connections[shop.alias].close()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        for number in range(2):
            event = await receive()
            seen.append(event["type"])
            await sync_to_async(place)(number)
            assert leases(shop) != [None]
            await send({"type": f"{event['type']}.complete"})

    assert live(application) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert seen == ["lifespan.startup", "lifespan.shutdown"]
    assert leases(shop) == [None]
    assert shop.written() == ["0", "1"]


def test_a_failed_start_is_reported_to_the_server(shop: Shop) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed"})

    with shop.atomic():
        shop.put(1)
    assert live(application) == ["lifespan.startup.failed"]
    assert leases(shop) == [None]


def test_an_error_of_the_applications_lifespan_is_raised(shop: Shop) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise OSError("no cache")

    with shop.atomic():
        shop.put(1)
    with pytest.raises(OSError, match="no cache"):
        live(application)
    assert leases(shop) == [None]


def test_requests_are_the_applications(shop: Shop) -> None:
    seen: list[Any] = []

    async def application(*call: Any) -> None:
        seen.append(call)

    call: Any = ({"type": "http"}, object(), object())
    asyncio.run(with_lifespan(application)(*call))  # type: ignore[arg-type]
    assert seen == [call]


@pytest.mark.parametrize("point", [PausePoint.AFTER_LOCK, PausePoint.BEFORE_DATABASE_COMMIT])
def test_a_cancelled_view_does_not_end_its_transaction(store: Database, emulator: Emulator, point: PausePoint) -> None:
    """As by a client that goes away: the thread goes on to the end, and both sides have it."""
    arrived, goes_on, has_ended = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        arrived.set()
        assert goes_on.wait(60)

    with shop_on(store, emulator, pause=AtPoint(point, wait)) as shop:

        def place() -> None:
            try:
                with shop.atomic():
                    shop.put(1)
            finally:
                connections[shop.alias].close()
                has_ended.set()

        async def serve() -> None:
            view = asyncio.ensure_future(sync_to_async(place)())
            assert await asyncio.to_thread(arrived.wait, 60)
            view.cancel()
            with pytest.raises(asyncio.CancelledError):
                await view
            goes_on.set()

        asyncio.run(serve())
        assert has_ended.wait(60)
        assert shop.written() == ["1"]
