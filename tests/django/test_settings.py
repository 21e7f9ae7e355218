"""`manage.py check`, the settings, the migration and the command."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from django.conf import settings
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections, transaction

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.django import send
from dualwrite.testing.postgres import PostgresServer
from tests.django.project import Shop, add_alias, drop_alias, shop_on
from tests.support.databases import Database, unique


def messages() -> dict[str, str]:
    return {str(message.id): message.msg for message in run_checks(tags=["dualwrite"])}


def test_settings_that_are_right(shop: Shop) -> None:
    assert messages() == {}


def use_another_engine(shop: Shop) -> None:
    connections[shop.alias].close()
    del connections[shop.alias]
    connections.settings[shop.alias]["ENGINE"] = engine_of_django(shop)


def engine_of_django(shop: Shop) -> str:
    return str(connections.settings[shop.alias]["ENGINE"]).replace("dualwrite.recipes.django", "django.db.backends")


MISTAKES: list[tuple[Callable[[Shop], object], str, str]] = [
    (lambda shop: settings.DUALWRITE.update(ghost={}), "dualwrite.E002", "'ghost', which is not in DATABASES"),
    (use_another_engine, "dualwrite.E003", "does not support dual writes"),
    (lambda shop: settings.DUALWRITE[shop.alias].update(bootstrap_severs="x"), "dualwrite.E004", "bootstrap_servers"),
    (lambda shop: settings.DUALWRITE[shop.alias].update(max_writers=0), "dualwrite.E004", "max_writers"),
    (lambda shop: settings.DUALWRITE[shop.alias].update(delivery=None), "dualwrite.E004", "delivery takes"),
    (lambda shop: settings.DUALWRITE[shop.alias].update(transactional_id="a"), "dualwrite.E004", "transactional_id"),
    (lambda shop: settings.DUALWRITE.update({shop.alias: "127.0.0.1:9092"}), "dualwrite.E004", "dict of dicts"),
    (lambda shop: settings.DUALWRITE.pop(shop.alias), "dualwrite.W001", "has no entry for it"),
]


@pytest.mark.parametrize(
    ("mistake", "number", "words"), MISTAKES, ids=lambda value: value if str(value) == value else ""
)
def test_a_mistake_is_a_sentence(shop: Shop, mistake: Callable[[Shop], object], number: str, words: str) -> None:
    held, engine = dict(settings.DUALWRITE), connections.settings[shop.alias]["ENGINE"]
    try:
        mistake(shop)
        found = messages()
        assert list(found) == [number]
        assert words in found[number]
    finally:
        settings.DUALWRITE.clear()
        settings.DUALWRITE.update(held)
        connections.settings[shop.alias]["ENGINE"] = engine
        del connections[shop.alias]


def test_settings_for_development_alone(postgres_shop: Shop) -> None:
    def found() -> list[str | None]:
        return [message.id for message in run_checks(tags=["dualwrite"], include_deployment_checks=True)]

    assert found() == ["dualwrite.W003", "dualwrite.W004"]
    settings.DUALWRITE[postgres_shop.alias].update(create_table=False, security_protocol="SSL")
    assert found() == []


_WITHOUT_THE_APP = """
import django
from django.conf import settings
from django.core.management import call_command
settings.configure(
    DATABASES={"default": {"ENGINE": "dualwrite.recipes.django.postgresql"}},
    DUALWRITE={"default": {"bootstrap_servers": "127.0.0.1:9092"}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
)
django.setup()
call_command("check")
"""


def test_the_settings_are_checked_without_the_app() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_THE_APP], capture_output=True, text=True, check=True)
    assert "(dualwrite.W002) 'dualwrite.recipes.django' is not in INSTALLED_APPS" in done.stderr


def test_a_setting_that_is_no_dict(shop: Shop) -> None:
    held = settings.DUALWRITE
    settings.DUALWRITE = ["default"]
    assert list(messages()) == ["dualwrite.E001"]
    settings.DUALWRITE = held


def tables(database: Database) -> set[str]:
    return set(sa.inspect(database.aside).get_table_names()) - {"events", "django_migrations"}


@pytest.mark.parametrize("schema", [None, "other"])
def test_the_migration_makes_the_tables(store: Database, emulator: Emulator, schema: str | None) -> None:
    """A writer that may create none finds them."""
    if schema is not None:
        schema = unique("other").replace("-", "_")
        with store.aside.begin() as connection:
            connection.execute(sa.schema.CreateSchema(schema))
    given: dict[str, Any] = {"create_table": False, "schema": schema}
    with shop_on(store, emulator, dualwrite=given) as shop:
        for target in ([], ["zero"], []):
            call_command("migrate", "dualwrite", *target, database=shop.alias, verbosity=0)
        made = set(sa.inspect(store.aside).get_table_names(schema=schema)) - {"events", "django_migrations"}
        assert made == {"kafka_transaction_state", "kafka_transaction_database", "kafka_transaction_lease"}
        with shop.atomic():
            shop.put(1)
        assert shop.written() == ["1"]


def test_other_databases_get_no_tables(store: Database, shop: Shop) -> None:
    connections.settings["plain"] = {**connections.settings[shop.alias], "ENGINE": engine_of_django(shop)}
    call_command("migrate", "dualwrite", database="plain", verbosity=0)
    assert tables(store) == set()
    connections["plain"].close()
    del connections.settings["plain"], connections["plain"]


@pytest.mark.parametrize("backend", ["dualwrite.recipes.django.postgresql", "tests.django.engine"])
def test_a_test_database_is_dropped_although_the_pool_has_connections_to_it(
    postgres_server: PostgresServer, emulator: Emulator, backend: str
) -> None:
    name = unique("test").replace("-", "_")
    given = {"bootstrap_servers": emulator.bootstrap_servers}
    add_alias("tested", postgres_server.create_database(name), given, ENGINE=backend)
    emulator.create_topic("tested")
    with transaction.atomic(using="tested"):
        send("tested", "x", using="tested")
    connections["tested"].close()
    connections["tested"].creation._destroy_test_db(name, verbosity=0)  # type: ignore[attr-defined]
    with sa.create_engine(postgres_server.url, poolclass=sa.NullPool).connect() as connection:
        assert name not in connection.scalars(sa.text("SELECT datname FROM pg_database")).all()
    drop_alias("tested")


def test_the_command_finds_nothing_open(shop: Shop) -> None:
    with shop.atomic():
        shop.put(1)
    said = io.StringIO()
    call_command("dualwrite_recover", "--database", shop.alias, "--topic", shop.topic, stdout=said)
    assert said.getvalue() == "0 found, 0 left, 1 settled\n"


def test_the_command_without_such_a_database() -> None:
    with pytest.raises(CommandError, match="'ghost' is not in DATABASES") as raised:
        call_command("dualwrite_recover", database="ghost")
    assert raised.value.returncode == 2


def test_a_changed_setting_is_used_by_the_next_transaction(shop: Shop) -> None:
    from django.test import override_settings

    with shop.atomic():
        shop.put(1)
    before = shop.pool
    with override_settings(DUALWRITE={shop.alias: {**settings.DUALWRITE[shop.alias], "prefix": unique("other")}}):
        with shop.atomic():
            write = shop.put(2)
        assert str(write.transactional_id).startswith("other-")
    assert shop.pool is not before
    assert shop.written() == ["1", "2"]
