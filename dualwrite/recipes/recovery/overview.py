"""The transactional ids of a database by its tables, read without locks: for a view, not for a decision."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import sqlalchemy as sa

from dualwrite.client.admin.results import TransactionDescription
from dualwrite.client.transactions.recovery import Described, DescribedState, Finding, find
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.judge import RowInCluster, refusal_by_row, refusal_of
from dualwrite.recipes.core.proof import Verdict, manifest_of, verdict_in
from dualwrite.recipes.recovery.stored_rows import StoredRow, known_database, stored_rows


def ids_in_database(
    engine: sa.Engine, schema: str | None, *, prefix: str, kafka_ids: Collection[str]
) -> dict[str, StoredRow]:
    """Return the ids of a prefix and those of `kafka_ids`, by their Kafka ids. Raises as `known_database` does."""
    pinned, identity = known_database(engine, schema)
    names = {name for each in kafka_ids if (name := identity.name_of(each)) is not None}
    rows = stored_rows(engine, pinned, prefix=prefix, transactional_ids=names)
    return {identity.kafka_id(name): row for name, row in rows.items()}


class Owed(NamedTuple):
    """The records of the row's transaction, which the database has decided and Kafka has aborted."""

    records: int | None
    """How many they are; None if the row has no manifest that says it."""


class Standing(NamedTuple):
    """How an id stands by its row and the coordinator, without reading the log. Both are None where nothing is wrong.

    `refusal` is the name of the judge for the error with which writers refuse the id.
    """

    owed: Owed | None = None
    refusal: str | None = None


class InCluster(NamedTuple):
    """The cluster that answers. `keeps_prepared` says of it what `refusal_by_row` asks, for an id as Kafka knows it."""

    cluster_id: str
    transaction_version: int
    keeps_prepared: Callable[[str], bool]


def standing(kafka_id: str, row: StoredRow, description: TransactionDescription | None, cluster: InCluster) -> Standing:
    """Return how an id stands. A row or a state that cannot be read shows nothing."""
    try:
        stored = PreparedTxnState(row.state)
        described = None if description is None else _described(description)
        found = RowInCluster(kafka_id, stored, row.manifest, cluster.cluster_id, described)
        refusal = refusal_by_row(found, lambda: cluster.keeps_prepared(kafka_id))
        owed = None if refusal is not None or found.is_settled else _owed(stored, row.manifest, described, cluster)
    except ValueError:
        return Standing()
    return Standing(owed, None if refusal is None else refusal_of(refusal).name)


def _described(found: TransactionDescription) -> Described | None:
    if found.producer_id < 0 or found.producer_epoch < 0:
        return None
    pair = PreparedTxnState.of(producer_id=found.producer_id, producer_epoch=found.producer_epoch)
    return Described(DescribedState(found.state), pair, -1)


def _owed(stored: PreparedTxnState, text: str, described: Described | None, cluster: InCluster) -> Owed | None:
    if described is None or verdict_in(stored, text) is Verdict.COMMITTED:
        return None
    if find(stored, described, cluster.transaction_version) is not Finding.ABORTED:
        return None
    manifest = manifest_of(stored, text)
    return Owed(None if manifest is None else sum(part.record_count for part in manifest.partitions))
