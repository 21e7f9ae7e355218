"""The effect of SQL text on the transaction around it, by dialect."""

from __future__ import annotations

import pytest

from dualwrite.errors import IllegalStateError, TransactionEndedInsideError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.sql.transaction_control import (
    MYSQL,
    POSTGRES,
    SQLITE,
    Effect,
    Grammar,
    control_of,
    postgres_savepoint,
)

ALL = (POSTGRES, MYSQL, SQLITE)


def effects(text: str, grammar: Grammar) -> list[Effect]:
    return [step.effect for step in control_of(text, grammar).steps]


def names(text: str, grammar: Grammar = POSTGRES) -> list[str]:
    control = control_of(text, grammar)
    control.assert_may_be_sent(text)
    return [step.text for step in control.steps]


@pytest.mark.parametrize("grammar", ALL)
@pytest.mark.parametrize(
    "text",
    [
        "COMMIT",
        " rollback;",
        "END",
        "Abort",
        "ROLLBACK AND CHAIN",
        "ROLLBACK WORK AND NO CHAIN",
        "commit and chain",
        "PREPARE TRANSACTION 'x'",
        ";COMMIT; BEGIN",
        "/* one */ /* two */ COMMIT",
        "-- one\nCOMMIT",
        "\ufeffCOMMIT",
        "COMMIT/* so */",
        "ROLLBACK/**/WORK",
    ],
)
def test_these_end_it_everywhere(text: str, grammar: Grammar) -> None:
    assert Effect.END in effects(text, grammar)
    with pytest.raises(TransactionEndedInsideError, match="not executed"):
        control_of(text, grammar).assert_may_be_sent(text)


@pytest.mark.parametrize("text", ["RESET ALL", " reset /* ; */ all;", "SELECT 1; RESET ALL", "/* */ RESET ALL"])
def test_a_reset_of_all_settings_would_take_the_mark_away(text: str) -> None:
    assert effects(text, POSTGRES) == [Effect.UNMARK]
    with pytest.raises(IllegalStateError, match="reset settings by their names"):
        control_of(text, POSTGRES).assert_may_be_sent(text)
    assert not effects("RESET search_path; ALTER ROLE r RESET ALL", POSTGRES)
    with pytest.raises(TransactionEndedInsideError):
        control_of("RESET ALL; COMMIT", POSTGRES).assert_may_be_sent("RESET ALL; COMMIT")


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        ("SELECT 1; ROLLBACK; BEGIN", POSTGRES),
        ("SELECT 1;;\n COMMIT AND CHAIN", POSTGRES),
        ("SELECT ';'; /* ; */ COMMIT", POSTGRES),
        ("/* one /* two */ one */ COMMIT", POSTGRES),
        ("SELECT 1; /* one /* two */ one */ COMMIT", POSTGRES),
        ("-- one\rCOMMIT", POSTGRES),
        ("SELECT $a$ ; $b$ $a$; COMMIT", POSTGRES),
        ("SELECT a$b$; COMMIT; SELECT a$b$", POSTGRES),
        (r"SELECT E'\''; COMMIT", POSTGRES),
        ("SELECT E'a'\n'\\''; COMMIT", POSTGRES),
        (r"SELECT 'C:\'; COMMIT", POSTGRES),
        ("SELECT 1; COMMIT", MYSQL),
        ("/* one /* two */ COMMIT", MYSQL),
        ("# one\nCOMMIT", MYSQL),
        ("SELECT 1; CREATE TABLE t (id INT)", MYSQL),
        ("SET @a = 1, autocommit = 1", MYSQL),
        ("SET @@session.autocommit := 1", MYSQL),
        ("SET STATEMENT max_statement_time = 1 FOR COMMIT", MYSQL),
        ("XA END 'x'", MYSQL),
        ("IF 1 THEN COMMIT; END IF", MYSQL),
        (r"SELECT 'it\'s'; COMMIT", MYSQL),
    ],
)
def test_these_end_it_there(text: str, grammar: Grammar) -> None:
    assert Effect.END in effects(text, grammar)


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        ("SELECT 1; COMMIT '", POSTGRES),
        ("SELECT 1; /* COMMIT", POSTGRES),
        ("SELECT 1; /* /* */ COMMIT", POSTGRES),
        ("COMMIT $$", POSTGRES),
        (r"SELECT 'a\'; COMMIT; SELECT '", POSTGRES),
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END", POSTGRES),
        ("SAVEPOINT s t", POSTGRES),
        ("SAVEPOINT", POSTGRES),
        ('SAVEPOINT U&"s"', POSTGRES),
        ("SAVEPOINT É", POSTGRES),
        (f'SAVEPOINT "{"é" * 60}"', POSTGRES),
        ("/*!50000 COMMIT */", MYSQL),
        ("/*!99999 SELECT */ COMMIT", MYSQL),
        ("SELECT 1 /*M!100100 ; */ COMMIT", MYSQL),
        ("REPEAT COMMIT; UNTIL 1 END REPEAT", MYSQL),
        ("again: REPEAT COMMIT; UNTIL 1 END REPEAT", MYSQL),
        ("SAVEPOINT é", MYSQL),
    ],
)
def test_what_is_not_understood_is_refused(text: str, grammar: Grammar) -> None:
    assert effects(text, grammar) == [Effect.UNCLEAR]
    with pytest.raises(IllegalStateError, match="is unclear"):
        control_of(text, grammar).assert_may_be_sent(text)


@pytest.mark.parametrize("grammar", ALL)
@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES ('COMMIT')",
        "INSERT INTO t VALUES ('; COMMIT')",
        "INSERT INTO t VALUES ('it''s; COMMIT; ')",
        'SELECT "a; COMMIT; b" FROM t',
        "SELECT 1 /* ; COMMIT; */",
        "SELECT 1; -- ; COMMIT;",
        "SELECT commit FROM rollback",
        "UPDATE begin SET savepoint = 1;",
        "WITH a AS (SELECT 1) (SELECT * FROM a)",
        "(SELECT 1)",
        "",
        " ;; ",
    ],
)
def test_these_do_nothing_to_it(text: str, grammar: Grammar) -> None:
    assert effects(text, grammar) == []


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        ("SELECT $$; COMMIT; $$", POSTGRES),
        ("SELECT $a$; $$ COMMIT; $a$; SELECT 1", POSTGRES),
        (r"SELECT E'it\'s; COMMIT; '", POSTGRES),
        ("SELECT 1 /* /* */ ; COMMIT */", POSTGRES),
        ("PREPARE s AS SELECT 1", POSTGRES),
        ("BEGIN", POSTGRES),
        ("CREATE TABLE t (id int); DROP TABLE t", POSTGRES),
        ("DO $$ BEGIN PERFORM 1; END $$", POSTGRES),
        ("SET TRANSACTION READ ONLY", POSTGRES),
        ("commitments", POSTGRES),
        ("SELECT `a; COMMIT` FROM t", MYSQL),
        ('SELECT "a; COMMIT" FROM t', MYSQL),
        (r"INSERT INTO t VALUES ('it\'s; COMMIT')", MYSQL),
        ("SELECT 1--1; SELECT 2", MYSQL),
        ("SELECT /*! STRAIGHT_JOIN */ 1", MYSQL),
        ("CREATE TRIGGER a AFTER INSERT ON t BEGIN UPDATE t SET x = 1; END", SQLITE),
        ("SELECT [a; COMMIT] FROM t", SQLITE),
        ("BEGIN IMMEDIATE", SQLITE),
    ],
)
def test_these_do_nothing_to_it_there(text: str, grammar: Grammar) -> None:
    assert effects(text, grammar) == []


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (id INT)",
        "create or replace table t (id INT)",
        "  /* why */ DROP TABLE t",
        "-- why\nALTER TABLE t ADD c INT",
        "TRUNCATE t",
        "RENAME TABLE t TO u",
        "BEGIN",
        "START TRANSACTION",
        "LOCK TABLES t WRITE",
        "LOAD INDEX INTO CACHE t",
        "SET autocommit = 1",
        "SET @@session.autocommit = 1",
        "SET SESSION autocommit=1",
        "SET PASSWORD = 'x'",
        "GRANT SELECT ON t TO u",
    ],
)
def test_these_commit_in_mysql(text: str) -> None:
    assert effects(text, MYSQL) == [Effect.END]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TEMPORARY TABLE t (id INT)",
        "CREATE /* why */ TEMPORARY TABLE t (id INT)",
        "CREATE OR REPLACE TEMPORARY TABLE t (id INT)",
        "DROP TEMPORARY TABLE t",
        "INSERT INTO t VALUES ('CREATE TABLE')",
        "SELECT 1 FROM t FOR UPDATE",
        "SET SESSION innodb_lock_wait_timeout = 3",
        "SET @a = @@autocommit",
        "LOAD DATA INFILE 'x' INTO TABLE t",
        "UPDATE begin SET x = 1",
    ],
)
def test_these_do_not_commit_in_mysql(text: str) -> None:
    assert effects(text, MYSQL) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SAVEPOINT s--comment", ["s"]),
        ("SAVEPOINT s/* c */;", ["s"]),
        ('SAVEPOINT "S"', ["S"]),
        ("SAVEPOINT S", ["s"]),
        ('SAVEPOINT "a""b;c"', ['a"b;c']),
        ("ROLLBACK WORK TO SAVEPOINT s", ["s"]),
        ("ROLLBACK TO savepoint", ["savepoint"]),
        ("RELEASE s", ["s"]),
        ("SAVEPOINT a; SELECT 1; ROLLBACK TO b; RELEASE SAVEPOINT c", ["a", "b", "c"]),
        (f"SAVEPOINT {'x' * 64}", ["x" * 63]),
        ("SAVEPOINT é", ["é"]),
    ],
)
def test_names_of_savepoints(text: str, found: list[str]) -> None:
    assert names(text) == found


def test_names_of_savepoints_elsewhere() -> None:
    assert names("SAVEPOINT `S`", MYSQL) == names('savepoint "s"', MYSQL) == names("SAVEPOINT [S]", SQLITE) == ["s"]
    assert postgres_savepoint("é" * 40) == "é" * 31


def test_several_statements_are_followed_in_their_order() -> None:
    records = RecordBuffer()
    records.send("t", b"1")
    control_of("SAVEPOINT a; SELECT 1", POSTGRES).follow(records)
    records.send("t", b"2")
    control = control_of("SAVEPOINT b; ROLLBACK TO a; RELEASE a", POSTGRES)
    control.follow(records)
    assert control.may_be_half_done
    assert [entry.value for entry in records] == [b"1"]  # type: ignore[union-attr]
    assert not control_of("SAVEPOINT a;", POSTGRES).may_be_half_done
