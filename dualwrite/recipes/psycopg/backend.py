"""PostgreSQL through psycopg as a backend of the writers: the same for threads and for asyncio."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from dualwrite.errors import ConfigError
from dualwrite.recipes.capabilities import BackendName
from dualwrite.recipes.postgres.backend import Driver
from dualwrite.recipes.postgres.connections import Connections
from dualwrite.recipes.psycopg.adapter import PsycopgDatabase
from dualwrite.recipes.psycopg.connections import connections_beside, connections_from
from dualwrite.recipes.psycopg.driver import AnyConnection


class PsycopgDriver(Driver):
    """psycopg, with the class of its connections for threads or for asyncio."""

    name = BackendName.PSYCOPG

    def __init__(self, connection_class: type[AnyConnection], prepare_threshold: int | None = None) -> None:
        """Set the class of connections, and their psycopg setting `prepare_threshold`."""
        self._connection_class = connection_class
        self._prepare_threshold = prepare_threshold
        self.connection_name = f"a psycopg.{connection_class.__name__}"

    def preparing(self, prepare_threshold: Any) -> PsycopgDriver:
        """Return a driver whose connections prepare a statement after so many executions; None: never.

        Raises ConfigError.
        """
        is_number = isinstance(prepare_threshold, int) and not isinstance(prepare_threshold, bool)
        if prepare_threshold is not None and (not is_number or prepare_threshold < 0):
            raise ConfigError(f"prepare_threshold takes None or a whole number, not {prepare_threshold!r}")
        return PsycopgDriver(self._connection_class, prepare_threshold)

    def is_connection(self, bind: Any) -> bool:
        return isinstance(bind, self._connection_class)

    def connections_from(self, source: Any, *, most_kept: int) -> Connections:
        return connections_from(source, self._connect, most_kept=most_kept, prepare_threshold=self._prepare_threshold)

    def connections_beside(self, source: Any, *, most_kept: int) -> Connections:
        return connections_beside(source, self._connect, most_kept=most_kept, prepare_threshold=self._prepare_threshold)

    def _connect(self, *arguments: Any, **keywords: Any) -> Any:
        return self._connection_class.connect(*arguments, **keywords)

    def database(self, connections: Connections, **options: Any) -> PsycopgDatabase:
        return PsycopgDatabase(connections, **options)


BLOCKING: Final = PsycopgDriver(psycopg.Connection)
AWAITED: Final = PsycopgDriver(psycopg.AsyncConnection)
