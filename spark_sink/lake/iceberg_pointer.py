"""The pointer to the current metadata file of an Iceberg table: a row of its catalog, which a commit moves.

The table `iceberg_tables` is that of Iceberg's JDBC catalog, which pyiceberg's SqlCatalog and Spark use, too. Their
commits move the row only from the file on which they are based, and so does `move`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from dualwrite.recipes.sqlalchemy.deciding import examine
from spark_sink.errors import SinkError, SinkOptionError
from spark_sink.lake.place import Catalog, LakePlace
from spark_sink.options import StoreOptions, check_catalog_url
from spark_sink.store.connections import engine_for
from spark_sink.store.transactions import StoreTransactions

_TABLES: Final = sa.table(
    "iceberg_tables",
    sa.column("catalog_name"),
    sa.column("table_namespace"),
    sa.column("table_name"),
    sa.column("metadata_location"),
    sa.column("previous_metadata_location"),
)


class TablePointer:
    """The row of one table. A location that was read may not be durable, except from `read_durably`."""

    def __init__(self, place: LakePlace, catalog: Catalog) -> None:
        """Connect later. Raises SinkOptionError for a URL that cannot be used."""
        namespace, _, name = str(place.table).rpartition(".")
        c = _TABLES.c
        self._mine = (c.catalog_name == catalog.name, c.table_namespace == namespace, c.table_name == name)
        self._engine = engine_for(StoreOptions(url=_url(catalog), url_env=None, schema=None))
        self._transactions = StoreTransactions(self._engine, self._check_tables, lambda connection: None)
        self._select = sa.select(c.metadata_location).where(*self._mine)
        self._is_examined = False

    def read(self) -> str | None:
        """Return the location of the current metadata file; None if the catalog has no such table.

        Raises SinkOptionError if the database has no catalog, UnsafeDatabaseError if it may lose or mix up commits, and
        SinkError if it cannot be read.
        """
        try:
            self._examine()
            return self._transactions.read(self._location)
        except sa.exc.SQLAlchemyError as error:
            raise _unreadable(error) from error

    def read_durably(self) -> str | None:
        """Do the same, but return once the location can no longer be lost. Also raises NotDurableError."""
        try:
            return self._transactions.read_durably(self._location)
        except sa.exc.SQLAlchemyError as error:
            raise _unreadable(error) from error

    def move(self, old: str, new: str) -> bool:
        """Make another metadata file the current one, durably, if `old` still is; return whether it was.

        Raises NotDurableError and the database's errors. Then it may have been moved, or may be later.
        """
        c = _TABLES.c
        update = sa.update(_TABLES).where(*self._mine, c.metadata_location == old)
        values = {"metadata_location": new, "previous_metadata_location": old}
        return self._transactions.write(lambda connection: connection.execute(update.values(values)).rowcount) == 1

    def _location(self, connection: sa.Connection) -> str | None:
        location: str | None = connection.execute(self._select).scalar_one_or_none()
        return location

    def _examine(self) -> None:
        if self._is_examined:
            return
        url = self._engine.url
        if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
            raise SinkOptionError(f"there is no Iceberg catalog in {url.database}, and no new batch has begun")
        examine(self._engine, (), lambda name: "another database for the catalog")
        self._is_examined = True

    def _check_tables(self) -> None:
        if not sa.inspect(self._engine).has_table(_TABLES.name):
            raise SinkOptionError(
                "the database of the Iceberg catalog has no table iceberg_tables, and no new batch has begun: give the "
                "database in which pyiceberg's SqlCatalog or Iceberg's JdbcCatalog has created the table"
            )


def _url(catalog: Catalog) -> str:
    if catalog.url is not None:
        return catalog.url
    name = str(catalog.url_env)
    url = os.environ.get(name)
    if url is None:
        raise SinkOptionError(
            f"the URL of the Iceberg catalog is in the environment variable {name}, which this process does not have, "
            "and no new batch has begun: set it on the driver and wherever `dualwrite spark recover` runs"
        )
    check_catalog_url(f"the environment variable {name}", url)
    return url


def _unreadable(error: sa.exc.SQLAlchemyError) -> SinkError:
    reason = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
    return SinkError(
        f"the Iceberg catalog cannot be read ({' '.join(str(reason).split())}). Decided batches stay decided, and are "
        "added to the table later; no new batch has begun"
    )
