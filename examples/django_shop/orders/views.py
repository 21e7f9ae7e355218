"""An order changes the stock, adds a row and publishes a record, or does none of it."""

import json

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from dualwrite.recipes.django import send

from .models import Item, Order


class SoldOutError(Exception):
    """There is none left."""


@csrf_exempt
@require_http_methods(["PUT"])
def order(request: HttpRequest, number: int) -> HttpResponse:
    """Place an order. The transaction is the request's, because of ATOMIC_REQUESTS."""
    if Order.objects.filter(number=number).exists():
        return JsonResponse({"number": number}, status=200)
    item = get_object_or_404(Item.objects.select_for_update(), name=json.loads(request.body)["item"])
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
