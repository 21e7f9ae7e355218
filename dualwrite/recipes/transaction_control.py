"""What a written-out statement does to the transaction around it: end it, or set, release or go back to a savepoint."""

from __future__ import annotations

import re
from typing import Final

from dualwrite.recipes.record_buffer import RecordBuffer

_LEADING: Final = r"(?:\s|--[^\n]*|/\*(?:[^*]|\*(?!/))*+\*/)*+"  # what may stand before the first word

# ROLLBACK TO SAVEPOINT does not end the transaction.
_ENDS_TRANSACTION: Final = re.compile(
    _LEADING + r"(?:COMMIT|END|ABORT|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)|PREPARE\s+TRANSACTION)\b",
    re.IGNORECASE,
)

_SAVEPOINT: Final = re.compile(
    _LEADING
    + r"(?P<verb>SAVEPOINT|RELEASE(?:\s+SAVEPOINT)?|ROLLBACK\s+(?:(?:WORK|TRANSACTION)\s+)?TO(?:\s+SAVEPOINT)?)"
    r"\s+(?P<name>\"(?:[^\"]|\"\")+\"|[^\s;]+)",
    re.IGNORECASE,
)


# What MySQL and MariaDB commit before, with no word: DDL above all, but not that of temporary tables.
_COMMITS_IN_MYSQL: Final = re.compile(
    _LEADING
    + r"(?:(?:ALTER|RENAME|TRUNCATE|GRANT|REVOKE|BEGIN|START|LOCK|UNLOCK|ANALYZE|CACHE|CHECK|FLUSH|OPTIMIZE|REPAIR"
    r"|RESET|INSTALL|UNINSTALL|LOAD\s+INDEX|SET\s+PASSWORD|SET\s+(?:(?:SESSION|LOCAL)\s+|@@(?:(?:SESSION|LOCAL)\.)?)?AUTOCOMMIT)"
    r"|(?:CREATE|DROP)(?!\s+(?:OR\s+REPLACE\s+)?TEMPORARY))\b",
    re.IGNORECASE,
)


def ends_transaction(statement: str) -> bool:
    """Whether it ends the whole transaction."""
    return _ENDS_TRANSACTION.match(statement) is not None


def commits_in_mysql(statement: str) -> bool:
    """Whether MySQL and MariaDB would commit the transaction before they carry it out."""
    return _COMMITS_IN_MYSQL.match(statement) is not None


def is_of_savepoint(statement: str) -> bool:
    """Whether it sets, releases or goes back to a savepoint."""
    return _SAVEPOINT.match(statement) is not None


def follow_savepoint(statement: str, records: RecordBuffer) -> None:
    """Let the records follow what `statement`, which was carried out, did to a savepoint."""
    savepoint = _SAVEPOINT.match(statement)
    if savepoint is None:
        return
    verb, name = savepoint["verb"].upper(), _unquoted(savepoint["name"])
    if verb == "SAVEPOINT":
        records.savepoint(name)
    elif verb.startswith("RELEASE"):
        records.release_savepoint(name)
    else:
        records.roll_back_to_savepoint(name)


def _unquoted(name: str) -> str:
    """As SQL compares names: `S` is `s` and `"s"`."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
