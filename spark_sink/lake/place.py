"""The place of a table of files: a Delta table in a directory, or an Iceberg table in a catalog. Pure.

The commit store keeps a place as a text, the location, by which any process finds the table again, even without the
sink's options (`dualwrite spark recover`, for example). So there is no secret in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlencode

ICEBERG: Final = "iceberg:"
"""The prefix of the location of an Iceberg table; that of a Delta table is an absolute path."""
_PLAIN: Final = "/:"


@dataclass(frozen=True)
class Catalog:
    """An Iceberg catalog in the tables of a SQL database. One of the last two is set."""

    name: str
    url: str | None = None
    """Has no password."""
    url_env: str | None = None
    """The environment variable that has the URL, with a password."""


@dataclass(frozen=True)
class LakePlace:
    """The place of a table."""

    directory: str | None
    """The directory of its data files; None for an Iceberg table whose catalog was not asked yet."""
    table: str | None = None
    """An Iceberg table's name, with the namespace before it."""
    catalog: Catalog | None = None
    """None for a Delta table."""

    @property
    def kind(self) -> str:
        """The table format's name."""
        return "Delta" if self.catalog is None else "Iceberg"

    @property
    def article(self) -> str:
        """The article before `kind` in a sentence."""
        return "a" if self.catalog is None else "an"

    @property
    def named(self) -> str:
        """The table, as messages name it."""
        return f"the {self.kind} table {self.directory if self.catalog is None else self.table}"

    def at(self, directory: str) -> LakePlace:
        """Return the same table with data files in this directory."""
        return replace(self, directory=directory)

    @property
    def identity(self) -> LakePlace:
        """The common part of all places of one table."""
        return self if self.catalog is None else replace(self, directory=None)

    @property
    def location(self) -> str:
        """The text that the store keeps, with the directory."""
        if self.catalog is None:
            return str(self.directory)
        parts = {
            "directory": self.directory,
            "catalog": self.catalog.name,
            "url": self.catalog.url,
            "urlEnv": self.catalog.url_env,
        }
        given = {name: value for name, value in parts.items() if value is not None}
        return f"{ICEBERG}{quote(str(self.table))}?{urlencode(given, quote_via=quote, safe=_PLAIN)}"

    @classmethod
    def of(cls, location: str) -> LakePlace:
        """Return the place whose `location` is this."""
        if not location.startswith(ICEBERG):
            return cls(location)
        table, _, query = location.removeprefix(ICEBERG).partition("?")
        given = {name: values[0] for name, values in parse_qs(query, strict_parsing=True).items()}
        catalog = Catalog(given["catalog"], given.get("url"), given.get("urlEnv"))
        return cls(given["directory"], unquote(table), catalog)
