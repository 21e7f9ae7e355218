"""Which statements MySQL and MariaDB commit before."""

from __future__ import annotations

import pytest

from dualwrite.recipes.transaction_control import commits_in_mysql, is_of_savepoint


@pytest.mark.parametrize(
    "statement",
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
        "SET autocommit = 1",
        "SET @@session.autocommit = 1",
        "SET SESSION autocommit=1",
        "GRANT SELECT ON t TO u",
    ],
)
def test_these_commit(statement: str) -> None:
    assert commits_in_mysql(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TEMPORARY TABLE t (id INT)",
        "CREATE OR REPLACE TEMPORARY TABLE t (id INT)",
        "DROP TEMPORARY TABLE t",
        "INSERT INTO t VALUES ('CREATE TABLE')",
        "SELECT 1 FROM t FOR UPDATE",
        "SET SESSION innodb_lock_wait_timeout = 3",
        "SAVEPOINT s",
        "UPDATE begin SET x = 1",
    ],
)
def test_these_do_not(statement: str) -> None:
    assert not commits_in_mysql(statement)


def test_statements_of_savepoints() -> None:
    assert all(is_of_savepoint(text) for text in ("SAVEPOINT s", "RELEASE SAVEPOINT s", "ROLLBACK TO SAVEPOINT s"))
    assert not is_of_savepoint("ROLLBACK")
