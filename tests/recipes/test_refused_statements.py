"""Statements that concern the transaction of a block, through every door: one table of cases, and their outcomes.

The last tests compare the reading of texts with the servers': none that ends a transaction is let through.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import psycopg
import pymysql
import pytest
from pymysql.constants import CLIENT

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import TransactionDoomedError, TransactionEndedInsideError
from dualwrite.outcome import Outcome, outcome_of
from dualwrite.recipes.sql.transaction_control import (
    MYSQL,
    POSTGRES,
    SQLITE,
    Grammar,
    Refused,
    Savepoint,
    Step,
    effect_of,
)
from dualwrite.testing.postgres import PostgresServer
from tests.crash.psycopg_scenario import conninfo_of
from tests.recipes.doors import DOORS, opened_door
from tests.recipes.faces import Door
from tests.support.databases import MariaDbDatabase, PostgresDatabase
from tests.support.servers.mariadb import MariaDbServer

# ---- the table ------------------------------------------------------------------------------------------------------

_ON_POSTGRES: Final = tuple(door for door in DOORS if not any(other in door for other in ("mariadb", "sqlite")))
_SEVERAL: Final = tuple(door for door in _ON_POSTGRES if door != "asyncio asyncpg")
"""Doors whose driver sends several statements in a text, and marks its transactions."""
_ON_MARIADB: Final = tuple(door for door in DOORS if "mariadb" in door)
_ON_SQLITE: Final = tuple(door for door in DOORS if "sqlite" in door)

REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "COMMIT": DOORS,
    " rollback;": DOORS,
    "END": DOORS,
    "Abort": DOORS,
    "ROLLBACK WORK": DOORS,
    "commit and chain": DOORS,
    "ROLLBACK AND CHAIN": DOORS,
    "/* why */ -- not\nCOMMIT": DOORS,
    "PREPARE TRANSACTION 'x'": (*_ON_POSTGRES, *_ON_MARIADB),
    "RESET ALL": _ON_POSTGRES,
    "SELECT 1; ROLLBACK; BEGIN": (*_ON_POSTGRES, *_ON_MARIADB),
    ";COMMIT; BEGIN": DOORS,
    "/* /* */ */ ROLLBACK AND CHAIN": _ON_POSTGRES,
    "SELECT $$;$$; COMMIT": _ON_POSTGRES,
    "SAVEPOINT a; SAVEPOINT b": _ON_POSTGRES,
    "COMMIT\0'": _ON_POSTGRES,
    "SELECT '\0'; COMMIT": _ON_MARIADB,
    "CREATE TABLE other (id int)": _ON_MARIADB,
    "TRUNCATE events": _ON_MARIADB,
    "LOCK TABLES events READ": _ON_MARIADB,
    "BEGIN": _ON_MARIADB,
    "SET autocommit = 1": _ON_MARIADB,
    "EXECUTE IMMEDIATE 'ROLLBACK AND CHAIN'": _ON_MARIADB,
    "BEGIN NOT ATOMIC COMMIT; END": _ON_MARIADB,
    "/*! COMMIT */": _ON_MARIADB,
}
"""Refused before they are sent."""

FAIL: Final[dict[str, tuple[str, ...]]] = {
    "DO $$ BEGIN COMMIT; END $$": _ON_POSTGRES,
    "DISCARD ALL": _ON_POSTGRES,
    "BEGIN": _ON_SQLITE,
    "VACUUM": _ON_SQLITE,
    "INSERT OR ROLLBACK INTO events VALUES (1, 'k', '1')": _ON_SQLITE,
}
"""Sent, and refused by the server, whose error the block raises."""

FOUND_AT_THE_END: Final[dict[str, tuple[str, ...]]] = {
    "DO $$ BEGIN EXECUTE 'RESET ALL'; END $$": _SEVERAL,
    "RESET dualwrite.transaction": _SEVERAL,
    "SET LOCAL dualwrite.transaction = 'another'": _SEVERAL,
    "CALL ends()": _ON_MARIADB,
}
"""Sent, and found by the last statement, which cannot tell what became permanent before: only a procedure of MySQL."""

PART_OF_IT: Final[dict[str, tuple[str, ...]]] = {
    "BEGIN": _ON_POSTGRES,
    "CREATE TABLE other (id int)": (*_ON_POSTGRES, *_ON_SQLITE),
    "DROP TABLE other": (*_ON_POSTGRES, *_ON_SQLITE),
    "DO $$ BEGIN PERFORM 1; END $$": _ON_POSTGRES,
    "RESET search_path": _ON_POSTGRES,
    "CREATE TEMPORARY TABLE other (id int)": _ON_MARIADB,
    "DROP TEMPORARY TABLE other": _ON_MARIADB,
    "SET STATEMENT max_statement_time = 9 FOR SELECT 1": _ON_MARIADB,
    "SET @a = @@sql_mode": _ON_MARIADB,
    "SELECT 'COMMIT'": DOORS,
    "SELECT '; COMMIT; '": DOORS,
    "/* COMMIT; */ SELECT 1 -- ; ROLLBACK;": DOORS,
    'SELECT 1 AS "; COMMIT"': DOORS,
}
"""Sent, and decided with the rest."""


def cases(table: dict[str, tuple[str, ...]], door: str) -> list[str]:
    return [text for text, doors in table.items() if door in doors]


def having(table: dict[str, tuple[str, ...]]) -> list[str]:
    return [door for door in DOORS if cases(table, door)]


@pytest.fixture
def door(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[Door]:
    with opened_door(request.param, request, emulator, tmp_path) as made:
        yield made


@pytest.mark.parametrize("door", DOORS, indirect=True)
def test_a_refused_statement_is_not_sent_and_dooms_the_block(door: Door) -> None:
    for text in cases(REFUSED, door.name):
        with pytest.raises(TransactionDoomedError), door.block() as block:
            block.put(1)
            with pytest.raises(TransactionEndedInsideError, match="not executed"):
                block.execute(text)
            block.put(2)
        assert (door.rows, door.records) == ([], []), text
    with pytest.raises(TransactionEndedInsideError, match="neither database nor Kafka is changed") as caught:
        with door.block() as block:
            block.put(1)
            block.execute("COMMIT")
    assert outcome_of(caught.value) is Outcome.ROLLED_BACK or "django" in door.name
    assert (door.rows, door.records) == ([], [])


@pytest.mark.parametrize("door", having(FAIL), indirect=True)
def test_a_statement_refused_by_the_server_ends_the_block(door: Door) -> None:
    for text in cases(FAIL, door.name):
        with pytest.raises(door.database_error), door.block() as block:
            block.put(1)
            block.execute(text)
        assert (door.rows, door.records) == ([], []), text


@pytest.mark.parametrize("door", having(FOUND_AT_THE_END), indirect=True)
def test_an_end_of_the_transaction_found_late_leaves_no_records(door: Door) -> None:
    is_committed = "mariadb" in door.name
    if is_committed:
        with door.database.aside.begin() as connection:
            connection.exec_driver_sql("CREATE PROCEDURE ends() COMMIT")
    for text in cases(FOUND_AT_THE_END, door.name):
        with pytest.raises(TransactionEndedInsideError, match="only changes that a COMMIT made permanent") as caught:
            with door.block() as block:
                block.put(1)
                block.execute(text)
                block.send(2)
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        assert (door.rows, door.records) == (["1"] if is_committed else [], []), text


@pytest.mark.parametrize("door", DOORS, indirect=True)
def test_a_statement_that_ends_no_transaction_is_part_of_the_block(door: Door) -> None:
    with door.block() as block:
        block.put(1)
        for text in cases(PART_OF_IT, door.name):
            block.execute(text)
        block.put(2)
    assert (door.rows, door.records) == (["1", "2"], ["1", "2"])


@pytest.mark.parametrize("door", DOORS, indirect=True)
def test_records_go_with_the_savepoint_in_which_they_were_sent(door: Door) -> None:
    with door.block() as block:
        block.put(1)
        block.execute("/* why */ SAVEPOINT Mine")
        block.put(2)
        block.execute("ROLLBACK TO SAVEPOINT mine")
        block.put(3)
        block.execute("-- why\nrollback to mine;")
        block.put(4)
        block.execute("SAVEPOINT other")
        block.put(5)
        block.execute("RELEASE SAVEPOINT other")
        block.execute("SAVEPOINT other")
        block.put(6)
        block.execute("ROLLBACK WORK TO mine" if "sqlite" not in door.name else "ROLLBACK TRANSACTION TO mine")
        block.put(7)
    assert (door.rows, door.records) == (["1", "7"], ["1", "7"])


# ---- texts as the servers read them ---------------------------------------------------------------------------------

_BLANKS: Final = (
    " ",
    " ",
    " ",
    "\n",
    "/**/",
    "/* ; COMMIT */",
    "/* ' */",
    "-- '\n",
    "--;\r",
    '# "\n',
    "/* /* */ */",
    "/*!*/",
)
_INSIDE: Final = (
    "a",
    " ",
    ";",
    "''",
    '""',
    "``",
    "\\",
    "\\'",
    '\\"',
    "$$",
    "$a$",
    "/*",
    "*/",
    "--",
    "#",
    "; COMMIT;",
    "\n",
    "é",
)
_QUOTES: Final = (("'", "'"), ("'", "'"), ('"', '"'), ("E'", "'"), ("$$", "$$"), ("$a$", "$a$"), ("`", "`"), ("[", "]"))
_STATEMENTS: Final = (
    *("SELECT @", "SELECT 1 AS @", "SELECT @ , @", "SELECT a$a$", "SET @x = 1", "DO 1", "SELECT 1--1", "(SELECT 1)"),
    *("COMMIT", "END", "ROLLBACK", "ABORT", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "RESET ALL", "SAVEPOINT s"),
    *("SAVEPOINT @", 'SAVEPOINT "S"', "RELEASE s", "ROLLBACK TO s", "SET autocommit = 1", "BEGIN", "DROP TABLE @"),
    *("SET STATEMENT max_statement_time = 1 FOR COMMIT", "EXECUTE IMMEDIATE 'COMMIT'", "IF 1 THEN COMMIT; END IF", ""),
)


def texts(count: int) -> Iterator[str]:
    """Yield texts of one to three statements, which the servers understand often enough."""
    chance = random.Random(32)
    for _ in range(count):
        statements = []
        for _ in range(chance.randint(1, 3)):
            text = chance.choice(_STATEMENTS)
            while "@" in text and "@x" not in text:
                opening, closing_ = chance.choice(_QUOTES)
                inside = "".join(chance.choice(_INSIDE) for _ in range(chance.randint(1, 3)))
                text = text.replace("@", opening + inside.replace("@", "") + closing_, 1)
            blank = chance.choice(_BLANKS)
            statements.append(blank + text.replace(" ", chance.choice(_BLANKS), 1))
        yield ";".join(statements)


def assert_none_is_missed(
    grammar: Grammar, begin: Callable[[], object], send: Callable[[str], object], goes_on: Callable[[], bool]
) -> None:
    """Send texts, each in a transaction of its own; `goes_on` tells whether that is not over yet."""
    ended = savepoints = harmless = 0
    for text in texts(1_500):
        effect = effect_of(text, grammar)
        begin()
        try:
            send(text)
        except (psycopg.Error, pymysql.Error, sqlite3.Error, sqlite3.Warning):
            pass
        else:
            harmless += effect is None
            if isinstance(effect, Savepoint) and effect.step is Step.SET:
                savepoints += 1
                quote = "`" if grammar is MYSQL else '"'
                send(f"ROLLBACK TO SAVEPOINT {quote}{effect.name.replace(quote, quote * 2)}{quote}")
        if not goes_on():
            ended += 1
            assert isinstance(effect, Refused), text
    assert min(ended, savepoints, harmless) > 5, (ended, savepoints, harmless)


@pytest.mark.parametrize("conforming", ["on", "off"])
def test_postgres_ends_no_transaction_by_a_text_that_is_let_through(
    postgres_server: PostgresServer, conforming: str
) -> None:
    database = PostgresDatabase(postgres_server)
    with psycopg.connect(conninfo_of(database.url), autocommit=True) as connection:
        libpq = connection.pgconn
        libpq.exec_(f"SET standard_conforming_strings = {conforming}; SET escape_string_warning = off".encode())

        def begin() -> None:
            libpq.exec_(b"ROLLBACK")
            libpq.exec_(b"BEGIN; SET LOCAL dualwrite.transaction = 'this'")

        def send(text: str) -> None:
            answer = libpq.exec_(text.encode())
            if answer.error_message:
                raise psycopg.Error(answer.error_message)

        def goes_on() -> bool:
            if libpq.transaction_status == psycopg.pq.TransactionStatus.INERROR:
                return True
            mark = libpq.exec_(b"SELECT current_setting('dualwrite.transaction', true)").get_value(0, 0)
            return mark == b"this" and libpq.transaction_status == psycopg.pq.TransactionStatus.INTRANS

        assert_none_is_missed(POSTGRES, begin, send, goes_on)
    database.close()


@pytest.mark.parametrize("mode", ["", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES"])
def test_mariadb_ends_no_transaction_by_a_text_that_is_let_through(mariadb_server: MariaDbServer, mode: str) -> None:
    database = MariaDbDatabase(mariadb_server)
    options = database.url.get_dialect()().create_connect_args(database.url)[1]
    with closing(pymysql.connect(**options, client_flag=CLIENT.MULTI_STATEMENTS)) as connection:
        cursor = connection.cursor()
        cursor.execute(f"SET sql_mode = '{mode}'")

        def send(text: str) -> None:
            cursor.execute(text)
            while cursor.nextset():
                pass

        def begin() -> None:
            send("ROLLBACK; SET autocommit = 0; SAVEPOINT dualwrite_test")

        def goes_on() -> bool:
            try:
                send("RELEASE SAVEPOINT dualwrite_test")
            except pymysql.Error:
                return False
            return True

        assert_none_is_missed(MYSQL, begin, send, goes_on)
    database.close()


def test_sqlite_ends_no_transaction_by_a_text_that_is_let_through() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)

    def begin() -> None:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        connection.execute("BEGIN")

    assert_none_is_missed(
        SQLITE, begin, lambda text: connection.execute(text).fetchall(), lambda: connection.in_transaction
    )
    connection.close()
