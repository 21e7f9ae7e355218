"""Who is at the other end of a connection."""

from __future__ import annotations

from typing import NamedTuple, Self

USER = "User"


class Principal(NamedTuple):
    """A client as the broker knows it, written `User:alice`."""

    type: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `Type:name`. Raises ValueError where there is no type or no name."""
        kind, colon, name = text.partition(":")
        if not (colon and kind and name):
            raise ValueError(f"{text!r} is no principal: it takes a type and a name, such as User:alice")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""Whoever came over a listener that asks nobody who he is."""
