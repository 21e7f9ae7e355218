"""`forget_cluster`: an operator's decision that a Kafka cluster is gone for good, with what is in doubt there.

forget_cluster(engine, "old-cluster-id", prefix="", admin=admin)              # only returns the rows; changes nothing
forget_cluster(engine, "old-cluster-id", prefix="", admin=admin, apply=True)

A row that names a transaction of that cluster keeps its state and its manifest, with a note in front. So no other
cluster is asked about it, and nothing counts as committed: if that cluster answers again before the id has been used
elsewhere, it is asked as before. The note is written under the lock of the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.admin import TransactionAdmin
from dualwrite.errors import DualWriteError, IllegalStateError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.judge import RowInCluster
from dualwrite.recipes.core.proof import forgotten_text
from dualwrite.recipes.recovery.service import DEFAULT_LOCK_TIMEOUT_MS
from dualwrite.recipes.recovery.stored_rows import StoredRow, known_database, note, stored_rows
from dualwrite.recipes.sqlalchemy.events import watch
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase

__all__ = ["Forgotten", "forget_cluster"]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A row whose transaction is given up; `changed` is whether it was, or only would be.

    `error` says why it was not, although it was to be.
    """

    transactional_id: str
    prepared_state: str
    records: int
    topic_partitions: tuple[str, ...]
    changed: bool = False
    error: str | None = None


def forget_cluster(
    engine: sa.Engine,
    cluster_id: str,
    *,
    admin: TransactionAdmin,
    prefix: str | None = None,
    transactional_ids: Collection[str] = (),
    apply: bool = False,
    schema: str | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> list[Forgotten]:
    """Give up the transactions in doubt in a cluster that is gone for good; without `apply`, only return them.

    `admin` is connected to the cluster that replaces it. `prefix` (empty: all ids) and `transactional_ids` select the
    rows. Raises IllegalStateError, and changes nothing, if the cluster that answers is that one, or does not tell which
    it is; and as `RecoveryService.recover` does. An id that is in use, or has changed meanwhile, has an `error`.
    """
    answers = _other_cluster(admin, cluster_id)
    pinned, identity = known_database(engine, schema)
    names = {identity.name_as_given(each) for each in transactional_ids}
    rows = stored_rows(engine, pinned, prefix=prefix, transactional_ids=names)
    found = list(_in_doubt(rows, cluster_id, answers))
    if not apply:
        return [each for each, _ in found]
    watch(engine)  # the transaction's end is ours
    database = SqlAlchemyDatabase(engine, schema, only_recovers=True)
    done = []
    for each, row in found:
        try:
            noted = forgotten_text(PreparedTxnState(row.state), row.manifest)
            blocking.run(note(database, each.transactional_id, row, noted, lock_timeout_ms))
        except (DualWriteError, SQLAlchemyError) as error:
            done.append(replace(each, error=first_line(error)))
        else:
            done.append(replace(each, changed=True))
    return done


def _other_cluster(admin: TransactionAdmin, cluster_id: str) -> str:
    """Return the id of the cluster that answers. Raises IllegalStateError if it is the one to forget."""
    answers = admin.describe_cluster().cluster_id
    if answers == cluster_id:
        raise IllegalStateError(
            f"the Kafka cluster {cluster_id!r} is not gone: it is the one that answers. Nothing was changed: "
            "`dualwrite recover --apply` completes what is in doubt there"
        )
    if not answers:
        raise IllegalStateError(
            f"the Kafka cluster that answers does not report its id, so it may be {cluster_id!r} itself; nothing was "
            "changed: give the brokers of the cluster that replaces it"
        )
    return answers


def _in_doubt(rows: Mapping[str, StoredRow], cluster_id: str, answers: str) -> Iterator[tuple[Forgotten, StoredRow]]:
    """Yield the rows that name a transaction of that cluster."""
    for name, row in sorted(rows.items()):
        found = RowInCluster(name, PreparedTxnState(row.state), row.manifest, answers)
        manifest = None if found.is_settled else found.elsewhere
        if manifest is not None and manifest.cluster_id == cluster_id:
            records = sum(part.record_count for part in manifest.partitions)
            partitions = tuple(f"{part.topic}-{part.partition}" for part in manifest.partitions)
            yield Forgotten(name, str(manifest.prepared_state), records, partitions), row
