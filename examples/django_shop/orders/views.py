"""An order changes the stock, adds a row and publishes a record, or does none of it."""

import json
import logging

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_http_methods

from dualwrite.recipes.django import pool_status, send

from .models import Item, Order

_log = logging.getLogger(__name__)


class SoldOutError(Exception):
    """There is none left."""


@csrf_exempt
@require_http_methods(["PUT"])
def order(request: HttpRequest, number: int) -> HttpResponse:
    """Place an order. The transaction is the request's, because of ATOMIC_REQUESTS."""
    return take_order(number, json.loads(request.body)["item"])


@transaction.non_atomic_requests  # a coroutine cannot be in a transaction
async def order_in_a_coroutine(request: HttpRequest, number: int) -> HttpResponse:
    """Place an order. The transaction is that of a thread, which ends it even if the client goes away meanwhile."""
    if request.method != "PUT":
        return HttpResponseNotAllowed(["PUT"])
    in_a_transaction = transaction.atomic(take_order)
    return await sync_to_async(in_a_transaction)(number, json.loads(request.body)["item"])


def take_order(number: int, name: str) -> HttpResponse:
    """Answer whether an order is placed."""
    if Order.objects.filter(number=number).exists():
        return JsonResponse({"number": number}, status=200)
    item = get_object_or_404(Item.objects.select_for_update(), name=name)
    try:
        with transaction.atomic():
            place(number, item)
    except SoldOutError:
        send("sold-out", key=item.name, value=str(number))
        return JsonResponse({"error": f"no {item.name} left"}, status=409)
    return JsonResponse({"number": number}, status=201)


def place(number: int, item: Item) -> None:
    """Take an item out of the stock, and tell everybody."""
    send("orders", key=str(number), value=json.dumps({"item": item.name}))
    if not item.stock:
        raise SoldOutError  # which takes the record back
    item.stock -= 1
    item.save()
    Order.objects.create(number=number, item=item)


@require_GET
@transaction.non_atomic_requests  # which would be an error of its own while the database is away
def ready(request: HttpRequest) -> HttpResponse:
    """Answer with 503 while orders would be refused. Transactions in doubt do not stop new orders."""
    is_there = {"database": has_database(), "kafka": pool_status().problem is None}
    return JsonResponse(is_there, status=200 if all(is_there.values()) else 503)


def has_database() -> bool:
    """Return whether the database answers a query."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        _log.warning("the database does not answer: %s", error)
        return False
    return True
