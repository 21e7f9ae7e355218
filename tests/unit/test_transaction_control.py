"""The names of savepoints in SQL text, and what is not refused needlessly.

`tests/recipes/test_refused_statements.py` has what is refused, and compares the reading of texts with the servers'.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.sql.transaction_control import (
    MYSQL,
    POSTGRES,
    SQLITE,
    Grammar,
    Refused,
    Savepoint,
    checked,
    effect_of,
    postgres_savepoint,
)

ALL = (POSTGRES, MYSQL, SQLITE)


@pytest.mark.parametrize("grammar", ALL)
@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES ('it''s; COMMIT; ')",
        'SELECT "a; COMMIT; b" FROM t',
        "SELECT 1 /* ; COMMIT; */",
        "SELECT 1; -- ; COMMIT;",
        "UPDATE begin SET savepoint = 1;",
        "WITH a AS (SELECT 1) (SELECT * FROM a)",
        "(SELECT 1)",
        "",
        " ;; ",
    ],
)
def test_statements_without_effect_on_the_transaction(text: str, grammar: Grammar) -> None:
    assert effect_of(text, grammar) is None


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        ("SELECT $$; COMMIT; $$", POSTGRES),
        ("SELECT $a$; $$ COMMIT; $a$; SELECT 1", POSTGRES),
        ("SELECT $a$; COMMIT", POSTGRES),
        (r"SELECT E'it\'s; COMMIT; '", POSTGRES),
        ("PREPARE s AS SELECT 1", POSTGRES),
        ("RESET search_path; ALTER ROLE r RESET ALL", POSTGRES),
        ("commitments", POSTGRES),
        ("SELECT `a; COMMIT` FROM t", MYSQL),
        (r"INSERT INTO t VALUES ('it\'s; COMMIT')", MYSQL),
        ("SELECT 1--1; SELECT 2", MYSQL),
        ("SELECT /*! STRAIGHT_JOIN */ 1", MYSQL),
        ("LOAD DATA INFILE 'x' INTO TABLE t", MYSQL),
        ("CREATE /* why */ OR REPLACE TEMPORARY TABLE t (id INT)", MYSQL),
        ("SET SESSION innodb_lock_wait_timeout = 3", MYSQL),
        ("CREATE TRIGGER a AFTER INSERT ON t BEGIN UPDATE t SET x = 1; END", SQLITE),
    ],
)
def test_statements_without_effect_in_that_grammar(text: str, grammar: Grammar) -> None:
    assert effect_of(text, grammar) is None


@pytest.mark.parametrize(
    ("text", "grammar", "why"),
    [
        (r"SELECT 'C:\'; COMMIT", POSTGRES, Refused.COMMIT),
        (r"SELECT 'a\'; COMMIT; SELECT '", POSTGRES, Refused.COMMIT),
        ("SELECT E'a' -- so\n'\\''; COMMIT", POSTGRES, Refused.COMMIT),
        ("SELECT a$b$; COMMIT; SELECT a$b$", POSTGRES, Refused.COMMIT),
        ("SELECT 1; PREPARE /**/ TRANSACTION 'x'", POSTGRES, Refused.PREPARE),
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END", POSTGRES, Refused.COMMIT),
        ("SELECT 1; /* /* */ */ SELECT 2", POSTGRES, Refused.HIDDEN),
        ("SAVEPOINT s t", POSTGRES, Refused.SAVEPOINT),
        ("SAVEPOINT", POSTGRES, Refused.SAVEPOINT),
        ("SAVEPOINT É", POSTGRES, Refused.SAVEPOINT),
        (f'SAVEPOINT "{"é" * 60}"', POSTGRES, Refused.SAVEPOINT),
        ("SELECT 1; SAVEPOINT s", POSTGRES, Refused.SAVEPOINT),
        ("SAVEPOINT `é`", MYSQL, Refused.SAVEPOINT),
        ("SET  PASSWORD = 'x'", MYSQL, Refused.IMPLICIT),
        ("SET @a = 1, PASSWORD = 'x'", MYSQL, Refused.IMPLICIT),
        ("SET @@session.`autocommit` := 1", MYSQL, Refused.IMPLICIT),
        ("SET STATEMENT a = 'FOR SELECT' FOR COMMIT", MYSQL, Refused.IMPLICIT),
        ("LOAD INDEX INTO CACHE t", MYSQL, Refused.IMPLICIT),
        ("again: REPEAT COMMIT; UNTIL 1 END REPEAT", MYSQL, Refused.IMPLICIT),
        ("CREATE /*!50000 TEMPORARY */ TABLE t (id INT)", MYSQL, Refused.HIDDEN),
    ],
)
def test_statements_with_effect_are_refused(text: str, grammar: Grammar, why: Refused) -> None:
    assert effect_of(text, grammar) is why


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SAVEPOINT s--comment", "s"),
        ("SAVEPOINT s/* c */;", "s"),
        ('SAVEPOINT "S"', "S"),
        ("SAVEPOINT S", "s"),
        ('SAVEPOINT "a""b;c"', 'a"b;c'),
        ("ROLLBACK WORK TO SAVEPOINT s", "s"),
        ("ROLLBACK TO savepoint", "savepoint"),
        ("RELEASE s", "s"),
        (f"SAVEPOINT {'X' * 64}", "x" * 63),
        ('SAVEPOINT "é"', "é"),
    ],
)
def test_names_of_savepoints(text: str, name: str) -> None:
    assert name_in(text) == name


def test_names_of_savepoints_elsewhere() -> None:
    assert {name_in("SAVEPOINT `S`", MYSQL), name_in('savepoint "s"', MYSQL), name_in("SAVEPOINT [S]", SQLITE)} == {"s"}
    assert postgres_savepoint("é" * 40) == "é" * 31


def test_records_follow_savepoints() -> None:
    records = RecordBuffer()
    for text in ("1", "SAVEPOINT a", "2", "SAVEPOINT b", "3", "ROLLBACK TO a", "4", "RELEASE a", "ROLLBACK TO z", "5"):
        if text.isdigit():
            records.send("t", text)
        else:
            savepoint = checked(text, POSTGRES)
            assert savepoint is not None
            if text == "ROLLBACK TO z":  # from before the block
                assert [entry.value for entry in records.records] == [b"1", b"4"]
            savepoint.follow(records)
    assert [entry.value for entry in records.records] == [b"5"]


@pytest.mark.parametrize("grammar", ALL)
def test_no_group_has_a_possessive_quantifier(grammar: Grammar) -> None:
    """Python 3.11.0 to 3.11.4, that of Debian 12 included, match it wrongly (CPython #106052)."""
    for pattern in (grammar.harmless, grammar.continues, *grammar.readings):
        assert re.findall(r"[^\\]\)[*+?}]\+", pattern.pattern) == []


_MEMORY = """
import resource
from pathlib import Path
from dualwrite.recipes.sql.transaction_control import MYSQL, POSTGRES, SQLITE, effect_of
for short in {texts!r}:
    text = short.replace("aaa", "a" * 1_000_000).replace("***", "*" * 1_000_000)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 20 * len(text), resource.RLIM_INFINITY))
    try:
        for grammar in (POSTGRES, MYSQL, SQLITE):
            effect_of(text, grammar)
    except MemoryError:
        print(short)
"""
_LONG_PARTS = (
    "/**/ SELECT 'aaa'",
    "/**/ SELECT E'aaa'",
    '/**/ SELECT "aaa"',
    "/**/ SELECT `aaa`",
    "/**/ SELECT [aaa]",
    "/**/ SELECT $x$aaa$x$",
    "/**/ SELECT $aaa$ $aaa$",
    "/**/ SELECT aaa",
    "/*aaa*/ SELECT 1",
    "/*****/ SELECT 1",
    "/*/*aaa*/*/ SELECT 1",
    "-- aaa\nSELECT 1",
    "#aaa\nSELECT 1",
    'SAVEPOINT "aaa"',
    "SAVEPOINT aaa",
)


def test_a_long_part_of_a_text_is_read_in_little_memory() -> None:
    code = _MEMORY.format(texts=_LONG_PARTS)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr, run.returncode) == ("", "", 0)


def name_in(text: str, grammar: Grammar = POSTGRES) -> str:
    effect = effect_of(text, grammar)
    assert isinstance(effect, Savepoint)
    return effect.name
