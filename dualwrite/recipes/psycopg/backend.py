"""PostgreSQL through psycopg as a backend of the writers: the same for threads and for asyncio."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from dualwrite.recipes.capabilities import BackendName
from dualwrite.recipes.postgres.backend import Driver
from dualwrite.recipes.postgres.connections import Connections
from dualwrite.recipes.psycopg.adapter import PsycopgDatabase
from dualwrite.recipes.psycopg.connections import connections_beside, connections_from
from dualwrite.recipes.psycopg.driver import AnyConnection


class PsycopgDriver(Driver):
    """psycopg, with the class of its connections for threads or for asyncio."""

    name = BackendName.PSYCOPG

    def __init__(self, connection_class: type[AnyConnection]) -> None:
        self._connection_class = connection_class
        self.connection_name = f"a psycopg.{connection_class.__name__}"

    def is_connection(self, bind: Any) -> bool:
        return isinstance(bind, self._connection_class)

    def connections_from(self, source: Any, *, most_kept: int) -> Connections:
        return connections_from(source, self._connect, most_kept=most_kept)

    def connections_beside(self, source: Any, *, most_kept: int) -> Connections:
        return connections_beside(source, self._connect, most_kept=most_kept)

    def _connect(self, *arguments: Any, **keywords: Any) -> Any:
        return self._connection_class.connect(*arguments, **keywords)

    def database(self, connections: Connections, **options: Any) -> PsycopgDatabase:
        return PsycopgDatabase(connections, **options)


BLOCKING: Final = PsycopgDriver(psycopg.Connection)
AWAITED: Final = PsycopgDriver(psycopg.AsyncConnection)
