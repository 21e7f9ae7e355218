"""The table: one row per event."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from examples.flights.events import Event


class Base(DeclarativeBase):
    """The metadata of the demo's tables."""


class FlightEvent(Base):
    """The row of an event."""

    __tablename__ = "flight_events"

    number: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    key: Mapped[str] = mapped_column(sa.Text)
    value: Mapped[str] = mapped_column(sa.Text)


def row_of(event: Event) -> FlightEvent:
    return FlightEvent(number=event.number, key=event.key, value=event.value)


def next_number(engine: sa.Engine) -> int:
    """Return the number of the first event that is not in the table, which is where to continue."""
    with engine.connect() as connection:
        last = connection.scalar(sa.select(sa.func.max(FlightEvent.number)))
    return 0 if last is None else last + 1


def read_table(engine: sa.Engine) -> list[Event]:
    """Return every row, in the order of the events."""
    columns = (FlightEvent.number, FlightEvent.key, FlightEvent.value)
    with engine.connect() as connection:
        return [Event(*row) for row in connection.execute(sa.select(*columns).order_by(FlightEvent.number))]
