"""Tests of the shop. They need a PostgreSQL and no Kafka of yours."""

from django.conf import settings
from django.db import connection
from django.test import TestCase, TransactionTestCase, override_settings

from dualwrite.broker_emulator import DropReply, Emulator, Fault
from dualwrite.recipes.django.testing import captured_records
from dualwrite.testing.forgotten_rows import forget_rows

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


class PublishedOrderTests(TransactionTestCase):
    """Real dual writes: one database, without the rows of the tests before, and a broker for each test."""

    def setUp(self):
        """Start a broker."""
        forget_rows(connection.new_engine())
        self.kafka = self.enterContext(Emulator())
        shop = settings.DUALWRITE["default"] | {"bootstrap_servers": self.kafka.bootstrap_servers}
        self.enterContext(override_settings(DUALWRITE={"default": shop}))

    def test_a_lost_answer_doubles_nothing(self):
        """Kafka has committed, and its answer never arrives."""
        Item.objects.create(name="lamp", stock=1)
        lost = self.kafka.faults.add(Fault(api="EndTxn", action=DropReply()))
        response = self.client.put("/orders/1/", LAMP, content_type="application/json")
        assert (response.status_code, lost.hits) == (201, 1)
        assert [record.value for record in self.kafka.records("orders")] == [b'{"item": "lamp"}']

    def test_an_order_is_published(self):
        """On another broker than that of the test before."""
        Item.objects.create(name="lamp", stock=1)
        self.client.put("/orders/1/", LAMP, content_type="application/json")
        assert len(self.kafka.records("orders")) == 1
