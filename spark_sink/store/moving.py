"""The statement that moves staged rows into the table they are for.

It is written as text: SQLAlchemy's upsert for MySQL doubles each % of a column's name twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import sqlalchemy as sa

from spark_sink.store.table_catalog import TableName, quoted_name


class Moving:
    """Moves the columns `columns` of one dialect's tables; `own` are the staging table's attempt, partition and seq."""

    def __init__(
        self,
        dialect: sa.Dialect,
        target: TableName,
        staging: TableName,
        columns: Sequence[str],
        own: tuple[str, str, str],
    ) -> None:
        self._dialect = dialect
        self._into = as_sql(target.quoted(dialect))
        self._from = as_sql(staging.quoted(dialect))
        self._columns: Final = tuple(columns)
        self._attempt, self._partition, self._seq = own

    def insert(self, winners: Collection[str]) -> sa.TextClause:
        """Insert the rows of these attempts."""
        columns = self._list(self._columns)
        return self._of(
            winners,
            f"INSERT INTO {self._into} ({columns}) "
            f"SELECT {columns} FROM {self._from} WHERE {self._attempt} IN :winners",
        )

    def upsert(self, winners: Collection[str], key: Sequence[str]) -> sa.TextClause:
        """Insert the rows of these attempts, or update those that are there by the key.

        Of the rows with one key only the last counts: PostgreSQL refuses to update a row twice, and the others do it in
        whatever order they come upon them. The order is for keys that only the table's index takes to be equal
        (NOCASE).
        """
        columns, partition, seq = self._list(self._columns), self._partition, self._seq
        return self._of(
            winners,
            f"INSERT INTO {self._into} ({columns}) SELECT {columns} FROM ("
            f"SELECT {columns}, {partition}, {seq}, ROW_NUMBER() OVER ("
            f"PARTITION BY {self._list(key)} ORDER BY {partition} DESC, {seq} DESC) AS dw_from_the_last "
            f"FROM {self._from} WHERE {self._attempt} IN :winners) AS dw_rows "
            f"WHERE dw_from_the_last = 1 ORDER BY {partition}, {seq} {self._where_it_is_there(key)}",
        )

    def _where_it_is_there(self, key: Sequence[str]) -> str:
        others = [name for name in self._columns if name not in key]
        if self._dialect.name in ("mysql", "mariadb"):
            changes = [f"{name} = VALUES({name})" for name in map(self._name, others or key[:1])]
            return f"ON DUPLICATE KEY UPDATE {', '.join(changes)}"
        changes = [f"{name} = excluded.{name}" for name in map(self._name, others)]
        action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        return f"ON CONFLICT ({self._list(key)}) DO {action}"

    def _list(self, names: Sequence[str]) -> str:
        return ", ".join(map(self._name, names))

    def _name(self, name: str) -> str:
        return as_sql(quoted_name(name, self._dialect))

    @staticmethod
    def _of(winners: Collection[str], statement: str) -> sa.TextClause:
        return sa.text(statement).bindparams(sa.bindparam("winners", list(winners), expanding=True))


def as_sql(text: str) -> str:
    """For `sa.text()`, without parameters in it."""
    return text.replace(":", "\\:")
