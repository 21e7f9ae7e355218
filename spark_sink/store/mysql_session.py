"""A stretch of a MySQL session in which values are stored as they are given, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

_EXACT: Final = (
    "SET @dw_sql_mode = @@SESSION.sql_mode, @dw_time_zone = @@SESSION.time_zone, "
    "SESSION sql_mode = CONCAT_WS(',', NULLIF(@@SESSION.sql_mode, ''), 'STRICT_ALL_TABLES'), "
    "SESSION time_zone = '+00:00'"
)
_AS_BEFORE: Final = "SET SESSION sql_mode = @dw_sql_mode, SESSION time_zone = @dw_time_zone"


@contextmanager
def exact_values(conn: sa.Connection) -> Iterator[None]:
    """On MySQL, refuse what would be cut off or replaced (strict mode), and read timestamps as UTC.

    Other databases always refuse, and get a zone with each timestamp. A session that was lost needs nothing back.
    """
    if conn.dialect.name not in ("mysql", "mariadb"):
        yield
        return
    conn.exec_driver_sql(_EXACT)
    try:
        yield
    finally:
        if not conn.invalidated:
            conn.exec_driver_sql(_AS_BEFORE)
