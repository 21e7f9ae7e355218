"""Text and adapters of our own statements, whichever encoding, loaders, dumpers and factories a connection has.

Applications register adapters for a connection, or for all of them: a loader that makes text of a type something else
would change the names of tables and the states that we read. With the client encoding SQL_ASCII psycopg returns text as
bytes.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import adapt, postgres
from psycopg.abc import Buffer
from psycopg.rows import tuple_row

_AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
_TEXTS: Final = ("text", "varchar", "bpchar", "name")
_ASCII: Final = "ascii"
"""psycopg's name for SQL_ASCII, with which a server converts nothing. It stores UTF-8, as most databases do."""


def encoding_of(connection: _AnyConnection) -> str:
    """Return the codec of a connection's text; UTF-8 for SQL_ASCII."""
    encoding = connection.info.encoding
    return "utf-8" if encoding == _ASCII else encoding


class _TextLoader(adapt.Loader):
    def load(self, data: Buffer) -> str:
        connection: Any = self.connection
        return bytes(data).decode(encoding_of(connection))


def _made() -> adapt.AdaptersMap:
    made = adapt.AdaptersMap(types=postgres.types)
    postgres.register_default_adapters(made)
    for name in _TEXTS:
        made.register_loader(name, _TextLoader)
    return made


_OWN: Final = _made()


def cursor_of(connection: _AnyConnection) -> Any:
    """Return a plain cursor with adapters of its own, whatever the connection has."""
    cursor_class: Any = psycopg.AsyncCursor if isinstance(connection, psycopg.AsyncConnection) else psycopg.Cursor
    cursor = cursor_class(connection, row_factory=tuple_row)
    use_own_adapters(cursor)
    return cursor


def use_own_adapters(cursor: Any) -> None:
    """Let a cursor execute and read with adapters of its own."""
    cursor._adapters = adapt.AdaptersMap(_OWN)  # noqa: SLF001 - it has no public name
