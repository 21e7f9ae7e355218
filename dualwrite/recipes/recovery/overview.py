"""The transactional ids of a database by its tables, read without locks: for a view, not for a decision."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import sqlalchemy as sa

from dualwrite.client.admin.results import TransactionDescription
from dualwrite.client.transactions.recovery import Finding
from dualwrite.recipes.core.judge import refusal_of
from dualwrite.recipes.core.proof import Verdict
from dualwrite.recipes.recovery.seen import Cluster, Seen
from dualwrite.recipes.recovery.stored_rows import StoredRow, known_database, stored_rows


def ids_in_database(
    engine: sa.Engine, schema: str | None, *, prefix: str, kafka_ids: Collection[str]
) -> dict[str, StoredRow]:
    """Return the ids of a prefix and those of `kafka_ids`, by their Kafka ids. Raises as `known_database` does."""
    pinned, identity = known_database(engine, schema)
    names = {name for each in kafka_ids if (name := identity.name_of(each)) is not None}
    rows = stored_rows(engine, pinned, prefix=prefix, transactional_ids=names)
    return {identity.kafka_id(name): row for name, row in rows.items()}


class Standing(NamedTuple):
    """How an id stands by its row and the coordinator, without reading the log.

    `is_owed`: the database has decided the row's transaction, and Kafka has aborted it. `owed_records` is None if the
    row has no manifest that says how many they are. `refusal` is the name of the judge for the error with which writers
    refuse the id; None if they do not.
    """

    is_owed: bool = False
    owed_records: int | None = None
    refusal: str | None = None


def standing(kafka_id: str, row: StoredRow, description: TransactionDescription | None, cluster: Cluster) -> Standing:
    """Return how an id stands. A row or a state that cannot be read shows nothing."""
    seen = Seen(kafka_id, kafka_id, row, description, cluster)
    try:
        if seen.refusal is not None:
            return Standing(refusal=refusal_of(seen.refusal).name)
        if seen.is_settled or seen.verdict is Verdict.COMMITTED or seen.finding is not Finding.ABORTED:
            return Standing()
        manifest = seen.manifest
    except ValueError:
        return Standing()
    return Standing(True, None if manifest is None else sum(part.record_count for part in manifest.partitions))
