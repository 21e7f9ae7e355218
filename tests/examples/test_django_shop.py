"""The shop with Django: its own tests, its commands, and that kills between its responses lose and double nothing."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.examples.django_shop import Shop


@pytest.fixture
def shop(postgres_server: PostgresServer, emulator: Emulator) -> Shop:
    return Shop(postgres_server, emulator)


def test_the_tests_of_the_shop_pass(shop: Shop) -> None:
    assert "Ran 6 tests" in shop.done("test")


def test_the_commands_of_the_shop_run(shop: Shop) -> None:
    assert "no issues" in shop.done("check")
    assert "No changes detected" in shop.done("makemigrations", "--check")
    shop.done("migrate")
    tables = {name for (name,) in shop.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'kafka_%'")}
    assert tables == {"kafka_transaction_state", "kafka_transaction_database", "kafka_transaction_lease"}
    assert "0 found, 0 left, 0 settled" in shop.done("dualwrite_recover", "--apply")
