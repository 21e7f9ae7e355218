"""The statement that moves staged rows into the table they are for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from spark_sink.table_catalog import TableName


def insert_moved(
    target: TableName, staging: TableName, columns: Sequence[str], own: tuple[str, str, str], winners: Collection[str]
) -> sa.Insert:
    """Insert the rows of these attempts."""
    staged = staging.clause(*own, *columns)
    rows = sa.select(*[staged.c[name] for name in columns]).where(staged.c[own[0]].in_(list(winners)))
    return sa.insert(target.clause(*columns)).from_select(list(columns), rows)


def upsert_moved(
    target: TableName,
    staging: TableName,
    columns: Sequence[str],
    own: tuple[str, str, str],
    winners: Collection[str],
    *,
    key: Sequence[str],
    dialect: str,
) -> sa.Insert:
    """Insert the rows of these attempts, or update those that are there by the key.

    Of the rows with one key only the last counts: PostgreSQL refuses to update a row twice, and the others do it in
    whatever order they come upon them. The order is for keys that only the table's index takes to be equal (NOCASE).
    """
    rows = _last_of_each_key(staging, columns, own, winners, key)
    others = [name for name in columns if name not in key]
    into = target.clause(*columns)
    if dialect in ("mysql", "mariadb"):
        insert = mysql.insert(into).from_select(list(columns), rows)
        changed = others or list(key[:1])
        return insert.on_duplicate_key_update([(name, insert.inserted[name]) for name in changed])
    return _on_conflict(sqlite if dialect == "sqlite" else postgresql, into, columns, rows, key, others)


def _on_conflict(
    module: Any,
    into: sa.TableClause,
    columns: Sequence[str],
    rows: sa.Select[Any],
    key: Sequence[str],
    others: list[str],
) -> sa.Insert:
    insert = module.insert(into).from_select(list(columns), rows)
    elements = [into.c[name] for name in key]
    conflict: sa.Insert = (
        insert.on_conflict_do_update(index_elements=elements, set_={name: insert.excluded[name] for name in others})
        if others
        else insert.on_conflict_do_nothing(index_elements=elements)
    )
    return conflict


def _last_of_each_key(
    staging: TableName, columns: Sequence[str], own: tuple[str, str, str], winners: Collection[str], key: Sequence[str]
) -> sa.Select[Any]:
    attempt, partition, seq = own
    staged = staging.clause(*own, *columns)
    from_the_last = sa.func.row_number().over(
        partition_by=[staged.c[name] for name in key], order_by=[staged.c[partition].desc(), staged.c[seq].desc()]
    )
    numbered = (
        sa.select(*staged.c, from_the_last.label("dw_from_the_last"))
        .where(staged.c[attempt].in_(list(winners)))
        .subquery("dw_rows")
    )
    return (
        sa.select(*[numbered.c[name] for name in columns])
        .where(numbered.c.dw_from_the_last == 1)
        .order_by(numbered.c[partition], numbered.c[seq])
    )
