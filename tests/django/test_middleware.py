"""`RetryLaterMiddleware`: which errors of a view become a 503 that a client may repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from dualwrite.errors import (
    AuthorizationError,
    DualWriteError,
    InvalidRecordError,
    KafkaUnreachableError,
    OutcomeUnknown,
    PoolTimeoutError,
    PreparedTransactionLost,
    StoreFullError,
    TransactionDoomedError,
)
from dualwrite.outcome import Outcome, note_outcome
from tests.django.project import set_up

set_up()

raised: list[Exception] = []


def in_a_thread(request: HttpRequest) -> HttpResponse:
    raise raised[-1]


async def in_the_loop(request: HttpRequest) -> HttpResponse:
    raise raised[-1]


urlpatterns = [path("thread", in_a_thread), path("loop", in_the_loop)]


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    middleware = ["dualwrite.recipes.django.middleware.RetryLaterMiddleware"]
    with override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["testserver"], MIDDLEWARE=middleware):
        yield


def responses(error: Exception) -> list[Any]:
    """Return the responses of both kinds of views, with both handlers of Django."""
    raised[:] = [error]
    get = async_to_sync(AsyncClient(raise_request_exception=False).get)
    clients = [Client(raise_request_exception=False).get, get]
    return [get(f"/{name}") for get in clients for name in ("thread", "loop")]


def left(error: type[DualWriteError], outcome: Outcome | None, *arguments: Any, **keywords: Any) -> DualWriteError:
    made = error("at 10.0.0.1", *arguments, **keywords)
    if outcome is not None:
        note_outcome(made, outcome)
    return made


BEHIND = {"transactional_id": "a", "prepared_state": "1:2"}
LOST = {**BEHIND, "described_state": "", "described_producer_id": 1, "described_producer_epoch": 2}
BACK = Outcome.ROLLED_BACK


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (left(KafkaUnreachableError, BACK), 503),
        (left(StoreFullError, BACK), 503),
        (left(PoolTimeoutError, BACK), 503),
        (left(AuthorizationError, BACK), 503),
        (left(PreparedTransactionLost, BACK, **LOST, described_start_ms=1), 503),
        (left(PreparedTransactionLost, Outcome.COMMITTED, **LOST, described_start_ms=1), 500),
        (left(OutcomeUnknown, Outcome.UNKNOWN, **BEHIND), 500),
        (left(KafkaUnreachableError, None), 500),
        (left(InvalidRecordError, BACK), 500),
        (left(TransactionDoomedError, BACK), 500),
        (ValueError("at 10.0.0.1"), 500),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'outcome', '')}" if isinstance(value, Exception) else "",
)
def test_an_error_is_repeatable_or_not(error: Exception, status: int) -> None:
    for response in responses(error):
        assert (response.status_code, response.get("Retry-After")) == (status, "1" if status == 503 else None)
        assert b"10.0.0.1" not in response.content
