"""The row with the database's identity, as statements on any database; parameters are written `:name`."""

from __future__ import annotations

from typing import Final

from dualwrite.errors import StateRowError
from dualwrite.recipes.sql.database_identity import IDENTITY_TABLE
from dualwrite.recipes.sql.pinned_tables import STATE_TABLE

MOST_ATTEMPTS: Final = 5
"""To make a row that other processes make in the same instant."""

SELECT_IDENTITY: Final = f"SELECT suffix, made_in_server, made_in_database FROM {IDENTITY_TABLE}"
INSERT_IDENTITY: Final = (
    f"INSERT INTO {IDENTITY_TABLE} (only_row, suffix, made_in_server, made_in_database)"
    " VALUES (1, :suffix, :server, :database)"
)
DECIDED_BEFORE: Final = f"SELECT count(*) FROM {STATE_TABLE} WHERE prepared_transaction_state <> ''"


def identity_is_missing() -> StateRowError:
    """The row was deleted, or the state table came here without it."""
    return StateRowError(
        f"{STATE_TABLE} holds decisions, and {IDENTITY_TABLE} has no row that tells under which ids Kafka knows them; "
        "nothing was written: put that row back from where the tables came from, or, where nothing of them is in doubt "
        "any more, run `dualwrite adopt --copied`"
    )
