"""Examine a database once for missing guarantees, by the rules of `dualwrite/decisions/database_safety.py`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Final

import sqlalchemy as sa

from dualwrite.decisions.database_safety import (
    MYSQL_SETTINGS_QUERY,
    OF_DIALECT,
    POSTGRES_NAMES,
    POSTGRES_SETTINGS_QUERY,
    Answers,
    Finding,
    answer_for,
    execution_option,
)

# The dialects of the engines that were examined, which the engines that a writer makes of the application's share.
_examined: weakref.WeakSet[sa.Dialect] = weakref.WeakSet()


def examine(engine: sa.Engine, accepted: Collection[str], accepted_by: Callable[[str], str] = execution_option) -> None:
    """Log weak guarantees, and raise UnsafeDatabaseError for missing ones, unless `accepted` names them.

    Runs once for each engine of the application; the names are those of `checked_names`. `accepted_by` returns the
    setting that accepts a name.
    """
    dialect = engine.dialect.name
    if engine.dialect in _examined or dialect not in OF_DIALECT:
        return
    answer_for(OF_DIALECT[dialect]({"host": engine.url.host or ""}), accepted, accepted_by)
    with engine.connect() as connection:
        answer_for(findings_of(connection), accepted, accepted_by)
    _examined.add(engine.dialect)


def findings_of(connection: sa.Connection) -> list[Finding]:
    """Return the promises that the database cannot keep; none of a dialect without rules."""
    dialect = connection.dialect.name
    if dialect not in OF_DIALECT:
        return []
    return OF_DIALECT[dialect]({"host": connection.engine.url.host or "", **_SETTINGS_OF[dialect](connection)})


def file_of(connection: sa.Connection) -> str:
    """Return the file of the SQLite database; empty for a database in memory."""
    (main,) = (row for row in connection.exec_driver_sql("PRAGMA database_list") if row[1] == "main")
    return str(main[2] or "")


def _of_postgres(connection: sa.Connection) -> Answers:
    row = connection.exec_driver_sql(POSTGRES_SETTINGS_QUERY).one()
    return {name: str(value) for name, value in zip(POSTGRES_NAMES, row, strict=True) if value is not None}


def _of_mysql(connection: sa.Connection) -> Answers:
    return {str(name).lower(): str(value) for name, value in connection.exec_driver_sql(MYSQL_SETTINGS_QUERY)}


def _of_sqlite(connection: sa.Connection) -> Answers:
    journals = {
        str(name): str(connection.exec_driver_sql(f'PRAGMA "{name}".journal_mode').scalar())
        for _, name, file in connection.exec_driver_sql("PRAGMA database_list").all()
        if name == "main" or file  # the others are in memory, where nothing outlives a crash
    }
    answers = {"journal_mode": journals.pop("main"), "file": file_of(connection)}
    is_wal = "wal" in journals.values()
    return answers | {"attached": ", ".join(journals), "attached_journal_mode": "wal" if is_wal else ""}


_SETTINGS_OF: Final[Mapping[str, Callable[[sa.Connection], Answers]]] = {
    "postgresql": _of_postgres,
    "mysql": _of_mysql,
    "mariadb": _of_mysql,
    "sqlite": _of_sqlite,
}
"""Read the settings of a database, by dialect."""
