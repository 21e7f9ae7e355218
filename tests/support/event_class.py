"""The table of events as a mapped class."""

from __future__ import annotations

from sqlalchemy.orm import registry

from tests.support.databases import events


class Event:
    """One row of `events`."""

    id: int
    event_key: str
    body: str

    def __init__(self, number: int, body: str | None = None) -> None:
        self.id = number
        self.event_key = "k"
        self.body = body or str(number)


registry().map_imperatively(Event, events)
