"""`@publish` on a model: the records are those of the rows that Django has written, and of no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.serializers import deserialize, serialize
from django.db import connections, models, transaction
from django.db.models import F
from django.test import override_settings

from dualwrite.broker_emulator import Error, Fault
from dualwrite.errors import ConfigError, DualWriteError, IllegalStateError, TransactionDoomedError
from dualwrite.recipes.django import publish, send
from dualwrite.recipes.django.middleware import may_be_repeated
from dualwrite.recipes.django.publishing import published
from dualwrite.recipes.django.testing import captured_records
from tests.crash.scenario import OrdinaryError
from tests.django.project import Shop, set_up
from tests.support.topics import committed_values

set_up()


@publish("orders")
class Order(models.Model):
    number: Any = models.BigIntegerField(primary_key=True)
    item: Any = models.CharField(max_length=40)
    stock: Any = models.IntegerField(default=3)


class RushOrder(Order):
    class Meta:
        proxy = True


class GiftOrder(Order):
    note: Any = models.TextField()


@publish("created", key=lambda parcel: b"k", value=lambda parcel: parcel.code, on=["create"])
@publish("parcels", key="order_id", value="as_event", deleted=lambda parcel: f"-{parcel.code}", on=("update", "delete"))
class Parcel(models.Model):
    code: Any = models.CharField(max_length=40)
    order: Any = models.ForeignKey(Order, on_delete=models.CASCADE)

    def as_event(self) -> str:
        return f"={self.code}"


@publish("kinds")
class Kinds(models.Model):
    id: Any = models.UUIDField(primary_key=True)
    price: Any = models.DecimalField(max_digits=6, decimal_places=2)
    day: Any = models.DateField()
    details: Any = models.JSONField()
    image: Any = models.BinaryField(null=True)
    order: Any = models.ForeignKey(Order, null=True, on_delete=models.CASCADE)


MODELS = (Order, GiftOrder, Parcel, Kinds)
OF_THIS_FILE = list(published)
published.clear()  # for `check` in other files


@pytest.fixture
def orders(shop: Shop) -> Any:
    """Return the orders of a shop, of which number 1 is there."""
    with connections[shop.alias].schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)
    found = Order.objects.using(shop.alias)
    with captured_records(shop.alias), shop.atomic():
        found.create(number=1, item="lamp")
    return found


def save_some(orders: Any) -> None:
    order = orders.get()
    order.item, order.stock = "not saved", "4"
    order.save(update_fields=["stock"])


def add(orders: Any) -> None:
    order = orders.get()
    order.stock = F("stock") + 1
    order.save()


def load_fixture(orders: Any) -> None:
    for each in deserialize("json", serialize("json", [Order(number=2)]), using=orders.db):
        each.save(using=orders.db)


def ship(orders: Any) -> None:
    parcel = Parcel.objects.using(orders.db).create(code="a", order=orders.get())
    parcel.code = "b"
    parcel.save()


def ship_and_delete(orders: Any) -> None:
    ship(orders)
    orders.all().delete()


def give_and_take(orders: Any) -> None:
    gifts = GiftOrder.objects.using(orders.db)
    gifts.create(number=2, item="sock", note="to you").delete()


def rush(orders: Any) -> None:
    rushes = RushOrder.objects.using(orders.db)
    rushes.create(number=2, item="sock")
    rushes.filter(number=2).delete()


def fill(orders: Any) -> None:
    uuid = "00000000000000000000000000000001"
    Kinds.objects.using(orders.db).create(id=uuid, price="1.5", day="2026-12-01", details={"a": [1]}, image=b"\xff\x00")


def in_bulk(orders: Any) -> None:
    orders.bulk_create([Order(number=2, item="sock")])
    orders.update(stock=7)


def of(number: int, item: str, stock: int = 3) -> dict[str, Any]:
    return {"number": number, "item": item, "stock": stock}


ROW_OF_KINDS = {
    "id": "00000000-0000-0000-0000-000000000001",
    "price": "1.50",
    "day": "2026-12-01",
    "details": {"a": [1]},
    "image": "/wA=",
    "order_id": None,
}
SOCK_CAME_AND_WENT = [("orders", b"2", of(2, "sock")), ("orders", b"2", None)]
SHIPPED = [("created", b"k", b"a"), ("parcels", b"1", b"=b")]

CASES: dict[str, tuple[Callable[[Any], Any], list[tuple[str, bytes, Any]]]] = {
    "create": (lambda orders: orders.create(number="2", item="sock"), [("orders", b"2", of(2, "sock"))]),
    "update_or_create": (
        lambda orders: orders.update_or_create(number=1, defaults={"stock": 2}),
        [("orders", b"1", of(1, "lamp", 2))],
    ),
    "delete": (lambda orders: orders.all().delete(), [("orders", b"1", None)]),
    "values that are not stored": (save_some, [("orders", b"1", of(1, "lamp", 4))]),
    "an expression": (add, [("orders", b"1", of(1, "lamp", 4))]),
    "names and functions": (ship, SHIPPED),
    "a cascade": (ship_and_delete, [*SHIPPED, ("parcels", b"1", b"-b"), ("orders", b"1", None)]),
    "a proxy": (rush, SOCK_CAME_AND_WENT),
    "a child": (give_and_take, SOCK_CAME_AND_WENT),
    "kinds of columns": (fill, [("kinds", b"00000000-0000-0000-0000-000000000001", ROW_OF_KINDS)]),
    "a fixture": (load_fixture, []),
    "in bulk": (in_bulk, []),
}


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize(("change", "expected"), CASES.values(), ids=CASES)
def test_a_change_is_published(
    shop: Shop, orders: Any, change: Callable[[Any], Any], expected: list[tuple[str, bytes, Any]]
) -> None:
    with captured_records(shop.alias) as records, shop.atomic():
        change(orders)
    found = [(record.topic, record.key, record.value) for record in records]
    assert found == [
        (topic, key, json.dumps(value).encode() if isinstance(value, dict) else value) for topic, key, value in expected
    ]


def test_a_record_is_visible_exactly_if_its_row_is_committed(shop: Shop, orders: Any) -> None:
    shop.emulator.create_topic("orders")
    with shop.atomic():
        orders.create(number=2, item="sock")
        with pytest.raises(OrdinaryError), shop.atomic():
            orders.create(number=3, item="sock")
            raise OrdinaryError
    with pytest.raises(OrdinaryError), shop.atomic():
        orders.get(number=1).delete()
        raise OrdinaryError
    orders.get(number=2).delete()  # in a transaction of its own, by Django
    with pytest.raises(IllegalStateError, match=r"nothing was written.* `with transaction.atomic\(\)`"):
        orders.create(number=4, item="sock")
    with pytest.raises(IllegalStateError):
        GiftOrder.objects.using(shop.alias).create(number=4, item="sock")
    assert list(orders.values_list("number", flat=True)) == [1]
    visible = committed_values(shop.emulator.bootstrap_servers, "orders")
    assert visible == [json.dumps(of(2, "sock")).encode(), None]


def test_a_row_without_its_record_is_not_committed(shop: Shop, orders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes from a function of the application, after Django has written the row, and is swallowed."""
    monkeypatch.setattr("dualwrite.recipes.django.publishing.json.dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(TransactionDoomedError), shop.atomic(), suppress(ZeroDivisionError):
        orders.create(number=2, item="sock")
    with shop.atomic(), suppress(ZeroDivisionError), shop.atomic():
        orders.create(number=3, item="sock")
    assert list(orders.values_list("number", flat=True)) == [1]


def test_an_error_after_the_commit_is_none_of_a_block_that_may_be_repeated(shop: Shop, orders: Any) -> None:
    def refuse() -> None:
        shop.emulator.faults.add(Fault(api="Produce", action=Error("invalid_record"), count=None))
        with shop.atomic():
            send("mail", "thanks", using=shop.alias)

    with pytest.raises(DualWriteError) as raised, shop.atomic():
        orders.create(number=2, item="sock")
        transaction.on_commit(refuse, using=shop.alias)
    assert not may_be_repeated(raised.value)
    assert orders.filter(number=2).exists()


class Abstract(models.Model):
    class Meta:
        abstract = True


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        (Abstract, {}, "not for Abstract"),
        (RushOrder, {}, "not for RushOrder"),
        (Order, {"on": "delete"}, "takes one or more of"),
        (Order, {"key": "nr"}, "names 'nr'"),
    ],
)
def test_a_declaration_that_cannot_be_meant(model: type[models.Model], arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        publish("orders", **arguments)(model)
    assert published == []


def test_a_model_on_a_database_without_dual_writes(postgres_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.recipes.django.checks.published", OF_THIS_FILE)
    found = [(message.id, message.msg) for message in run_checks(tags=["dualwrite"])]
    assert [number for number, _ in found] == ["dualwrite.E005"] * 3
    assert "django.Order has @publish, and its database 'default'" in found[0][1]
    with override_settings(DUALWRITE=42):
        assert "dualwrite.E001" in {message.id for message in run_checks(tags=["dualwrite"])}
    monkeypatch.setattr("django.db.router.db_for_write", lambda model: postgres_shop.alias)
    assert run_checks(tags=["dualwrite"]) == []
