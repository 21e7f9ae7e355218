"""`transaction.atomic()` as a dual write: savepoints, callbacks, errors, and an application's interference."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress

import django
import pytest
import sqlalchemy as sa
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Direct
from dualwrite.errors import (
    ConfigError,
    IllegalStateError,
    InvalidRecordError,
    OutcomeUnknown,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.outcome import Outcome, outcome_of
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.django import current_dual_write, send
from dualwrite.recipes.django.testing import captured_records
from tests.crash.scenario import AtPoint, OrdinaryError
from tests.django.project import INSERT, Shop, shop_on
from tests.recipes.away import kafka_away
from tests.recipes.pools import drop_idle_connections
from tests.support.conditions import until
from tests.support.databases import Database, MariaDbDatabase, PostgresDatabase, event_bodies
from tests.support.servers.mariadb import MariaDbServer
from tests.support.topics import read_topic


def execute(shop: Shop, sql: str) -> None:
    with connections[shop.alias].cursor() as cursor:
        cursor.execute(sql)


def test_both_sides_are_changed_by_one_block(shop: Shop) -> None:
    with shop.atomic():
        write = shop.put(1)
        assert event_bodies(shop.database) == []
    assert write.outcome is Outcome.COMMITTED
    assert write.transactional_id == f"django-{shop.alias}-0"
    assert shop.written() == ["1"]


def test_an_exception_undoes_both(shop: Shop) -> None:
    with pytest.raises(OrdinaryError), shop.atomic():
        write = shop.put(1)
        raise OrdinaryError
    assert write.outcome is Outcome.ROLLED_BACK
    with shop.atomic():
        shop.put(2)
    assert shop.written() == ["2"]


def test_a_block_without_records_costs_nothing(shop: Shop) -> None:
    with shop.atomic():
        shop.insert(1)
    assert event_bodies(shop.database) == ["1"]
    with shop.atomic():
        assert not [name for name in vars(connections[shop.alias].connection) if "dualwrite" in name]
    assert shop.emulator.transactions() == []


def test_outside_of_a_block_a_record_is_refused(shop: Shop) -> None:
    with pytest.raises(IllegalStateError, match=r"with transaction.atomic\(\)"):
        send(shop.topic, "x", using=shop.alias)
    with shop.atomic():
        shop.put(1)
    with pytest.raises(IllegalStateError, match="outside a transaction"):
        send(shop.topic, "x", using=shop.alias)
    assert shop.written() == ["1"]


# ---- savepoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_sends_outside", [True, False])
def test_an_inner_block_that_fails_drops_its_records(shop: Shop, first_sends_outside: bool) -> None:
    """If nothing was sent outside, the dual write itself began inside, and is undone with the savepoint."""
    with shop.atomic():
        if first_sends_outside:
            shop.put(1)
        with pytest.raises(OrdinaryError), shop.atomic():
            shop.put(2)
            with shop.atomic():
                shop.put(3)
            raise OrdinaryError
        with shop.atomic():
            shop.put(4)
        if not first_sends_outside:
            shop.put(5)
    assert shop.written() == (["1", "4"] if first_sends_outside else ["4", "5"])


def test_only_inner_blocks_that_fail_leave_an_ordinary_transaction(shop: Shop) -> None:
    with shop.atomic():
        shop.insert(1)
        with pytest.raises(OrdinaryError), shop.atomic():
            shop.put(2)
            raise OrdinaryError
    assert event_bodies(shop.database) == ["1"]
    assert shop.emulator.transactions() == []


def test_a_handle_from_before_the_savepoint_that_was_undone_loses_nothing_silently(shop: Shop) -> None:
    with pytest.raises(TransactionEndedInsideError), shop.atomic():
        with pytest.raises(OrdinaryError), shop.atomic():
            handle = shop.put(1)
            raise OrdinaryError
        handle.send(shop.topic, "2")
    assert shop.written() == []


def test_a_cursor_from_before_the_first_record_is_followed(shop: Shop) -> None:
    with shop.atomic(), connections[shop.alias].cursor() as cursor:
        shop.put(1)
        cursor.execute("SAVEPOINT literal")
        shop.put(2)
        cursor.execute("ROLLBACK TO literal")
    assert shop.written() == ["1"]


def test_a_savepoint_from_before_the_first_record_undoes_all(shop: Shop) -> None:
    with shop.atomic(), connections[shop.alias].cursor() as cursor:
        cursor.execute("SAVEPOINT literal")
        shop.put(1)
        cursor.execute("ROLLBACK TO literal")
        shop.put(2)
    assert shop.written() == ["2"]


# ---- errors that are swallowed --------------------------------------------------------------------------------------


def test_a_statement_error_that_is_swallowed_dooms_the_block(shop: Shop) -> None:
    callbacks: list[str] = []
    with pytest.raises(TransactionDoomedError), shop.atomic():
        shop.put(1)
        shop.on_commit(lambda: callbacks.append("ran"))
        with pytest.raises(IntegrityError):
            shop.insert(1)
    with shop.atomic():
        shop.put(2)
    assert callbacks == []
    assert shop.written() == ["2"]


def test_a_refused_record_in_an_inner_block_that_fails_is_forgiven(shop: Shop) -> None:
    with shop.atomic():
        shop.put(1)
        with pytest.raises(InvalidRecordError), shop.atomic():
            send("", "x", using=shop.alias)
    assert shop.written() == ["1"]


@contextmanager
def without_settings(shop: Shop) -> Iterator[None]:
    from django.conf import settings

    held = settings.DUALWRITE.pop(shop.alias)
    yield
    settings.DUALWRITE[shop.alias] = held


@contextmanager
def with_a_database_that_refuses_the_pool(shop: Shop) -> Iterator[None]:
    """Django's own connection is there already; those of the pool are refused."""
    from dualwrite.recipes.django.pools import close_pools

    connections[shop.alias].ensure_connection()
    close_pools(shop.alias)
    held = connections[shop.alias].settings_dict["NAME"]
    connections[shop.alias].settings_dict["NAME"] = "no_such_database"
    yield
    connections[shop.alias].settings_dict["NAME"] = held


Trouble = Callable[[Shop], AbstractContextManager[None]]
TROUBLES: dict[Trouble, type[Exception]] = {
    without_settings: ConfigError,
    with_a_database_that_refuses_the_pool: OperationalError,
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_dual_write_that_cannot_begin_dooms_the_block(shop: Shop, trouble: Trouble) -> None:
    callbacks: list[str] = []
    with pytest.raises(TransactionDoomedError) as raised, shop.atomic():
        shop.insert(1)
        shop.on_commit(lambda: callbacks.append("ran"))
        with trouble(shop), pytest.raises(TROUBLES[trouble]) as swallowed:
            send(shop.topic, "1", using=shop.alias)
        with pytest.raises(OrdinaryError), shop.atomic():
            raise OrdinaryError
        shop.put(2)
    assert raised.value.__cause__ is swallowed.value
    with shop.atomic():
        shop.put(3)
    assert callbacks == []
    assert shop.written() == ["3"]


def test_a_doomed_block_that_has_lost_its_connection(shop: Shop) -> None:
    with pytest.raises(TransactionDoomedError), shop.atomic():
        shop.insert(1)
        with without_settings(shop), pytest.raises(ConfigError):
            send(shop.topic, "1", using=shop.alias)
        shop.database.cut()
    with shop.atomic():
        shop.put(2)
    assert shop.written() == ["2"]


def test_a_dual_write_that_cannot_begin_in_an_inner_block_that_fails_is_forgiven(shop: Shop) -> None:
    with shop.atomic():
        with without_settings(shop), pytest.raises(ConfigError), shop.atomic():
            shop.insert(2)
            with shop.atomic():
                send(shop.topic, "2", using=shop.alias)
        shop.put(3)
    assert shop.written() == ["3"]


def test_with_autocommit_off_a_dual_write_that_cannot_begin_dooms_the_transaction(shop: Shop) -> None:
    transaction.set_autocommit(False, using=shop.alias)
    for end in (
        lambda: transaction.commit(using=shop.alias),
        lambda: transaction.set_autocommit(True, using=shop.alias),
    ):
        shop.insert(1)
        with without_settings(shop), pytest.raises(ConfigError):
            send(shop.topic, "1", using=shop.alias)
        with pytest.raises(TransactionDoomedError):
            end()
        transaction.rollback(using=shop.alias)
    shop.put(2)
    transaction.commit(using=shop.alias)
    transaction.set_autocommit(True, using=shop.alias)
    assert shop.written() == ["2"]


def test_needs_rollback_is_djangos(shop: Shop) -> None:
    with shop.atomic():
        shop.put(1)
        with pytest.raises(OrdinaryError), shop.atomic(savepoint=False):
            raise OrdinaryError
        with pytest.raises(TransactionManagementError):
            send(shop.topic, "x", using=shop.alias)
    assert shop.written() == []
    with shop.atomic():
        shop.put(2)
        transaction.set_rollback(True, using=shop.alias)
    assert shop.written() == []


# ---- statements past Django -----------------------------------------------------------------------------------------


def test_a_literal_end_in_an_inner_block_dooms_the_outer_block(shop: Shop) -> None:
    with pytest.raises(TransactionDoomedError), shop.atomic():
        with pytest.raises(TransactionEndedInsideError), shop.atomic():
            shop.put(1)
            execute(shop, "COMMIT")
        shop.insert(2)
    assert shop.written() == []


@pytest.mark.parametrize("method", ["commit", "rollback"])
def test_the_end_is_not_the_drivers_to_call(shop: Shop, method: str) -> None:
    with pytest.raises(TransactionDoomedError), shop.atomic():
        shop.put(1)
        with pytest.raises(TransactionEndedInsideError):
            getattr(connections[shop.alias].connection, method)()
    assert shop.written() == []


def test_an_end_past_the_driver_too_is_found_by_the_mark(postgres_shop: Shop) -> None:
    """The committed rows stay, without their records, and the error says so."""
    with pytest.raises(TransactionEndedInsideError), postgres_shop.atomic():
        postgres_shop.put(1)
        connections[postgres_shop.alias].connection.pgconn.exec_(b"ROLLBACK; BEGIN")
        postgres_shop.insert(2)
    assert postgres_shop.written() == []


def test_djangos_own_ends_are_refused_inside(shop: Shop) -> None:
    with shop.atomic():
        shop.put(1)
        for end in (transaction.commit, transaction.rollback):
            with pytest.raises(TransactionManagementError):
                end(using=shop.alias)
        with pytest.raises(TransactionManagementError):
            transaction.set_autocommit(True, using=shop.alias)
    assert shop.written() == ["1"]


@pytest.mark.parametrize("of_driver", [False, True])
def test_a_connection_that_is_closed_inside(shop: Shop, of_driver: bool) -> None:
    """Django ends such a block without an error, and the database rolls back; closed past Django, it is an error."""

    def write_and_close() -> None:
        with shop.atomic():
            shop.put(1)
            connection = connections[shop.alias]
            (connection.connection if of_driver else connection).close()

    if of_driver:
        with pytest.raises(TransactionEndedInsideError):
            write_and_close()
    else:
        write_and_close()
    assert shop.written() == []
    with shop.atomic():
        shop.put(2)
    assert shop.written() == ["2"]


def test_an_interruption_right_after_the_dual_write_has_begun(shop: Shop) -> None:
    """As by a signal before the connection has noted it: closing the connection rolls back."""
    with pytest.raises(OrdinaryError), shop.atomic():
        shop.put(1)
        connections[shop.alias]._dual_write = None  # type: ignore[attr-defined]
        raise OrdinaryError
    with shop.atomic():
        shop.put(2)
    assert shop.written() == ["2"]


# ---- MySQL alone ----------------------------------------------------------------------------------------------------


@pytest.fixture
def mysql_shop(mariadb_server: MariaDbServer, emulator: Emulator) -> Iterator[Shop]:
    database = MariaDbDatabase(mariadb_server)
    with shop_on(database, emulator) as made:
        yield made
    database.close()


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK", "CREATE TABLE other (id int)", "SET autocommit = 1"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_end_past_the_cursors_is_found_by_the_mark(mysql_shop: Shop, sql: str, goes_on: bool) -> None:
    """The committed rows stay, without their records, and the error says so."""
    with (
        pytest.raises(TransactionEndedInsideError, match="keeps only changes that a COMMIT made permanent"),
        mysql_shop.atomic(),
    ):
        with mysql_shop.atomic():
            send(mysql_shop.topic, "1", using=mysql_shop.alias)
        connections[mysql_shop.alias].connection.query(sql)
        if goes_on:
            send(mysql_shop.topic, "2", using=mysql_shop.alias)
    connections[mysql_shop.alias].close()
    assert mysql_shop.written() == []


def test_values_are_no_statements(mysql_shop: Shop) -> None:
    """The drivers put parameters into the text, where they might look like its end."""
    value = "a'; COMMIT; -- \\"
    with mysql_shop.atomic():
        send(mysql_shop.topic, value, using=mysql_shop.alias)
        with connections[mysql_shop.alias].cursor() as cursor:
            cursor.execute(INSERT, (1, value))
            cursor.executemany("UPDATE events SET event_key = %s WHERE id = %s", [(value, 2), (value, 3)])
            cursor.executemany(INSERT, [(2, value), (3, value)])
        for _ in range(2):
            send(mysql_shop.topic, value, using=mysql_shop.alias)
    assert mysql_shop.written() == [value] * 3


@pytest.mark.parametrize("behind_a_result", [True, False])
@pytest.mark.parametrize("sends_first", [True, False])
def test_a_deadlock_undoes_both(mysql_shop: Shop, sends_first: bool, behind_a_result: bool) -> None:
    """MySQL rolls the whole transaction back then, and would go on in a new one.

    Behind a result the driver reads the error when its cursor is closed, and Django ignores errors of that.
    """
    update = "UPDATE events SET event_key = {} WHERE id = {}"
    execute(mysql_shop, f"CREATE PROCEDURE late(k CHAR, n INT) BEGIN SELECT 1; {update.format('k', 'n')}; END")
    then = "CALL late({}, {})" if behind_a_result else update
    execute(mysql_shop, "INSERT INTO events VALUES (1, 'k', '1'), (2, 'k', '2')")
    locked, met = threading.Barrier(2), []

    def request(first: int, second: int) -> None:
        try:
            with mysql_shop.atomic():
                if sends_first:
                    send(mysql_shop.topic, str(first), using=mysql_shop.alias)
                execute(mysql_shop, update.format(f"'{first}'", first))
                locked.wait(60)
                with suppress(OperationalError):  # of the victim
                    execute(mysql_shop, then.format(f"'{first}'", second))
                if not sends_first:
                    send(mysql_shop.topic, str(first), using=mysql_shop.alias)
        except TransactionDoomedError:
            met.append(first)
            with mysql_shop.atomic():
                send(mysql_shop.topic, "next", using=mysql_shop.alias)
        finally:
            connections[mysql_shop.alias].close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(request, (1, 2), (2, 1)))
    (victim,) = met
    kept = str(3 - victim)
    published = [value for _, value in read_topic(mysql_shop.emulator.bootstrap_servers, mysql_shop.topic)]
    assert sorted(published) == [kept, "next"]
    with mysql_shop.database.aside.connect() as connection:
        assert connection.scalars(sa.text("SELECT event_key FROM events")).all() == [kept, kept]


def time_out_in(shop: Shop) -> None:
    """Wait in vain for a row that another transaction holds, and swallow the error."""
    with shop.database.aside.begin() as other:
        other.exec_driver_sql("UPDATE events SET event_key = 'held' WHERE id = 1")
        execute(shop, "SET SESSION innodb_lock_wait_timeout = 1")
        with pytest.raises(OperationalError, match="1205"):
            execute(shop, "UPDATE events SET event_key = 'late' WHERE id = 1")


def test_a_lock_timeout_that_undoes_its_statement_only_is_the_applications_to_swallow(mysql_shop: Shop) -> None:
    with mysql_shop.atomic():
        mysql_shop.put(1)
    with mysql_shop.atomic():
        mysql_shop.insert(2)
        time_out_in(mysql_shop)
        send(mysql_shop.topic, "2", using=mysql_shop.alias)
    assert mysql_shop.written() == ["1", "2"]


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable", None])
def test_isolation_levels(mariadb_server: MariaDbServer, emulator: Emulator, level: str | None) -> None:
    database = MariaDbDatabase(mariadb_server)
    with shop_on(database, emulator, OPTIONS={"isolation_level": level}) as shop:
        call_command("migrate", "dualwrite", database=shop.alias, verbosity=0)
        for number in range(3):
            with shop.atomic():
                assert len(event_bodies(database)) == number
                execute(shop, "SELECT count(*) FROM events")
                shop.put(number)
        assert shop.written() == ["0", "1", "2"]
    database.close()


# ---- callbacks -------------------------------------------------------------------------------------------------------


def test_callbacks_run_after_the_decision(shop: Shop) -> None:
    seen: list[list[str]] = []
    with shop.atomic():
        shop.put(1)
        shop.on_commit(lambda: seen.append(shop.written()))
        with pytest.raises(OrdinaryError), shop.atomic():
            shop.on_commit(lambda: seen.append(["of a rolled back savepoint"]))
            raise OrdinaryError
        assert seen == []
    assert seen == [["1"]]


def test_a_callback_may_make_a_dual_write(shop: Shop) -> None:
    def follow() -> None:
        with shop.atomic():
            shop.put(2)

    with shop.atomic():
        shop.put(1)
        shop.on_commit(follow)
    assert shop.written() == ["1", "2"]


def test_callbacks_of_a_block_that_could_not_commit_never_run(store: Database, emulator: Emulator) -> None:
    ran: list[int] = []
    strike = AtPoint(PausePoint.AFTER_PREPARE, store.cut)
    with shop_on(store, emulator, pause=strike) as shop:
        with pytest.raises(OperationalError), shop.atomic():
            shop.put(1)
            shop.on_commit(lambda: ran.append(1))
        assert ran == []
        with shop.atomic():
            shop.put(2)
            shop.on_commit(lambda: ran.append(2))
        assert ran == [2]
        assert shop.written() == ["2"]


@contextmanager
def losing(store: Database, emulator: Emulator, lose: Callable[[], None]) -> Iterator[Shop]:
    """Open a shop that loses the commit of its next block."""
    strike = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose)
    with shop_on(store, emulator, pause=strike) as shop:
        shop.pool.recover()  # the background sweeps at its start: it commits nothing after this
        yield shop


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_commit_is_looked_up(store: Database, emulator: Emulator, applied: bool) -> None:
    """Callbacks run if it was carried out, although the connection is gone."""
    ran: list[int] = []
    with losing(store, emulator, lambda: store.lose_commit(applied=applied)) as shop:

        def write() -> None:
            with shop.atomic():
                shop.put(1)
                shop.on_commit(lambda: ran.append(1))

        if applied:
            write()
        else:
            with pytest.raises(DatabaseError):
                write()
        assert shop.written() == ["1"] * applied
        assert ran == [1] * applied
        with shop.atomic():
            shop.put(2)
        assert shop.written() == ["1"] * applied + ["2"]


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_commit_does_not_turn_autocommit_on(store: Database, emulator: Emulator, applied: bool) -> None:
    """Django connects again with autocommit on, where each later statement would commit by itself."""
    with losing(store, emulator, lambda: store.lose_commit(applied=applied)) as shop:
        transaction.set_autocommit(False, using=shop.alias)
        shop.put(1)
        if applied:
            transaction.commit(using=shop.alias)
        else:
            with pytest.raises(DatabaseError):
                transaction.commit(using=shop.alias)
        shop.insert(2)
        transaction.rollback(using=shop.alias)
        shop.put(3)
        transaction.commit(using=shop.alias)
        transaction.set_autocommit(True, using=shop.alias)
        assert shop.written() == ["1"] * applied + ["3"]


@pytest.mark.parametrize("by_signal", [True, False])
def test_autocommit_is_on_in_the_next_request(store: Database, emulator: Emulator, by_signal: bool) -> None:
    """As always in Django, although the connection of the last one is gone by then."""
    with losing(store, emulator, lambda: store.lose_commit(applied=True)) as shop:
        connection = connections[shop.alias]
        transaction.set_autocommit(False, using=shop.alias)
        shop.put(1)
        transaction.commit(using=shop.alias)
        if by_signal:
            connection.close_if_unusable_or_obsolete()
        else:
            connection.close()
        with shop.atomic():
            shop.put(2)
        assert shop.written() == ["1", "2"]


def test_a_connection_that_is_lost_after_the_decision_is_no_error(store: Database, emulator: Emulator) -> None:
    """On MySQL, Django asks the server for autocommit then."""
    ran: list[int] = []
    with shop_on(store, emulator, pause=AtPoint(PausePoint.AFTER_DATABASE_COMMIT, store.cut)) as shop:
        with shop.atomic():
            shop.put(1)
            shop.on_commit(lambda: ran.append(1))
        assert ran == [1]
        connections[shop.alias].close()  # on PostgreSQL, the next statement would find it lost
        with shop.atomic():
            shop.put(2)
        assert shop.written() == ["1", "2"]


def test_without_autocommit_a_later_loss_is_an_error(store: Database, emulator: Emulator) -> None:
    """The error does not belong to the earlier decision."""
    with shop_on(store, emulator) as shop:
        transaction.set_autocommit(False, using=shop.alias)
        shop.put(1)
        transaction.commit(using=shop.alias)
        with pytest.raises(DatabaseError):
            execute(shop, "SELECT 1")
            store.cut()
            transaction.commit(using=shop.alias)
        connections[shop.alias].close()
        assert shop.written() == ["1"]


def test_a_loss_at_the_end_of_no_autocommit_is_an_error(mysql_shop: Shop) -> None:
    """MySQL commits there what came after the last decision."""
    alias = mysql_shop.alias
    transaction.set_autocommit(False, using=alias)
    mysql_shop.put(1)
    transaction.commit(using=alias)
    execute(mysql_shop, "INSERT INTO events VALUES (2, 'k', '2')")
    mysql_shop.database.cut()
    with pytest.raises(DatabaseError):
        transaction.set_autocommit(True, using=alias)
    connections[alias].close()
    assert mysql_shop.written() == ["1"]


@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("applied", [True, False])
def test_outcome_unknown_reaches_the_caller(store: Database, emulator: Emulator, applied: bool) -> None:
    """`atomic()` would connect again, and the error of that would hide the outcome."""
    ran: list[int] = []

    def lose_commit_and_database() -> None:
        drop_idle_connections(shop.pool)
        store.lose_commit(applied=applied)
        store.refuse_new_connections()

    with losing(store, emulator, lose_commit_and_database) as shop:
        with pytest.raises(OutcomeUnknown) as raised, shop.atomic():
            write = shop.put(1)
            shop.on_commit(lambda: ran.append(1))
        assert raised.value.outcome is Outcome.UNKNOWN
        assert ran == []
        store.come_back()
        until(lambda: write.outcome is not None and not shop.pool.status.set_aside)  # Kafka's side comes last
        assert write.outcome is (Outcome.COMMITTED if applied else Outcome.ROLLED_BACK)
        assert shop.written() == ["1"] * applied
        with shop.atomic():
            shop.put(2)
        assert ran == []
        assert shop.written() == ["1"] * applied + ["2"]


def test_callbacks_run_despite_an_interruption_after_the_decision(store: Database, emulator: Emulator) -> None:
    ran: list[int] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    with shop_on(store, emulator, pause=AtPoint(PausePoint.AFTER_DATABASE_COMMIT, interrupt)) as shop:
        with pytest.raises(KeyboardInterrupt) as raised, shop.atomic():
            shop.put(1)
            shop.on_commit(lambda: ran.append(1))
        assert "is committed anyway" in " ".join(raised.value.__notes__)
        assert outcome_of(raised.value) is Outcome.COMMITTED
        assert ran == [1]
        until(lambda: shop.on_each_side() == (["1"], ["1"]))  # the records become readable in the background


def test_a_deferred_constraint_fails_as_djangos_error(postgres_shop: Shop) -> None:
    execute(
        postgres_shop,
        "CREATE TABLE parts (id int PRIMARY KEY, event int REFERENCES events DEFERRABLE INITIALLY DEFERRED)",
    )
    with pytest.raises(IntegrityError) as raised, postgres_shop.atomic():
        postgres_shop.put(1)
        execute(postgres_shop, "INSERT INTO parts VALUES (1, 99)")
    assert outcome_of(raised.value) is Outcome.ROLLED_BACK
    with postgres_shop.atomic():
        postgres_shop.put(2)
    assert postgres_shop.written() == ["2"]


# ---- modes -----------------------------------------------------------------------------------------------------------


def test_autocommit_off(shop: Shop) -> None:
    """The application ends its transactions itself; an atomic block is a savepoint."""
    transaction.set_autocommit(False, using=shop.alias)
    shop.put(1)
    with shop.atomic():
        shop.put(2)
    with pytest.raises(DatabaseError):
        transaction.set_autocommit(True, using=shop.alias)
    transaction.commit(using=shop.alias)
    assert shop.written() == ["1", "2"]
    shop.put(3)
    transaction.rollback(using=shop.alias)
    transaction.set_autocommit(True, using=shop.alias)
    assert shop.written() == ["1", "2"]


def test_without_autocommit_a_record_right_after_a_decision_is_not_dropped(shop: Shop) -> None:
    transaction.set_autocommit(False, using=shop.alias)
    shop.put(1)
    transaction.commit(using=shop.alias)
    send(shop.topic, "2", using=shop.alias)
    with pytest.raises(DatabaseError):
        transaction.set_autocommit(True, using=shop.alias)
    shop.insert(2)
    transaction.commit(using=shop.alias)
    transaction.set_autocommit(True, using=shop.alias)
    assert shop.written() == ["1", "2"]


def write_in_several_requests(shop: Shop, end_request: Callable[[], object]) -> None:
    for number in range(4):
        with shop.atomic():
            shop.put(number)
        end_request()
    with shop.atomic():
        shop.put(9)
        connections[shop.alias].close()  # in the block: the next user of the connection gets it without its watch
    with shop.atomic():
        shop.put(4)
    assert shop.written() == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("is_checked", [True, False])
def test_connections_that_are_kept(store: Database, emulator: Emulator, is_checked: bool) -> None:
    with shop_on(store, emulator, CONN_MAX_AGE=600, CONN_HEALTH_CHECKS=is_checked) as shop:
        before = connections[shop.alias]
        before.ensure_connection()
        of_driver = before.connection
        write_in_several_requests(shop, before.close_if_unusable_or_obsolete)
        assert before.connection is not of_driver  # because it was closed in its block


@pytest.mark.skipif(django.VERSION < (5, 1), reason="Django has pools since 5.1")
def test_connections_of_djangos_pool(postgres: PostgresDatabase, emulator: Emulator) -> None:
    """A connection that Django gives back to its pool is as it was."""
    with shop_on(postgres, emulator, OPTIONS={"pool": {"min_size": 1, "max_size": 2}}) as shop:
        write_in_several_requests(shop, connections[shop.alias].close)
        connections[shop.alias].close_pool()  # type: ignore[attr-defined]


def test_a_connection_that_was_lost_between_two_blocks(store: Database, emulator: Emulator) -> None:
    """The block that meets the loss fails as a whole: it must not go on without a transaction."""
    with shop_on(store, emulator, CONN_MAX_AGE=600) as shop:
        with shop.atomic():
            shop.put(1)
        store.cut()
        with pytest.raises(OperationalError), shop.atomic():
            shop.insert(2)
            raise OrdinaryError
        connections[shop.alias].close()
        assert shop.written() == ["1"]


@pytest.mark.parametrize("binding", [True, False])
def test_cursors_of_both_kinds_and_iterators(postgres: PostgresDatabase, emulator: Emulator, binding: bool) -> None:
    with shop_on(postgres, emulator, OPTIONS={"server_side_binding": binding}) as shop:
        with shop.atomic():
            shop.put(1)
            with connections[shop.alias].chunked_cursor() as cursor:
                cursor.execute("SELECT body FROM events FOR UPDATE")
                assert cursor.fetchall() == [("1",)]
            with connections[shop.alias].cursor() as cursor:
                cursor.executemany("UPDATE events SET event_key = %s WHERE id = %s", [("k", 1), ("k", 2)])
        assert shop.written() == ["1"]


def test_two_databases_decide_apart(store: Database, shop: Shop, emulator: Emulator) -> None:
    with shop_on(store, emulator) as other:
        with other.atomic():
            with pytest.raises(OrdinaryError), shop.atomic():
                shop.put(1)
                other.put(2)
                raise OrdinaryError
        assert event_bodies(store) == ["2"]


def test_an_alias_without_settings_and_a_database_without_dual_writes(shop: Shop) -> None:
    with without_settings(shop), pytest.raises(ConfigError, match="has no entry"), shop.atomic():
        send(shop.topic, "x", using=shop.alias)
    connections.settings["plain"] = {**connections.settings[shop.alias], "ENGINE": "django.db.backends.postgresql"}
    with pytest.raises(ConfigError, match="does not support dual writes"):
        send(shop.topic, "x", using="plain")
    with pytest.raises(ConfigError, match="does not support dual writes"), captured_records("plain"):
        pass
    del connections.settings["plain"], connections["plain"]


async def test_in_an_event_loop(shop: Shop) -> None:
    from asgiref.sync import sync_to_async

    def place() -> None:
        with shop.atomic():
            shop.put(1)
        connections[shop.alias].close()

    with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
        send(shop.topic, "x", using=shop.alias)
    await asyncio.gather(sync_to_async(place)())
    assert shop.written() == ["1"]


def test_while_kafka_is_away_records_may_be_stored(store: Database, emulator: Emulator) -> None:
    """The database has decided then, so callbacks run; the pool publishes when Kafka is back."""
    ran: list[int] = []
    settings = {"delivery": Direct(when_kafka_is_away="store"), "unreachable_timeout_ms": 100}
    with shop_on(store, emulator, dualwrite=settings) as shop:
        with shop.atomic():
            shop.put(1)
        with kafka_away(emulator), shop.atomic():
            write = shop.put(2)
            shop.on_commit(lambda: ran.append(2))
        assert write.outcome is Outcome.STORED
        assert ran == [2]
        until(lambda: len(read_topic(emulator.bootstrap_servers, shop.topic)) == 2)
        assert shop.written() == ["1", "2"]


def test_a_transaction_has_one_handle(shop: Shop) -> None:
    with shop.atomic():
        first = current_dual_write(shop.alias)
        with shop.atomic():
            assert current_dual_write(shop.alias) is first
    assert not [name for name in vars(connections[shop.alias].connection) if "dualwrite" in name]
