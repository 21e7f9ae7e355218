"""The judge of refusals: which errors keep a writer from writing, and whether an id's row is the cause of one.

`REFUSALS` has a row for each exception with which a writer can refuse a block: its name, the blocks that it concerns,
the exit code of a command that finds it, and the remedy. `refusal_by_row` judges one id by its row, the cluster and the
coordinator's description. Writers raise what it returns, and `recover`, `top`, `doctor` and readiness ask it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from dualwrite import errors as e
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.client.transactions.recovery import Described, commits_later
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.proof import is_elsewhere, is_forgotten, is_settled, manifest_of


class Concerns(StrEnum):
    """The blocks that a refusal concerns, until its cause is removed."""

    ALL = "all blocks"
    ID = "the blocks of a transactional id"
    TOPIC = "the blocks that send to a topic"
    BLOCK = "this block alone"
    MOMENT = "the blocks of a moment: it passes by itself"
    UNREACHABLE = "all blocks, while a server cannot be reached"
    LOGIN = "all blocks, until the server lets this client in"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row. `name` is what `doctor`, `recover` and `top` call it."""

    name: str
    concerns: Concerns
    remedy: str

    @property
    def exit_code(self) -> int:
        if self.concerns in (Concerns.UNREACHABLE, Concerns.LOGIN):
            return 2
        return int(self.stops_writers or self.concerns is Concerns.TOPIC)

    @property
    def stops_writers(self) -> bool:
        """Whether other blocks are refused too, until the cause is removed."""
        return self.concerns in (Concerns.ALL, Concerns.ID, Concerns.LOGIN)


def _table(*rows: tuple[str, Concerns, str, tuple[type[e.DualWriteError], ...]]) -> dict[type, Refusal]:
    return {error: Refusal(name, concerns, remedy) for name, concerns, remedy, several in rows for error in several}


REFUSALS: Final = MappingProxyType(
    _table(
        (
            "another-cluster",
            Concerns.ID,
            "connect to the cluster that the row names; if it is gone for good, give up what is in doubt there with "
            "the command that `dualwrite recover` names",
            (e.AnotherClusterError,),
        ),
        (
            "went-back",
            Concerns.ID,
            "compare the database with the records since, repair one side, and go on with "
            "`dualwrite recover --acknowledge-lost ID --apply`",
            (e.DatabaseWentBackError,),
        ),
        (
            "lost",
            Concerns.ID,
            "the database has committed, Kafka has aborted, and the records cannot be published again: send them "
            "again, then stop this report with `dualwrite recover --acknowledge-lost ID --apply`",
            (e.PreparedTransactionLost, e.RecordsGoneError),
        ),
        ("hangs", Concerns.ID, "end the transaction with the command that the error names", (e.TransactionHangsError,)),
        (
            "not-proven",
            Concerns.ID,
            "cannot prove whether Kafka has committed the last batch of this outbox, which publishes nothing more: "
            "grant READ on its topics, or check them for its records; if they are missing, "
            "`dualwrite recover --publish-again ID --apply`, else `dualwrite recover --take-out ID:0 --apply`",
            (e.NotProvenError,),
        ),
        (
            "refused",
            Concerns.ID,
            "Kafka refuses a record that is stored or owed, and all records behind it wait: correct the cause, or take "
            "it out with `dualwrite recover --take-out ID:SEQ --apply`",
            (e.RecordsRefusedError, e.StoredBlockRefusedError, e.OwedRecordsRefusedError),
        ),
        (
            "moved-database",
            Concerns.ALL,
            "`dualwrite adopt --moved` if the original is gone for good, `dualwrite adopt --copied` if it is in use",
            (e.DatabaseMovedError,),
        ),
        (
            "state-table",
            Concerns.ALL,
            "create it with `dualwrite init-db`, or name its schema; compare one that was edited or made by hand with "
            "`dualwrite init-db --sql`",
            (e.StateRowError, e.StateTableError),
        ),
        (
            "unsafe-database",
            Concerns.ALL,
            "correct the setting that the error names, or accept the database by name",
            (e.UnsafeDatabaseError,),
        ),
        ("not-durable", Concerns.ALL, "bring the standby back that COMMIT waits for", (e.NotDurableError,)),
        (
            "right",
            Concerns.ALL,
            "grant the right that the error names: WRITE on the transactional id, and READ and WRITE on the topic",
            (e.AuthorizationError,),
        ),
        (
            "login",
            Concerns.LOGIN,
            "correct the identity, the password or the certificate that the error names",
            (e.AuthenticationError,),
        ),
        (
            "broker",
            Concerns.TOPIC,
            "change the settings or the topic as the error says, or upgrade the brokers",
            (e.UnsupportedByBrokerError,),
        ),
        (
            "store-full",
            Concerns.ALL,
            "bring Kafka back, or the publisher of the outbox; or raise the limit",
            (e.StoreFullError,),
        ),
        (
            "unreachable",
            Concerns.UNREACHABLE,
            "get a broker back, or correct bootstrap_servers; then repeat the block",
            (e.KafkaUnreachableError,),
        ),
        (
            "topic",
            Concerns.TOPIC,
            "read the error: a right on the topic is missing, its settings refuse the record, or it is not stored in "
            "time; then repeat the block",
            (e.DeliveryError, e.AbortableError),
        ),
        (
            "program",
            Concerns.BLOCK,
            "correct the program, or the record, as the error says",
            (
                e.DualWriteError,
                e.ConfigError,
                e.IllegalStateError,
                e.InvalidTxnStateError,
                e.InvalidRecordError,
                e.RecipeError,
                e.TransactionDoomedError,
                e.TransactionTooLargeError,
                e.TransactionEndedInsideError,
            ),
        ),
        (
            "consumed-log",
            Concerns.BLOCK,
            "see whether the log was meant to change, then `forget_consumed_offsets`",
            (e.ConsumedLogError, e.ConsumedLogReplacedError, e.ConsumedRecordsMissingError),
        ),
        (
            "fenced",
            Concerns.BLOCK,
            "give each process an id of its own, or use a pool; then make a new writer",
            (e.FencedError, e.FatalError, e.PartitionTakenOverError),
        ),
        (
            "unknown",
            Concerns.MOMENT,
            "call recover(), which returns the outcome, before the block is repeated",
            (e.OutcomeUnknown, e.NoMarkerError, e.CommitOutcomeUnknown, e.FencedCommitOutcomeUnknown),
        ),
        (
            "moment",
            Concerns.MOMENT,
            "repeat the block",
            (
                e.KafkaError,
                e.RetriableError,
                e.KafkaTimeoutError,
                e.SnapshotTooOldError,
                e.RowLockTimeoutError,
                e.BoundExceededError,
                e.StoredBlocksError,
                e.PoolTimeoutError,
                e.AdminError,
                e.TransactionalIdNotFoundError,
                e.InvalidPatternError,
                e.IncompleteAnswerError,
            ),
        ),
    )
)


def refusal_of(error: e.DualWriteError) -> Refusal:
    """Return the row of an error; that of its nearest base, for a class that is defined elsewhere."""
    return next(REFUSALS[each] for each in type(error).__mro__ if each in REFUSALS)


# ---- one id -----------------------------------------------------------------------------------------------------


class RowInCluster(NamedTuple):
    """The row of an id, and what the cluster that answers says of it.

    `cluster_id` is "" if unknown. `described` is the coordinator's description, None if it is not known.
    """

    transactional_id: str
    stored: PreparedTxnState
    text: str
    cluster_id: str
    described: Described | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the row's transaction needs no more proof in this cluster."""
        if is_settled(self.stored, self.text):
            return True
        return is_forgotten(self.stored, self.text) and self.elsewhere is not None

    @property
    def elsewhere(self) -> Manifest | None:
        """The manifest, if the row's transaction was prepared in another cluster, which alone can tell its end."""
        manifest = manifest_of(self.stored, self.text)
        return manifest if manifest is not None and manifest.is_elsewhere(self.cluster_id) else None

    @property
    def is_behind(self) -> bool:
        """Whether Kafka has committed a later transaction than the row's; pairs of two clusters have no order."""
        if self.described is None or not commits_later(self.stored, self.described):
            return False
        return not is_elsewhere(self.stored, self.text, self.cluster_id)


def refusal_by_row(found: RowInCluster, keeps_prepared: Callable[[], bool]) -> e.DualWriteError | None:
    """Return the error with which a writer refuses the id because of its row; None if the row is no cause.

    `keeps_prepared`: whether the cluster supports KeepPreparedTxn, where a later epoch proves nothing; called only if
    the answer depends on it. Raises ValueError for an unreadable manifest.
    """
    manifest = found.elsewhere
    if manifest is not None and not found.is_settled:
        return manifest.elsewhere(found.cluster_id, found.transactional_id)
    if not found.is_behind or keeps_prepared():
        return None
    return behind_kafka(found.transactional_id, found.stored)


def behind_kafka(transactional_id: str, row: PreparedTxnState) -> e.DatabaseWentBackError:
    """Return the error for a row that is older than a transaction that Kafka has committed under the id."""
    shows = "Kafka has committed a later transaction of the id"
    return went_back(transactional_id, row, shows, ", or another program uses the id")


def went_back(transactional_id: str, row: PreparedTxnState, shows: str, or_else: str = "") -> e.DatabaseWentBackError:
    """Return the error for a row that is older than a decision that Kafka still `shows`."""
    return e.DatabaseWentBackError(
        f"the state row of transactional id {transactional_id!r} holds {str(row)!r}, but {shows}: the database was "
        f"restored or failed over to an earlier state, or the row was edited{or_else}. Nothing was changed on either "
        "side. Kafka still holds the records of changes that the database has lost: compare both sides and repair one; "
        f"then close the writers of the id, run `dualwrite recover --acknowledge-lost {transactional_id} --apply`, and "
        "create new ones, which continue from the row"
    )
