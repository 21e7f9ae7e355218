"""Tests of the shop. They need a PostgreSQL and no Kafka."""

from django.test import TestCase, TransactionTestCase

from dualwrite.recipes.django.testing import captured_records

from .models import Item, Order

LAMP = {"item": "lamp"}


class OrderTests(TestCase):
    """In a transaction that is never committed: quick, and enough for most."""

    @classmethod
    def setUpTestData(cls):
        """Have one lamp."""
        Item.objects.create(name="lamp", stock=1)

    def test_an_order_is_published(self):
        """The records are those that would be published if the transaction were committed."""
        with captured_records() as records:
            response = self.client.put("/orders/1/", LAMP, content_type="application/json")
        assert response.status_code == 201
        assert [(r.topic, r.key, r.value) for r in records] == [("orders", b"1", b'{"item": "lamp"}')]

    def test_sold_out(self):
        """The record of the order that failed was taken back with its savepoint."""
        self.client.put("/orders/1/", LAMP, content_type="application/json")
        with captured_records() as records:
            response = self.client.put("/orders/2/", LAMP, content_type="application/json")
        assert response.status_code == 409
        assert [record.topic for record in records] == ["sold-out"]
        assert Order.objects.count() == 1

    def test_a_repeated_order_publishes_nothing(self):
        """The answer is 200 instead of 201."""
        self.client.put("/orders/1/", LAMP, content_type="application/json")
        with captured_records() as records:
            response = self.client.put("/orders/1/", LAMP, content_type="application/json")
        assert (response.status_code, records) == (200, [])

    def test_it_is_ready(self):
        """Kafka is not asked, so a probe costs nothing."""
        assert self.client.get("/ready/").json() == {"database": True, "kafka": True}


class CommittedOrderTests(TransactionTestCase):
    """With real commits of the database, for tests that depend on them."""

    def test_an_order_is_published(self):
        """Inside `captured_records()` the database commits alone."""
        Item.objects.create(name="lamp", stock=1)
        with captured_records() as records:
            self.client.put("/orders/1/", LAMP, content_type="application/json")
        assert [record.topic for record in records] == ["orders"]
        assert Order.objects.count() == 1
