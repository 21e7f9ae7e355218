"""Text and adapters of our own statements, independent of a connection's encoding, loaders, dumpers and factories.

Applications register adapters for a connection, or for all of them: a loader that does not return text as str would
change the names of tables and the states that we read. With the client encoding SQL_ASCII psycopg returns text as
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
"""psycopg's name for SQL_ASCII, with which a server converts no text. It stores UTF-8, as most databases do."""


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
    """Return a plain cursor with our own adapters, regardless of the connection's."""
    cursor_class: Any = psycopg.AsyncCursor if isinstance(connection, psycopg.AsyncConnection) else psycopg.Cursor
    cursor = cursor_class(connection, row_factory=tuple_row)
    use_own_adapters(cursor)
    return cursor


def use_own_adapters(cursor: Any) -> None:
    cursor._adapters = adapt.AdaptersMap(_OWN)  # noqa: SLF001 - has no public name
