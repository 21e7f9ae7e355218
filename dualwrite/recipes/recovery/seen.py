"""One id as recovery sees it at one moment: its row, its coordinator's description, and its end in the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dualwrite.admin import TransactionDescription
from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.transactions.recovery import Described, DescribedState, Finding, find
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.judge import RowInCluster
from dualwrite.recipes.core.proof import Verdict, manifest_of, verdict_in
from dualwrite.recipes.recovery.stored_rows import NOTHING_WAITS, StoredRecords, StoredRow
from dualwrite.recipes.sql.database_identity import DatabaseIdentity
from dualwrite.recipes.sql.pinned_tables import PinnedTables


@dataclass(frozen=True, slots=True)
class Seen:
    """The facts about one id at one moment; `text` is the text of its row, None if there is no row."""

    transactional_id: str
    kafka_id: str
    text: str | None
    description: TransactionDescription | None
    transaction_version: int
    is_ours: bool = True
    manifest: str = ""
    waiting: StoredRecords = NOTHING_WAITS
    end: TransactionEnd | None = None
    cluster_id: str = ""
    is_given_up: bool = False
    """Whether the log does not say how its transaction ended, and the caller acknowledges a loss."""

    @property
    def stored(self) -> PreparedTxnState:
        """The prepared state in the row. Raises ValueError if the row holds anything else."""
        return PreparedTxnState(self.text)

    @property
    def described(self) -> Described:
        """The coordinator's description. Raises ValueError for a state that this version of dualwrite does not know."""
        try:
            state = DescribedState(self.state)
        except ValueError:
            raise ValueError(
                f"the coordinator reports the state {self.state!r} for this id, which this version of dualwrite does "
                "not know; nothing was changed: the next round tries again; a newer version may know this state"
            ) from None
        return Described(state, self.pair, -1 if self.start_ms is None else self.start_ms)

    @property
    def finding(self) -> Finding:
        """The finding about the transaction in the row that the coordinator's description proves."""
        return find(self.stored, self.described, self.transaction_version)

    @property
    def is_committed(self) -> bool:
        """Whether the coordinator says that the transaction in the row is committed."""
        return self.finding is Finding.COMMITTED

    @property
    def is_settled(self) -> bool:
        """Whether the row says that nothing of its transaction is left to prove in this cluster."""
        return self.in_cluster.is_settled

    @property
    def in_cluster(self) -> RowInCluster:
        """The facts by which the judge tells whether a writer refuses the row."""
        return RowInCluster(self.transactional_id, self.stored, self.manifest, self.cluster_id, self.described)

    @property
    def verdict(self) -> Verdict | None:
        """How its transaction has ended, if the row notes it, as the row of an outbox may."""
        return verdict_in(self.stored, self.manifest)

    @property
    def is_to_settle(self) -> bool:
        """Whether the row's transaction is known to be committed, and the row does not say so yet.

        The coordinator's word is enough only for a row without a manifest: else the log can tell more, now or later.
        """
        if self.text is None or self.stored.is_empty or self.is_settled or self.described.is_ending:
            return False
        manifest = manifest_of(self.stored, self.manifest)
        has_proof = manifest is not None and bool(manifest.partitions)
        return self.is_committed and (self.end.committed if self.end is not None else not has_proof)

    @property
    def has_offsets(self) -> bool:
        """Whether consumed offsets went with the row's transaction, so that it cannot be repaired."""
        manifest = manifest_of(self.stored, self.manifest)
        return manifest is not None and manifest.has_offsets

    @property
    def state(self) -> str:
        return DescribedState.NOT_FOUND.value if self.description is None else self.description.state

    @property
    def start_ms(self) -> int | None:
        return None if self.description is None else self.description.transaction_start_time_ms

    @property
    def pair(self) -> PreparedTxnState:
        found = self.description
        if found is None or found.producer_id < 0 or found.producer_epoch < 0:
            return PreparedTxnState()
        return PreparedTxnState.of(producer_id=found.producer_id, producer_epoch=found.producer_epoch)

    @property
    def topic_partitions(self) -> tuple[str, ...]:
        held = () if self.description is None else sorted(self.description.topic_partitions)
        return tuple(f"{topic}-{partition}" for topic, partition in held)


@dataclass(frozen=True, slots=True)
class DatabaseInRound:
    """The tables and the identity of the database, as read in this round."""

    pinned: PinnedTables
    identity: DatabaseIdentity
    cluster_id: str = ""
    """The id of the cluster that answers in this round; "" if unknown."""

    def names(self, given: Iterable[str]) -> frozenset[str]:
        """Return the names of ids that were given with or without their suffix."""
        return frozenset(self.identity.name_as_given(each) for each in given)

    def kafka_id(self, name: str) -> str:
        return self.identity.kafka_id(name)

    def kafka_ids_to_terminate(self, given: Iterable[str], rows: Mapping[str, StoredRow]) -> frozenset[str]:
        """Return the ids to terminate as Kafka knows them, of this database and of others.

        A name for which this database has a decision is not taken for another application's id.
        """
        ours = {self.kafka_id(self.identity.name_as_given(each)) for each in given}
        return frozenset(ours | {each for each in given if each not in rows or not rows[each].state})

    def seen(
        self, kafka_id: str, rows: Mapping[str, StoredRow], description: TransactionDescription | None, version: int
    ) -> Seen:
        name = self.identity.name_of(kafka_id)
        if name is None:
            return Seen(kafka_id, kafka_id, None, description, version, is_ours=False)
        row = rows.get(name)
        if row is None:
            return Seen(name, kafka_id, None, description, version)
        return Seen(
            name,
            kafka_id,
            row.state,
            description,
            version,
            manifest=row.manifest,
            waiting=row.waiting,
            cluster_id=self.cluster_id,
        )
