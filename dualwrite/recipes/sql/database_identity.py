"""Whose a transactional id is: the suffix that each database gives to its ids, and where the database was when it did.

What Kafka sees of `orders-1` is `orders-1.k3f9x2ab`. The suffix was made at random with the state table, and lives in
the same database. So two databases never use one id, whatever their applications call it, and neither can abort what
the other has decided. Why it is done so: docs/decisions/one-id-one-database.md.

A copy of the database has the suffix too. Where the database can say which one it is, the table remembers that, and a
copy is refused at its first use.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

from dualwrite.errors import DatabaseMovedError

IDENTITY_TABLE: Final = "kafka_transaction_database"
SUFFIX_LENGTH: Final = 8
_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"  # no l, o, 0, 1: people read them aloud
_SEPARATOR: Final = "."
_SUFFIXED: Final = re.compile(rf"(.+)\.([{_ALPHABET}]{{{SUFFIX_LENGTH}}})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """Which database of which server; None for what the server does not tell."""

    server: str | None = None
    database: str | None = None

    def is_other_than(self, other: Place) -> bool:
        """Whether both say something of which one differs."""
        return _differ(self.server, other.server) or _differ(self.database, other.database)

    def __str__(self) -> str:
        server = "a server that does not tell its identity" if self.server is None else f"server {self.server}"
        return server if self.database is None else f"database {self.database} of {server}"


def _differ(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """What a database adds to its transactional ids."""

    suffix: str

    def kafka_id(self, transactional_id: str) -> str:
        """What Kafka sees of a transactional id of this database."""
        return f"{transactional_id}{_SEPARATOR}{self.suffix}" if self.suffix else transactional_id

    def name_of(self, kafka_id: str) -> str | None:
        """The transactional id that Kafka sees as `kafka_id`; None where it is not of this database."""
        end = _SEPARATOR + self.suffix
        name = kafka_id.removesuffix(end)
        return name if name and name != kafka_id else None

    def name_as_given(self, given: str) -> str:
        """The transactional id that somebody gave by its name, or as Kafka sees it."""
        return self.name_of(given) or given


AS_GIVEN: Final = DatabaseIdentity("")
"""Of ids that are named as Kafka sees them."""


def new_suffix() -> str:
    """A suffix that no other database has: one of 2**40."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(SUFFIX_LENGTH))


def foreign_suffix_of(kafka_id: str) -> str | None:
    """What looks like the suffix of a database, at the end of an id that is not of this one."""
    found = _SUFFIXED.fullmatch(kafka_id)
    return None if found is None else found[2]


def checked_place(identity: DatabaseIdentity, *, made_in: Place, found_in: Place) -> DatabaseIdentity:
    """The identity. Raises DatabaseMovedError where the database is not the one in which it was made."""
    if not made_in.is_other_than(found_in):
        return identity
    raise DatabaseMovedError(
        f"the state table was made in {made_in}, and this is {found_in}: a copy, or a database that was moved; nothing "
        "was written, and nothing of Kafka's was touched, because the original may still use its transactional ids. "
        "Where the original is gone for good, run `dualwrite adopt --moved`; where it lives on, `dualwrite adopt "
        "--copied`, which gives this database ids of its own",
        made_in=str(made_in),
        found_in=str(found_in),
    )
