"""The suffix that ties transactional ids to one database.

The application's `orders-1` is `orders-1.k3f9x2ab` in Kafka. The suffix is random, was created together with the state
table, and is stored in the same database. So two databases never share an id in Kafka, even if their applications use
the same one, and neither can abort a transaction that the other has decided. Background:
docs/decisions/one-id-one-database.md.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

SUFFIX_LENGTH: Final = 8
_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"  # no l, o, 0, 1: operators read suffixes aloud
_SEPARATOR: Final = "."
_SUFFIXED: Final = re.compile(rf"(.+)\.([{_ALPHABET}]{{{SUFFIX_LENGTH}}})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """The suffix that a database adds to its transactional ids."""

    suffix: str

    def kafka_id(self, transactional_id: str) -> str:
        """Return the id under which Kafka knows a transactional id of this database."""
        return f"{transactional_id}{_SEPARATOR}{self.suffix}" if self.suffix else transactional_id

    def name_of(self, kafka_id: str) -> str | None:
        """Return the transactional id that Kafka knows as `kafka_id`, or None if it is not of this database."""
        end = _SEPARATOR + self.suffix
        name = kafka_id.removesuffix(end)
        return name if name and name != kafka_id else None

    def name_as_given(self, given: str) -> str:
        """Return the transactional id that a caller gave, with Kafka's suffix or without."""
        return self.name_of(given) or given


AS_GIVEN: Final = DatabaseIdentity("")
"""Adds no suffix: for callers that name ids as Kafka knows them."""


def new_suffix() -> str:
    """Return a random suffix, one of 2**40."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(SUFFIX_LENGTH))


def foreign_suffix_of(kafka_id: str) -> str | None:
    """Return the part of another database's id that looks like its suffix, or None."""
    found = _SUFFIXED.fullmatch(kafka_id)
    return None if found is None else found[2]
