"""The input of the coordinator's decisions: the metadata of a transactional id, and the rules. Immutable values.

A *pair* is a producer id with a producer epoch. Two of them can be valid at once (KIP-939). The *producer pair* is the
pair with which the open transaction writes and from which its markers derive. The *client pair* is the only pair that
may end that transaction: the next pair while one is recorded beside an Ongoing transaction, else the producer pair.

The rules are set by the configuration and the behaviour profile.

For each `__transaction_state` partition that its node leads, the coordinator has them in memory (`OwnedPartition`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import MAX_EPOCH, TWO_PHASE_COMMIT_TIMEOUT_MS, BrokerConfig
from dualwrite.broker_emulator.profiles import KeepPrepared, LateCommit
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions.states import TransactionState

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP_MS = -1

LAST_USABLE_EPOCH = MAX_EPOCH - 1
"""The last epoch at which a transaction can be opened: its markers need one more (KIP-890)."""


class ProducerPair(NamedTuple):
    """A producer id with an epoch: one incarnation of a producer; under transaction version 2, one transaction."""

    producer_id: int
    producer_epoch: int

    @property
    def is_exhausted(self) -> bool:
        """Whether no later epoch can open a transaction under this producer id."""
        return self.producer_epoch >= LAST_USABLE_EPOCH


NO_PAIR = ProducerPair(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class TransactionMetadata(NamedTuple):
    """One transactional id at one moment. The last two fields exist only in memory; the rest is in the log.

    A tuple, because each transaction makes eight of them and a frozen dataclass takes three times as long to copy.

    `producer_epoch` is -1 until the first InitProducerId of the id is in the log. In a Prepare state, the producer pair
    has the markers' epoch, and the next pair, if any, is the id's pair after completion. `previous_producer_id` is the
    producer id that the client used in the request that ended the last transaction or rotated the producer id; from the
    id's next step on, it is -1 (KIP-890, KIP-939).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    client_transaction_version: int = 0
    topic_partitions: frozenset[TopicPartition] = frozenset()
    start_timestamp_ms: int = NO_TIMESTAMP_MS
    last_update_timestamp_ms: int = NO_TIMESTAMP_MS
    pending_state: TransactionState | None = None
    has_failed_epoch_fence: bool = False

    @property
    def producer_pair(self) -> ProducerPair:
        """The pair of the open transaction; in a Prepare state, the pair on its markers."""
        return ProducerPair(self.producer_id, self.producer_epoch)

    @property
    def next_pair(self) -> ProducerPair:
        """The pair that replaces the producer pair on completion; `NO_PAIR` if there is none."""
        return ProducerPair(self.next_producer_id, self.next_producer_epoch)

    @property
    def has_dual_identity(self) -> bool:
        """Whether a recovering client holds another pair than the open transaction (KIP-939)."""
        return self.next_producer_epoch != NO_PRODUCER_EPOCH and self.state is TransactionState.ONGOING

    @property
    def client_pair(self) -> ProducerPair:
        """The pair that EndTxn and InitProducerId must present."""
        if self.has_dual_identity:
            return ProducerPair(self.next_producer_id, self.next_producer_epoch)
        return ProducerPair(self.producer_id, self.producer_epoch)

    @property
    def is_two_phase_commit(self) -> bool:
        """Whether the transaction never times out (KIP-939)."""
        return self.timeout_ms == TWO_PHASE_COMMIT_TIMEOUT_MS


def copier(*names: str) -> Callable[..., TransactionMetadata]:
    """Return a function that copies metadata with new values for all of the fields `names`.

    The function replaces `_replace`, in a third of the time: each transaction is copied six times. Call this once, at
    import. Raises ValueError on a name that is not a field.
    """
    fields = TransactionMetadata._fields
    unknown = set(names).difference(fields)
    if unknown:
        raise ValueError(f"not fields of TransactionMetadata: {', '.join(sorted(unknown))}")
    kept = ", ".join("_" if name in names else f"old_{name}" for name in fields)
    values = ", ".join(name if name in names else f"old_{name}" for name in fields)
    source = f"def copy(before, {', '.join(names)}):\n    {kept} = before\n    return new(kind, ({values}))\n"
    namespace: dict[str, Any] = {"new": tuple.__new__, "kind": TransactionMetadata}
    exec(compile(source, f"<{__name__}>", "exec"), namespace)
    copy: Callable[..., TransactionMetadata] = namespace["copy"]
    return copy


_LATE_COMMIT_ERRORS: Final = {
    LateCommit.PRODUCER_FENCED: ErrorCode.producer_fenced,
    LateCommit.INVALID_TXN_STATE: ErrorCode.invalid_txn_state,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRules:
    """The rules of decisions, by default profile `kip-939`: all of the KIPs and, where releases differ, the newest."""

    transaction_version: int = 2
    """The cluster's finalized `transaction.version`: determines the log's value version and how the server aborts."""
    newest_client_version: int = 2
    """The newest transaction version recorded for a client's request; brokers before 4.0 record none."""
    two_phase_commit_enabled: bool = True
    keep_prepared: KeepPrepared = KeepPrepared.SECOND_PAIR
    keep_prepared_needs_2pc: bool = False
    keep_prepared_excludes_expected_pair: bool = True
    recovering_client_reaches_last_epoch: bool = True
    completes_with_client_as_previous: bool = True
    """The last five: two-phase commit as `profiles.py` explains it (KIP-939)."""
    max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    rotates_on_server_abort: bool = True
    """Whether a server abort at the epoch limit completes under a fresh producer id (KAFKA-20090; seen in 4.3.1)."""
    late_commit_error: ErrorCode = ErrorCode.producer_fenced
    """The error for a commit that arrives after the server aborted (KAFKA-20785); INVALID_TXN_STATE before the fix."""
    pending_checked_before_identity: bool = True
    """Whether adding partitions checks for a pending transition before it checks the producer (KAFKA-18660)."""
    init_forgets_start_time: bool = True
    """Whether InitProducerId forgets when the id's last transaction began (observed: 4.4.0, but not 3.9.2)."""
    init_fences_before_it_aborts: bool = True
    """Whether InitProducerId over an open transaction raises the epoch before the abort, not only when repeated."""
    stores_start_time: bool = True
    """Whether the start of a transaction is known, not only its last change."""
    logs_next_epoch: bool = True
    """Whether `__transaction_state` stores the pair of a recovering client (KIP-939)."""
    logs_last_epoch: bool = True
    """Whether `__transaction_state` stores the epoch before the last bump (KAFKA-20357). If not, a retry of EndTxn is
    recognised by an epoch that is one behind, and the next coordinator does not recognise a retry of InitProducerId.
    """
    unwritable_record_wedges: bool = False
    """Whether an id stays pending forever (51) after a record for which the log has no format: the record of a request
    of transaction version 2 on a cluster at level 0. Seen in 4.3.1; it ends when the coordinator moves.
    """
    exhausted_init_retry_fails: bool = False
    """Whether InitProducerId with the last epoch, at the epoch limit, surfaces Kafka's IllegalStateException as -1.

    KIP-360 asks for the idempotent response instead.
    """

    @classmethod
    def from_config(cls, config: BrokerConfig) -> Self:
        """Return the rules of an emulator's configuration."""
        profile = config.behaviours
        transaction_version = config.transaction_version if profile.has_features else 0
        needs_version_2 = profile.keep_prepared_needs_transaction_version_2
        return cls(
            transaction_version=transaction_version,
            newest_client_version=2 if profile.has_features else 0,
            two_phase_commit_enabled=config.transaction_two_phase_commit_enable,
            keep_prepared=(
                KeepPrepared.REFUSED if needs_version_2 and transaction_version < 2 else profile.keep_prepared
            ),
            keep_prepared_needs_2pc=profile.keep_prepared_needs_2pc,
            keep_prepared_excludes_expected_pair=profile.keep_prepared_excludes_expected_pair,
            recovering_client_reaches_last_epoch=profile.recovering_client_reaches_last_epoch,
            completes_with_client_as_previous=profile.completes_with_client_as_previous,
            max_timeout_ms=config.transaction_max_timeout_ms,
            transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            late_commit_error=_LATE_COMMIT_ERRORS[profile.late_commit],
            pending_checked_before_identity=profile.pending_checked_before_identity,
            init_forgets_start_time=profile.init_forgets_start_time,
            init_fences_before_it_aborts=profile.init_fences_before_it_aborts,
            stores_start_time=profile.stores_start_time,
            logs_next_epoch=profile.logs_next_epoch,
            logs_last_epoch=profile.logs_last_epoch,
            unwritable_record_wedges=profile.unwritable_record_wedges,
            exhausted_init_retry_fails=profile.exhausted_init_retry_fails,
        )

    @property
    def logged(self) -> Mapping[str, bool]:
        """The fields of an id that the log holds, as arguments of `transaction_log.encode_value`."""
        return {"has_last_epoch": self.logs_last_epoch, "has_next_epoch": self.logs_next_epoch}


class Deadlines:
    """Names with the time at which a scan has to look at each; other names cost a scan nothing.

    A name has one deadline, the earliest given. So extending the deadline of a name again and again costs nothing: it
    falls due once at the old time, and the caller then schedules it for the current deadline.
    """

    __slots__ = ("_by_name", "_heap")

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def schedule(self, name: str, deadline_ms: int) -> None:
        """Let `name` fall due at `deadline_ms`, unless it falls due earlier."""
        known_ms = self._by_name.get(name)
        if known_ms is None or deadline_ms < known_ms:
            self._by_name[name] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, name))

    def take_due(self, now_ms: int) -> list[str]:
        """Remove and return the names whose deadline has passed."""
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = heapq.heappop(self._heap)
            if self._by_name.get(name) == deadline_ms:  # otherwise an earlier deadline replaced this one
                del self._by_name[name]
                due.append(name)
        return due


@dataclass(slots=True, eq=False)
class OwnedPartition:
    """One partition of `__transaction_state` during one term of leadership."""

    partition: int
    coordinator_epoch: int
    ids: dict[str, TransactionMetadata] = field(default_factory=dict)
    marker_runs: dict[str, MarkerRun] = field(default_factory=dict)
    """By transactional id, for every transaction that is being ended."""
    timeouts: Deadlines = field(default_factory=Deadlines)
    """Of every id with an open transaction that can time out."""
    expiries: Deadlines = field(default_factory=Deadlines)
    """Of every id."""
    is_led: bool = True
    """False once the term is over."""


@dataclass(slots=True, eq=False)
class MarkerRun:
    """The markers of one decided transaction; cancelled as a whole when a leader reports a newer coordinator."""

    owned: OwnedPartition
    decided: TransactionMetadata
    acknowledged: set[TopicPartition] = field(default_factory=set)
    is_cancelled: bool = False


class Progress(NamedTuple):
    """The written markers of a transaction."""

    coordinator_epoch: int
    marked: frozenset[TopicPartition]
    """The partitions whose leaders have acknowledged the marker."""
