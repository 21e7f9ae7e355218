"""The testing tools for applications: `captured_records()` in a TestCase, and where the database commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import ConfigError, IllegalStateError, InvalidRecordError, TransactionDoomedError
from dualwrite.recipes.django import send
from dualwrite.recipes.django.pools import close_pools
from dualwrite.recipes.django.testing import captured_records
from dualwrite.testing.postgres import PostgresServer
from tests.crash.scenario import OrdinaryError
from tests.django.project import Shop, add_alias, drop_alias
from tests.support.databases import event_bodies, unique
from tests.support.topics import read_topic


@contextmanager
def a_test_case(shop: Shop) -> Iterator[None]:
    """Do the work of `TestCase` around a test."""
    atomic: Any = transaction.atomic(using=shop.alias)
    atomic._from_testcase = True
    with atomic:
        yield
        transaction.set_rollback(True, using=shop.alias)


def values(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


def test_in_a_test_case_records_share_the_fate_of_their_savepoints(shop: Shop) -> None:
    with a_test_case(shop):
        with shop.atomic():
            shop.put(1)
        with captured_records(shop.alias) as records:
            with shop.atomic():
                shop.put(2)
                with pytest.raises(OrdinaryError), shop.atomic():
                    shop.put(3)
                    raise OrdinaryError
            with captured_records(shop.alias) as inner, shop.atomic(durable=True):
                shop.put(4)
        assert values(records) == [b"2", b"4"]
        assert values(inner) == [b"4"]
        with captured_records(shop.alias) as none:
            pass
        assert none == []
    assert shop.written() == []
    assert shop.emulator.transactions() == []


def test_in_a_test_case_a_savepoint_may_undo_all_that_was_sent(shop: Shop) -> None:
    with a_test_case(shop):
        with captured_records(shop.alias) as records:
            with pytest.raises(OrdinaryError), shop.atomic():
                shop.put(1)
                raise OrdinaryError
            with shop.atomic():
                shop.put(2)
        assert values(records) == [b"2"]


def test_in_a_test_case_a_block_that_could_not_commit_is_an_error(shop: Shop) -> None:
    with a_test_case(shop), pytest.raises(TransactionDoomedError), captured_records(shop.alias), shop.atomic():
        with pytest.raises(InvalidRecordError):
            send("", "x", using=shop.alias)


def test_a_copy_of_the_test_database_has_ids_of_its_own(postgres_server: PostgresServer, emulator: Emulator) -> None:
    """As for `manage.py test --parallel`, after a migration that publishes; with `--keepdb` it is there already."""
    emulator.create_topic("copied")
    alias, url = unique("copied"), postgres_server.create_database(unique("copied").replace("-", "_"))
    add_alias(alias, url, {"bootstrap_servers": emulator.bootstrap_servers})
    connection: Any = connections[alias]

    def publish(value: str) -> None:
        with transaction.atomic(using=alias):
            send("copied", value, "k", using=alias)

    publish("in a migration")
    for value, keepdb in (("first run", False), ("second run", True)):
        connection.creation.clone_test_db("1", verbosity=0, autoclobber=True, keepdb=keepdb)
        connection.settings_dict["NAME"] = connection.creation.get_test_db_clone_settings("1")["NAME"]
        publish(value)
        close_pools(alias)
        connection.close()
        connection.settings_dict["NAME"] = url.database
    values = [value for _, value in read_topic(emulator.bootstrap_servers, "copied")]
    assert values == ["in a migration", "first run", "second run"]
    drop_alias(alias)


def test_captured_records_never_reach_kafka(shop: Shop) -> None:
    with captured_records(shop.alias) as records:
        with shop.atomic():
            shop.put(1)
        with pytest.raises(OrdinaryError), shop.atomic():
            shop.put(2)
            raise OrdinaryError
    assert values(records) == [b"1"]
    assert event_bodies(shop.database) == ["1"]
    assert shop.emulator.transactions() == []


def test_records_of_other_threads_are_captured_too(shop: Shop) -> None:
    def request() -> None:
        with shop.atomic():
            shop.put(1)
        connections[shop.alias].close()

    with captured_records(shop.alias) as records:
        thread = threading.Thread(target=request)
        thread.start()
        thread.join()
    assert values(records) == [b"1"]


def test_outside_of_the_capture_dual_writes_are_real(shop: Shop) -> None:
    with captured_records(shop.alias):
        pass
    with shop.atomic():
        shop.put(1)
    assert shop.written() == ["1"]


def test_the_transaction_of_a_test_case_is_not_committed_without_its_records(shop: Shop) -> None:
    atomic: Any = transaction.atomic(using=shop.alias)
    atomic._from_testcase = True
    with pytest.raises(IllegalStateError, match="TransactionTestCase"), atomic:
        shop.put(1)
    assert shop.written() == []


def test_in_a_test_case_a_dual_write_that_cannot_begin_and_is_swallowed_is_an_error(shop: Shop) -> None:
    from django.conf import settings

    held = settings.DUALWRITE.pop(shop.alias)
    with a_test_case(shop), pytest.raises(TransactionDoomedError), captured_records(shop.alias):
        with pytest.raises(ConfigError):
            send(shop.topic, "1", using=shop.alias)
    settings.DUALWRITE[shop.alias] = held
