"""The tables of each method: a row per flight, and a total per carrier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from examples.flights_spark.methods import Method

METADATA: Final = sa.MetaData()


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one method."""

    flights: sa.Table
    totals: sa.Table


def _tables(suffix: str, *, unique: bool) -> Tables:
    flights = sa.Table(
        f"flights{suffix}",
        METADATA,
        sa.Column("number", sa.BigInteger, primary_key=unique, autoincrement=False, nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("tailnum", sa.Text, nullable=False),
        sa.Column("carrier", sa.Text, nullable=False),
        sa.Column("distance", sa.BigInteger, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
    )
    totals = sa.Table(
        f"carrier_totals{suffix}",
        METADATA,
        sa.Column("carrier", sa.Text, primary_key=True),
        sa.Column("flights", sa.BigInteger, nullable=False),
        sa.Column("distance", sa.BigInteger, nullable=False),
    )
    return Tables(flights, totals)


TABLES: Final[Mapping[Method, Tables]] = {
    Method.EXACTLY_ONCE: _tables("", unique=True),
    # With a primary key, it would stop at the first duplicate instead of showing it.
    Method.AT_LEAST_ONCE: _tables("_at_least_once", unique=False),
}
COLUMNS: Final = ("number", "batch", "tailnum", "carrier", "distance", "event")


@dataclass(frozen=True, slots=True)
class FlightRow:
    """A row of the table of flights."""

    number: int
    tailnum: str
    event: str


@dataclass(frozen=True, slots=True)
class Total:
    """The flights and the distance of one carrier."""

    flights: int
    distance: int


def add_up(connection: sa.Connection, tables: Tables, batch_id: int) -> None:
    """Add the rows of this batch to the totals, which is correct only if it is done exactly once."""
    flights, totals = tables.flights, tables.totals
    of_batch = (
        sa.select(flights.c.carrier, sa.func.count(), sa.func.sum(flights.c.distance))
        .where(flights.c.batch == batch_id)
        .group_by(flights.c.carrier)
    )
    statement = insert(totals).from_select(["carrier", "flights", "distance"], of_batch)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[totals.c.carrier],
            set_={
                "flights": totals.c.flights + statement.excluded.flights,
                "distance": totals.c.distance + statement.excluded.distance,
            },
        )
    )


def count_rows(connection: sa.Connection, method: Method) -> int:
    return connection.scalar(sa.select(sa.func.count()).select_from(TABLES[method].flights)) or 0


def read_rows(connection: sa.Connection, method: Method) -> Sequence[FlightRow]:
    """Return every row, in the order of the input."""
    table = TABLES[method].flights
    query = sa.select(table.c.number, table.c.tailnum, table.c.event).order_by(table.c.number)
    return [FlightRow(*row) for row in connection.execute(query)]


def read_totals(connection: sa.Connection, method: Method) -> dict[str, Total]:
    table = TABLES[method].totals
    query = sa.select(table.c.carrier, table.c.flights, table.c.distance)
    return {carrier: Total(flights, distance) for carrier, flights, distance in connection.execute(query)}
