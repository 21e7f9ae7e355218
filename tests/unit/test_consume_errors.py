"""The errors of a step that blame its records, and those that pass."""

from __future__ import annotations

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from dualwrite.errors import (
    AbortableError,
    FencedError,
    InvalidRecordError,
    KafkaTimeoutError,
    OutcomeUnknown,
    PoolTimeoutError,
    RowLockTimeoutError,
    TransactionTooLargeError,
)
from dualwrite.recipes.consume.steps import blames_records, is_transient


def of_postgres(sqlstate: str) -> sa.exc.DBAPIError:
    said = psycopg.errors.lookup(sqlstate)("said")
    return sa.exc.DBAPIError.instance("UPDATE", {}, said, psycopg.Error)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "blamed", "passes"),
    [
        (ValueError("bad"), True, False),
        (of_postgres("23505"), True, False),
        (of_postgres("22001"), True, False),
        (of_postgres("55P03"), False, True),
        (pymysql.err.OperationalError(1205, "Lock wait timeout"), False, True),
        (pymysql.err.DataError(1406, "Data too long"), True, False),
        (ConnectionResetError(), False, True),
        (RowLockTimeoutError("locked"), False, True),
        (PoolTimeoutError("none free"), False, False),
        (FencedError("another"), False, False),
        (KafkaTimeoutError("no answer"), False, False),
        (OutcomeUnknown("?", transactional_id="t", prepared_state=""), False, False),
        (AbortableError("no", error_code=10), True, False),
        (AbortableError("no", error_code=18), True, False),
        (AbortableError("no", error_code=87), True, False),
        (AbortableError("no", error_code=120), False, False),
        (AbortableError("no"), False, False),
        (InvalidRecordError("no bytes"), True, False),
        (TransactionTooLargeError("more"), True, False),
    ],
)
def test_errors_blame_the_records_or_pass(error: Exception, blamed: bool, passes: bool) -> None:
    assert (blames_records(error), is_transient(error)) == (blamed, passes)


def test_the_cause_of_an_error_counts() -> None:
    """A handler may wrap an error of the database, a serializer one of its registry."""
    mine = RuntimeError("could not write")
    mine.__cause__ = of_postgres("40P01")
    refused = InvalidRecordError("the serializer failed")
    refused.__cause__ = ConnectionRefusedError()
    assert [blames_records(mine), blames_records(refused)] == [False, False]
