"""Engines whose connections prepare nothing on the server.

Behind PgBouncer in transaction mode, psycopg's name of a prepared statement may stand for one of another client, which
would be executed.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def prepare_nothing(engine: sa.Engine) -> None:
    """Let connections that `engine` makes from now on prepare nothing, where they are psycopg's."""
    if engine.dialect.name == "postgresql" and engine.dialect.driver in ("psycopg", "psycopg_async"):
        sa.event.listen(engine, "connect", _on_connect)


def _on_connect(connection: object, record: sa.pool.ConnectionPoolEntry) -> None:
    driver: Any = record.driver_connection
    driver.prepare_threshold = None
