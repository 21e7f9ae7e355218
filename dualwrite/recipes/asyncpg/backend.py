"""PostgreSQL through asyncpg as a backend of the writers."""

from __future__ import annotations

from typing import Any, Final

from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.asyncpg.connections import connections_beside, connections_from
from dualwrite.recipes.asyncpg.transaction import AsyncpgDatabase
from dualwrite.recipes.capabilities import BackendName
from dualwrite.recipes.postgres.backend import Driver
from dualwrite.recipes.postgres.connections import Connections


class AsyncpgDriver(Driver):
    """asyncpg."""

    name = BackendName.ASYNCPG
    connection_name = "an asyncpg.Connection"

    def is_connection(self, bind: Any) -> bool:
        return driver.is_connection(bind)

    def connections_from(self, source: Any, *, most_kept: int) -> Connections:
        return connections_from(source, most_kept=most_kept)

    def connections_beside(self, source: Any, *, most_kept: int) -> Connections:
        return connections_beside(source, most_kept=most_kept)

    def database(self, connections: Connections, **options: Any) -> AsyncpgDatabase:
        return AsyncpgDatabase(connections, **options)


ASYNCPG: Final = AsyncpgDriver()
