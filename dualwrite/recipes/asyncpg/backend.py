"""PostgreSQL through asyncpg as a backend of the writers."""

from __future__ import annotations

from typing import Any

from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.asyncpg.connections import connections_beside, connections_from
from dualwrite.recipes.asyncpg.transaction import AsyncpgDatabase
from dualwrite.recipes.capabilities import BackendName
from dualwrite.recipes.postgres.backend import Driver
from dualwrite.recipes.postgres.connections import Connections


class AsyncpgDriver(Driver):
    """asyncpg; `wait_ms` limits the wait for a connection of an exhausted pool (None: no limit)."""

    name = BackendName.ASYNCPG
    connection_name = "an asyncpg.Connection"

    def __init__(self, *, wait_ms: int | None) -> None:
        self._wait_ms = wait_ms

    def is_connection(self, bind: Any) -> bool:
        return driver.is_connection(bind)

    def connections_from(self, source: Any, *, most_kept: int) -> Connections:
        return connections_from(source, most_kept=most_kept, wait_ms=self._wait_ms)

    def connections_beside(self, source: Any, *, most_kept: int) -> Connections:
        return connections_beside(source, most_kept=most_kept)

    def database(self, connections: Connections, **options: Any) -> AsyncpgDatabase:
        return AsyncpgDatabase(connections, **options)
