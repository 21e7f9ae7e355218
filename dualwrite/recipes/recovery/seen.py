"""One id as recovery sees it at one moment: its row, its coordinator's description, and its end in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from dualwrite.admin import TransactionAdmin, TransactionDescription, TwoPhaseCommit
from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.client.transactions.recovery import Described, DescribedState, Finding, find
from dualwrite.errors import DualWriteError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.judge import RowInCluster, refusal_by_row
from dualwrite.recipes.core.proof import Verdict, manifest_of, verdict_in
from dualwrite.recipes.recovery.stored_rows import StoredRow

NO_ROW: Final = StoredRow(None, "")


class Cluster(NamedTuple):
    """The cluster that answers; `cluster_id` is "" if unknown."""

    cluster_id: str
    transaction_version: int
    keeps_prepared: Callable[[str], bool]
    """Whether a broker supports KeepPreparedTxn for an id as Kafka knows it; then a later epoch proves nothing."""


def cluster_of(admin: TransactionAdmin, *, timeout_ms: int | None = None) -> Cluster:
    features = admin.describe_features().values()
    return Cluster(
        admin.describe_cluster(timeout_ms=timeout_ms).cluster_id or "",
        max(features, key=lambda each: each.finalized_features_epoch).transaction_version,
        lambda kafka_id: TwoPhaseCommit.KEEPS_PREPARED in admin.describe_two_phase_commit(kafka_id).values(),
    )


class Decision(Enum):
    """An operator's decision about an id, beside that of the database."""

    LOST = "its loss is acknowledged"
    TAKEN_OUT = "its owed records are not to be published"
    PUBLISHED_AGAIN = "the last batch of this outbox is not in Kafka, and is to be published"
    VOUCHED = "no other database decides for it"


@dataclass(frozen=True)
class Seen:
    """The facts about one id at one moment. Raises ValueError where a row or a description cannot be read.

    `end` is how the transaction in the row ended, by the log; None if the log was not read.
    """

    transactional_id: str
    kafka_id: str
    row: StoredRow
    description: TransactionDescription | None
    cluster: Cluster
    now_ms: int = 0
    decisions: frozenset[Decision] = frozenset()
    is_ours: bool = True
    end: TransactionEnd | None = None
    is_given_up: bool = False
    """Whether the log does not say how its transaction ended, and the caller acknowledges a loss."""
    unread: str | None = None
    """Why the log could not be read."""

    # ---- the row ----------------------------------------------------------------------------------------------------

    @cached_property
    def stored(self) -> PreparedTxnState:
        return PreparedTxnState(self.row.state)

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest in the row; None if it has none, or its transaction is settled."""
        return manifest_of(self.stored, self.row.manifest)

    @cached_property
    def verdict(self) -> Verdict | None:
        """The end of the row's transaction, if the row notes it, as the row of an outbox may."""
        return verdict_in(self.stored, self.row.manifest)

    @property
    def decides_batch(self) -> bool:
        """Whether an operator has decided about records that are not proven to be in Kafka."""
        return not self.decisions.isdisjoint((Decision.TAKEN_OUT, Decision.PUBLISHED_AGAIN))

    @property
    def is_kept(self) -> bool:
        """Whether the database keeps the records of the stored transaction."""
        return self.row.state is not None and self.row.waiting.kept_as == self.row.state

    @property
    def has_offsets(self) -> bool:
        """Whether consumed offsets went with the row's transaction, so that it cannot be repaired."""
        return self.manifest is not None and self.manifest.has_offsets

    @property
    def why_lost(self) -> str | None:
        """Why aborted records cannot be published again; None if it is not known."""
        if self.has_offsets:
            return "consumed offsets went with it, and offsets are not in the log of the topics"
        if self.manifest is None:
            return "its row has no manifest"
        if self.unread is not None:
            return f"the log of its topics cannot be read: {self.unread}"
        if self.end is None or not self.end.gone:
            return None
        places = _names_of(self.end.gone)
        why = f"its records are no longer in {places}: the topic is gone, or was created anew, or they were removed"
        return f"{why}; those in {_names_of(self.end.aborted)} can still be read" if self.end.aborted else why

    @property
    def waits_ms(self) -> int | None:
        """For how long the oldest block of the id has waited in the database for Kafka; None if none waits."""
        since_ms = self.row.waiting.since_ms
        return None if since_ms is None else max(self.now_ms - since_ms, 0)

    # ---- the coordinator --------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The state as the coordinator names it, also one that this version does not know."""
        return DescribedState.NOT_FOUND.value if self.description is None else self.description.state

    @property
    def pair(self) -> PreparedTxnState:
        found = self.description
        if found is None or found.producer_id < 0 or found.producer_epoch < 0:
            return PreparedTxnState()
        return PreparedTxnState.of(producer_id=found.producer_id, producer_epoch=found.producer_epoch)

    @cached_property
    def described(self) -> Described:
        try:
            state = DescribedState(self.state)
        except ValueError:
            raise ValueError(
                f"the coordinator reports the state {self.state!r} for this id, which this version of dualwrite does "
                "not know; nothing was changed: the next round tries again; a newer version may know this state"
            ) from None
        return Described(state, self.pair, -1)

    @property
    def age_ms(self) -> int | None:
        """How long the open transaction has been open; None if none is, or if it is unknown."""
        start_ms = None if self.description is None else self.description.transaction_start_time_ms
        if self.state != DescribedState.ONGOING.value or start_ms is None:
            return None
        return max(self.now_ms - start_ms, 0)

    @property
    def topic_partitions(self) -> tuple[str, ...]:
        held = () if self.description is None else sorted(self.description.topic_partitions)
        return tuple(f"{topic}-{partition}" for topic, partition in held)

    # ---- the one compared with the other ----------------------------------------------------------------------------

    @cached_property
    def finding(self) -> Finding:
        """The finding about the row's transaction by its description; a settled one is not open."""
        found = find(self.stored, self.described, self.cluster.transaction_version)
        return Finding.OTHER_OPEN if found is Finding.OPEN and self.is_settled else found

    @property
    def is_committed(self) -> bool:
        return self.finding is Finding.COMMITTED

    @property
    def is_behind(self) -> bool:
        """Whether Kafka has committed a later transaction than the row's, whose row the database has lost."""
        return self.in_cluster.is_behind

    @cached_property
    def in_cluster(self) -> RowInCluster:
        """The facts by which the judge tells whether a writer refuses the row."""
        of_row = self.transactional_id, self.stored, self.row.manifest
        return RowInCluster(*of_row, self.cluster.cluster_id, self.described)

    @property
    def is_settled(self) -> bool:
        """Whether the row says that its transaction needs no more proof in this cluster."""
        return self.row.state is not None and self.in_cluster.is_settled

    @cached_property
    def refusal(self) -> DualWriteError | None:
        """The error with which a writer refuses the id because of its row, by the judge; may ask the cluster."""
        if self.row.state is None:
            return None
        return refusal_by_row(self.in_cluster, lambda: self.cluster.keeps_prepared(self.kafka_id))

    @property
    def is_to_settle(self) -> bool:
        """Whether the row's transaction is known to be committed, and the row does not say so yet.

        The coordinator's word is enough only for a row without a manifest: else the log can tell more, now or later.
        """
        if self.stored.is_empty or self.is_settled or self.described.is_ending:
            return False
        if self.in_cluster.elsewhere is not None:
            return False  # it has the pair of a transaction of this cluster
        has_proof = self.manifest is not None and bool(self.manifest.partitions)
        return self.is_committed and (self.end.committed if self.end is not None else not has_proof)


def _names_of(parts: Iterable[PartitionManifest]) -> str:
    return ", ".join(f"{part.topic}-{part.partition}" for part in parts)
