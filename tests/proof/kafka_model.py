"""A broker without I/O: the emulator's coordinator decisions for one transactional id, and one partition of one topic.

`Kafka` is a value. `serve` carries a request out at once and returns the response, or `BLOCKED` where a broker would
answer "try again" until something else has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.transactions import coordinator as decisions
from dualwrite.broker_emulator.transactions import transitions
from dualwrite.broker_emulator.transactions.metadata import CoordinatorRules, ProducerPair, TransactionMetadata
from dualwrite.broker_emulator.transactions.states import (
    EXPIRABLE_STATES,
    ONGOING,
    PREPARE_COMMIT,
    PREPARE_STATES,
)
from dualwrite.client import messages as m
from dualwrite.client.transactions.recovery import Described, DescribedState
from dualwrite.errors import Api
from dualwrite.prepared_state import PreparedTxnState

TOPIC: Final = "orders"
PARTITION: Final = TopicPartition(TOPIC, 0)
TRANSACTIONAL_ID: Final = "payments"

NO_DEADLINE_MS: Final = 10**9
"""A timeout that no program reaches: it may wait in a search for minutes."""

_NEVER_MS: Final = 10**15
_FENCED: Final = 47
_OUT_OF_ORDER: Final = 45


class Produce(NamedTuple):
    """Write one batch of records to the partition."""

    producer_id: int
    producer_epoch: int
    sequence: int
    records: tuple[bytes, ...]
    transaction_version: int


class Produced(NamedTuple):
    """The response to Produce."""

    error_code: int
    base_offset: int = -1


class Added(NamedTuple):
    """The response to AddPartitionsToTxn, for the one partition."""

    error_code: int


class EndOf(NamedTuple):
    """Read how readers with read_committed see the transaction of a pair whose first record is at an offset."""

    producer_id: int
    producer_epoch: int
    first_offset: int


class RecordsOf(NamedTuple):
    """Read the records of a pair from an offset on."""

    producer_id: int
    producer_epoch: int
    first_offset: int


class RepairOf(NamedTuple):
    """Read whether records of an aborted pair, from an offset on, were published again by a committed transaction.

    `undecided` is open, and is going to be aborted.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    undecided: str = ""


class Blocked(Enum):
    """The answer of a broker that has to be asked again later."""

    BLOCKED = "ask again"


BLOCKED: Final = Blocked.BLOCKED


class Batch(NamedTuple):
    """A batch in the log."""

    offset: int
    producer_id: int
    producer_epoch: int
    sequence: int
    records: tuple[bytes, ...]


class Marker(NamedTuple):
    """A control batch in the log."""

    offset: int
    producer_id: int
    producer_epoch: int
    committed: bool


class Kafka(NamedTuple):
    """The coordinator's metadata of the id, the partition's log, and the next producer id that is free."""

    metadata: TransactionMetadata | None = None
    log: tuple[Batch | Marker, ...] = ()
    next_producer_id: int = 1


class Profile(NamedTuple):
    """A kind of broker: its rules, and the version ranges that it offers."""

    name: str
    rules: CoordinatorRules
    features: m.BrokerFeatures


def _features(transaction_version: int, **newest: int) -> m.BrokerFeatures:
    versions = {
        Api.INIT_PRODUCER_ID: (0, newest.get("init", 5)),
        Api.END_TXN: (0, 5 if transaction_version >= 2 else 4),
        Api.TXN_OFFSET_COMMIT: (0, 5 if transaction_version >= 2 else 4),
        Api.ADD_PARTITIONS_TO_TXN: (0, 5),
        Api.ADD_OFFSETS_TO_TXN: (0, 4),
        Api.DESCRIBE_TRANSACTIONS: (0, 0),
        Api.PRODUCE: (3, 12),
        Api.FIND_COORDINATOR: (0, 6),
    }
    return m.BrokerFeatures(0, {int(api): versions[api] for api in versions}, transaction_version)


_TIER_1_RULES: Final = CoordinatorRules(max_timeout_ms=NO_DEADLINE_MS)
_KAFKA_4_RULES: Final = CoordinatorRules(
    two_phase_commit_enabled=False,
    keep_prepared_supported=False,
    late_commit_error=ErrorCode.invalid_txn_state,
    logs_last_epoch=False,
    exhausted_init_retry_fails=True,
    max_timeout_ms=NO_DEADLINE_MS,
)
_KAFKA_3_RULES: Final = replace(
    _KAFKA_4_RULES, transaction_version=0, newest_client_version=0, pending_checked_before_identity=False
)

PROFILES: Final = {
    1: Profile("tier 1 (KIP-939)", _TIER_1_RULES, _features(2, init=6)),
    2: Profile(
        "tier 2 (two-phase commit without KeepPreparedTxn)",
        replace(_KAFKA_4_RULES, two_phase_commit_enabled=True),
        _features(2, init=6),
    ),
    3: Profile("tier 3 (Kafka 4)", _KAFKA_4_RULES, _features(2)),
    4: Profile("tier 4 (Kafka 3.9)", _KAFKA_3_RULES, _features(0)),
}
"""By tier."""


# ---- requests -------------------------------------------------------------------------------------------------------


def serve(kafka: Kafka, request: object, profile: Profile) -> tuple[Kafka, object]:
    """Carry a request out; return the broker after it, and the response."""
    match request:
        case m.InitProducerId():
            return _init(kafka, request, profile.rules)
        case m.EndTxn():
            return _end(kafka, request, profile.rules)
        case m.AddPartitionsToTxn():
            kafka, code = _add(kafka, request.producer_id, request.producer_epoch, profile.rules, 0)
            if code is ErrorCode.concurrent_transactions:
                return kafka, BLOCKED
            return kafka, Added(code.value)
        case m.DescribeTransaction():
            return kafka, _described(kafka.metadata)
        case Produce():
            return _produce(kafka, request, profile.rules)
        case EndOf():
            return kafka, end_of(kafka, request)
        case RecordsOf():
            return kafka, _records_of(kafka, request)
        case RepairOf():
            return kafka, _repair_of(kafka, request)
    raise AssertionError(f"no broker knows {request!r}")


def _init(kafka: Kafka, request: m.InitProducerId, rules: CoordinatorRules) -> tuple[Kafka, object]:
    wanted = decisions.InitProducerIdRequest(
        request.transaction_timeout_ms,
        ProducerPair(request.producer_id, request.producer_epoch),
        request.enable_2pc,
        request.keep_prepared_txn,
    )
    refused = decisions.check_init_request(TRANSACTIONAL_ID, wanted, rules)
    if refused is not ErrorCode.none:
        return kafka, m.InitProducerIdResponse(refused.value)
    decision = decisions.decide_init_producer_id(
        TRANSACTIONAL_ID, kafka.metadata, wanted, rules, new_producer_id=kafka.next_producer_id, now_ms=0
    )
    if decision.transition is None and decision.response.error is ErrorCode.concurrent_transactions:
        return kafka, BLOCKED
    result = decision.response
    return _applied(kafka, decision.transition), m.InitProducerIdResponse(result.error.value, *result[1:])


def _end(kafka: Kafka, request: m.EndTxn, rules: CoordinatorRules) -> tuple[Kafka, object]:
    decision = decisions.decide_end_txn(
        kafka.metadata,
        ProducerPair(request.producer_id, request.producer_epoch),
        rules,
        commit=request.committed,
        transaction_version=request.transaction_version,
        new_producer_id=kafka.next_producer_id,
        now_ms=0,
    )
    if decision.transition is None and decision.response.error is ErrorCode.concurrent_transactions:
        return kafka, BLOCKED
    result = decision.response
    return _applied(kafka, decision.transition), m.EndTxnResponse(result.error.value, *result[1:])


def _add(
    kafka: Kafka, producer_id: int, producer_epoch: int, rules: CoordinatorRules, version: int
) -> tuple[Kafka, ErrorCode]:
    decision = decisions.decide_add_partitions(
        kafka.metadata,
        ProducerPair(producer_id, producer_epoch),
        (PARTITION,),
        rules,
        transaction_version=version,
        now_ms=0,
    )
    return _applied(kafka, decision.transition), decision.response


def _applied(kafka: Kafka, transition: transitions.Transition | None) -> Kafka:
    if transition is None:
        return kafka
    after = transition.after
    used = max(after.producer_id, after.next_producer_id, after.previous_producer_id)
    return kafka._replace(metadata=after, next_producer_id=max(kafka.next_producer_id, used + 1))


def described(kafka: Kafka) -> Described | None:
    """Return what the coordinator says of the id; None if it does not know it."""
    if kafka.metadata is None:
        return None
    pair = PreparedTxnState.of(producer_id=kafka.metadata.producer_id, producer_epoch=kafka.metadata.producer_epoch)
    return Described(DescribedState(kafka.metadata.state.label), pair, kafka.metadata.start_timestamp_ms)


def _described(metadata: TransactionMetadata | None) -> m.DescribeTransactionResponse:
    if metadata is None:
        return m.DescribeTransactionResponse(ErrorCode.transactional_id_not_found.value)
    return m.DescribeTransactionResponse(
        0,
        metadata.state.label,
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.start_timestamp_ms,
        metadata.timeout_ms,
    )


# ---- the partition --------------------------------------------------------------------------------------------------


def _produce(kafka: Kafka, request: Produce, rules: CoordinatorRules) -> tuple[Kafka, object]:
    producer_id, epoch = request.producer_id, request.producer_epoch
    mine = [entry for entry in kafka.log if entry.producer_id == producer_id]
    # before Kafka 4 a transaction that is open at any epoch counts as verified
    if not _is_open(kafka, producer_id, epoch if rules.newest_client_version >= 2 else None):
        if request.transaction_version >= 2:
            kafka, code = _add(kafka, producer_id, epoch, rules, 2)
        else:
            found = decisions.verify_partitions(kafka.metadata, ProducerPair(producer_id, epoch), (PARTITION,))
            code = found[PARTITION]
        if code is ErrorCode.concurrent_transactions:
            return kafka, BLOCKED
        if code is ErrorCode.producer_fenced:
            return kafka, Produced(_FENCED)
        if code is not ErrorCode.none:
            return kafka, Produced(code.value)
    current = max((entry.producer_epoch for entry in mine), default=-1)
    if epoch < current:
        return kafka, Produced(_FENCED)
    batches = [entry for entry in mine if isinstance(entry, Batch) and entry.producer_epoch == epoch]
    for batch in batches:
        if batch.sequence == request.sequence:
            return kafka, Produced(0, batch.offset)
    expected = batches[-1].sequence + len(batches[-1].records) if batches else 0
    if request.sequence != expected:
        return kafka, Produced(_OUT_OF_ORDER)
    batch = Batch(_end_offset(kafka), producer_id, epoch, request.sequence, request.records)
    return kafka._replace(log=(*kafka.log, batch)), Produced(0, batch.offset)


def _is_open(kafka: Kafka, producer_id: int, epoch: int | None = None) -> bool:
    last = next((entry for entry in reversed(kafka.log) if entry.producer_id == producer_id), None)
    return isinstance(last, Batch) and epoch in (None, last.producer_epoch)


def _end_offset(kafka: Kafka) -> int:
    if not kafka.log:
        return 0
    last = kafka.log[-1]
    return last.offset + (len(last.records) if isinstance(last, Batch) else 1)


def end_of(kafka: Kafka, request: EndOf) -> object:
    """Return the name of a `PartitionEnd`; `BLOCKED` before the marker."""
    behind = [entry for entry in kafka.log if entry.offset >= request.first_offset]
    if not behind or behind[0][1:3] != (request.producer_id, request.producer_epoch):
        return "GONE"
    for entry in behind:
        if isinstance(entry, Marker) and entry.producer_id == request.producer_id:
            return "COMMITTED" if entry.committed else "ABORTED"
    return BLOCKED


def _records_of(kafka: Kafka, request: RecordsOf) -> tuple[bytes, ...]:
    found: list[bytes] = []
    for entry in kafka.log:
        if isinstance(entry, Batch) and entry[1:3] == (request.producer_id, request.producer_epoch):
            found += entry.records
    return tuple(found)


def _repair_of(kafka: Kafka, request: RepairOf) -> object:
    """Return the pair of the transaction, "" if there is none; `BLOCKED` while one that looks like it is open."""
    wanted = _records_of(kafka, RecordsOf(*request[:3]))
    behind = [entry for entry in kafka.log if entry.offset > request.first_offset]
    is_blocked = False
    for at, entry in enumerate(behind):
        if not isinstance(entry, Batch) or entry.records[: len(wanted)] != wanted:
            continue
        pair = f"{entry.producer_id}:{entry.producer_epoch}"
        if _is_committed(behind[at:], entry):
            return pair
        is_over = any(isinstance(each, Marker) and each.producer_id == entry.producer_id for each in behind[at:])
        is_blocked = is_blocked or not (is_over or pair == request.undecided)
    return BLOCKED if is_blocked else ""


def _is_committed(behind: Sequence[Batch | Marker], batch: Batch) -> bool:
    ends = (entry for entry in behind if isinstance(entry, Marker) and entry.producer_id == batch.producer_id)
    end = next(ends, None)
    return end is not None and end.committed


def visible(kafka: Kafka) -> list[bytes]:
    """Return the records that readers with read_committed see, also beyond the last stable offset."""
    found: list[bytes] = []
    for at, entry in enumerate(kafka.log):
        if isinstance(entry, Batch) and _is_committed(kafka.log[at:], entry):
            found += entry.records
    return found


# ---- what a broker does by itself, or for others --------------------------------------------------------------------


def marker_is_due(kafka: Kafka) -> bool:
    """Return whether a decided transaction waits for its marker."""
    return kafka.metadata is not None and kafka.metadata.state in PREPARE_STATES


def marker_is_refused(kafka: Kafka) -> bool:
    """Return whether a marker is due that the partition's leader refuses, because it knows a newer epoch."""
    if not marker_is_due(kafka):
        return False
    assert kafka.metadata is not None
    producer_id, epoch = kafka.metadata.producer_pair
    return any(entry.producer_epoch > epoch for entry in kafka.log if entry.producer_id == producer_id)


def write_marker(kafka: Kafka) -> Kafka:
    """Write the marker of the decided transaction, and complete it."""
    metadata = kafka.metadata
    assert metadata is not None
    if PARTITION in metadata.topic_partitions:
        pair = metadata.producer_pair
        marker = Marker(_end_offset(kafka), *pair, metadata.state is PREPARE_COMMIT)
        kafka = kafka._replace(log=(*kafka.log, marker))
    return kafka._replace(metadata=transitions.completed(metadata, 0).after)


def timed_out(kafka: Kafka, profile: Profile) -> Kafka | None:
    """Abort the open transaction by its timeout; None if there is none, or it has no timeout."""
    if kafka.metadata is None:
        return None
    transition = decisions.decide_timeout_abort(
        kafka.metadata, profile.rules, new_producer_id=kafka.next_producer_id, now_ms=_NEVER_MS
    )
    return None if transition is None else _applied(kafka, transition)


def initialised_by_another(kafka: Kafka, profile: Profile) -> Kafka | None:
    """Initialise the id as a foreign program does, which aborts an open transaction; None if nothing would change."""
    request = m.InitProducerId(TRANSACTIONAL_ID, NO_DEADLINE_MS, enable_2pc=False, keep_prepared_txn=False)
    after, _ = _init(kafka, request, profile.rules)
    return None if after == kafka else after


def expired(kafka: Kafka) -> Kafka | None:
    """Forget the id, as after weeks without use; None if its state does not allow that."""
    metadata = kafka.metadata
    if metadata is None or metadata.state not in EXPIRABLE_STATES or metadata.pending_state is not None:
        return None
    return kafka._replace(metadata=None)


def is_open(kafka: Kafka) -> bool:
    """Return whether a transaction is open, at the coordinator or in the partition."""
    pids = {entry.producer_id for entry in kafka.log}
    return (kafka.metadata is not None and kafka.metadata.state is ONGOING) or any(_is_open(kafka, pid) for pid in pids)
