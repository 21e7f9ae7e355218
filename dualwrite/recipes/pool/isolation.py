"""When a block of a pool must have its slot: at its end, or before its first statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy as sa

_SEES_NOW = frozenset({"READ COMMITTED", "READ UNCOMMITTED"})


def sees_now(level: str | None) -> bool:
    """Whether each statement of an isolation level sees what is committed by then."""
    return level is not None and level.upper() in _SEES_NOW


def locks_whole_database(dialect: sa.Dialect) -> bool:
    """Who writes excludes everybody else (SQLite), so that no lease can be taken in the middle of a block."""
    return dialect.name == "sqlite"


def keeps_a_snapshot(connection: sa.Connection) -> bool:
    """Whether locking a row that was changed after the transaction began would fail, as from REPEATABLE READ on.

    Not with MySQL's REPEATABLE READ, where a locking read sees the newest state. MariaDB refuses since 11.6
    (innodb_snapshot_isolation).
    """
    level = connection.get_execution_options().get("isolation_level") or connection.default_isolation_level
    if sees_now(level):
        return False
    is_mysql = connection.dialect.name == "mysql" and not getattr(connection.dialect, "is_mariadb", False)
    return not (is_mysql and level == "REPEATABLE READ")
