"""A broker without I/O: the emulator's coordinator decisions for one transactional id, and the partitions of one topic.

`Kafka` is a value. `serve` carries a request out at once and returns the response, or `BLOCKED` where a broker would
answer "try again" until another event. A broker's own events are in `kafka_events.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.offset_commits import COORDINATOR_ERRORS
from dualwrite.broker_emulator.profiles import KeepPrepared
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions import coordinator as decisions
from dualwrite.broker_emulator.transactions import init_producer_id, transitions
from dualwrite.broker_emulator.transactions.metadata import CoordinatorRules, ProducerPair, TransactionMetadata
from dualwrite.client import messages as m
from dualwrite.client.transactions.recovery import Described, DescribedState
from dualwrite.errors import Api
from dualwrite.prepared_state import PreparedTxnState
from tests.proof import kafka_log
from tests.proof.kafka_log import FENCED, Log
from tests.proof.kafka_offsets import append_offset
from tests.proof.kafka_requests import (
    BLOCKED,
    OFFSETS,
    TRANSACTIONAL_ID,
    Added,
    AskFeatures,
    CommitOffset,
    EndOf,
    Features,
    OffsetCommitted,
    Produce,
    Produced,
    RecordsOf,
    RepairOf,
    WriteMarker,
    topic_partition,
)
from tests.proof.remembered import remembered

NO_DEADLINE_MS: Final = 10**9
"""A timeout that no program reaches: it may wait in a search for minutes."""

FOREIGN_TIMEOUT_MS: Final = 60_000
"""The transaction timeout of foreign programs, if it is not the same: a process that takes the id over looks at it."""


class Kafka(NamedTuple):
    """The coordinator's metadata of the id, the logs of the topic's partitions, and the next free producer id.

    Fields that a space does not use keep their defaults, and so add no state.
    """

    metadata: TransactionMetadata | None = None
    logs: tuple[Log, ...] = ((),)
    next_producer_id: int = 1
    offsets: Log = ()
    """The partition that stores the offsets of the group."""
    acknowledged: frozenset[TopicPartition] = frozenset()
    """The partitions whose marker is written, as far as the coordinator knows, while others of them are due."""
    coordinator_epoch: int = 0
    is_upgraded: bool = False
    """Whether the cluster has the profile's later rules."""


class Profile(NamedTuple):
    """A kind of broker: its rules, and the version ranges that it offers."""

    name: str
    rules: CoordinatorRules
    features: m.BrokerFeatures
    later: Profile | None = None
    """The version that the cluster may be upgraded to."""
    forgets_offsets: bool = False
    """Whether the group coordinator forgets the pending offsets of a producer id when it refuses an offset of an old
    epoch, as that of Kafka 3.9 and older does, unless `group.coordinator.new.enable` is set
    (docs/internals/late-requests.md).
    """

    @property
    def marker_version(self) -> int:
        """The newest transaction version that a marker tells the leader (KIP-1228); 3.9 tells none."""
        return self.rules.newest_client_version


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
    keep_prepared=KeepPrepared.REFUSED,
    late_commit_error=ErrorCode.invalid_txn_state,
    logs_next_epoch=False,
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
"""Profiles by tier."""

OLD_GROUPS: Final = PROFILES[4]._replace(name="tier 4 (Kafka 3.9 with the old group coordinator)", forgets_offsets=True)

UPGRADED: Final = Profile(
    "tier 4 (Kafka 4 at transaction.version 1), upgraded to tier 3",
    replace(_KAFKA_4_RULES, transaction_version=1),
    _features(2)._replace(transaction_version=1),
    later=PROFILES[3],
)
"""`transaction.version` is raised when every broker runs Kafka 4 already."""


def rules_of(kafka: Kafka, profile: Profile) -> CoordinatorRules:
    """Return the rules that hold now."""
    return profile.later.rules if kafka.is_upgraded and profile.later is not None else profile.rules


def log_of(kafka: Kafka, partition: TopicPartition) -> Log:
    """Return the log of a partition of the topic, or that of the offsets."""
    return kafka.offsets if partition == OFFSETS else kafka.logs[partition.partition]


def with_log(kafka: Kafka, partition: TopicPartition, log: Log) -> Kafka:
    """Replace the log of a partition."""
    if partition == OFFSETS:
        return kafka._replace(offsets=log)
    at = partition.partition
    return kafka._replace(logs=(*kafka.logs[:at], log, *kafka.logs[at + 1 :]))


# ---- requests -------------------------------------------------------------------------------------------------------


@remembered
def serve(kafka: Kafka, request: object, profile: Profile) -> tuple[Kafka, object]:
    """Carry a request out; return the broker after it, and the response."""
    rules = rules_of(kafka, profile)
    match request:
        case m.InitProducerId():
            return _init(kafka, request, rules)
        case m.EndTxn():
            return _end(kafka, request, rules)
        case m.AddPartitionsToTxn():
            added = tuple(topic_partition(each.partition) for each in request.partitions)
            return _added(kafka, request.producer_id, request.producer_epoch, added, rules)
        case m.AddOffsetsToTxn():
            return _added(kafka, request.producer_id, request.producer_epoch, (OFFSETS,), rules)
        case m.DescribeTransaction():
            return kafka, _described(kafka.metadata)
        case Produce():
            return _produce(kafka, request, rules)
        case CommitOffset():
            return _commit_offset(kafka, request, rules, forgets=profile.forgets_offsets)
        case AskFeatures():
            return kafka, Features(kafka.is_upgraded)
        case EndOf():
            return kafka, kafka_log.end_of(kafka.logs[request.partition], request)
        case RecordsOf():
            return kafka, kafka_log.records_of(kafka.logs[request.partition], request)
        case RepairOf():
            return kafka, kafka_log.repair_of(kafka.logs[request.partition], request)
        case WriteMarker():
            return _write_marker(kafka, request)
    raise AssertionError(f"no broker knows {request!r}")


def _init(kafka: Kafka, request: m.InitProducerId, rules: CoordinatorRules) -> tuple[Kafka, object]:
    wanted = init_producer_id.InitProducerIdRequest(
        request.transaction_timeout_ms,
        ProducerPair(request.producer_id, request.producer_epoch),
        request.enable_2pc,
        request.keep_prepared_txn,
    )
    refused = init_producer_id.check_init_request(TRANSACTIONAL_ID, wanted, rules)
    if refused is not ErrorCode.none:
        return kafka, m.InitProducerIdResponse(refused.value)
    decision = init_producer_id.decide_init_producer_id(
        TRANSACTIONAL_ID, kafka.metadata, wanted, rules, new_producer_id=kafka.next_producer_id, now_ms=0
    )
    if decision.transition is None and decision.response.error is ErrorCode.concurrent_transactions:
        return kafka, BLOCKED
    result = decision.response
    return applied(kafka, decision.transition), m.InitProducerIdResponse(result.error.value, *result[1:])


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
    return applied(kafka, decision.transition), m.EndTxnResponse(result.error.value, *result[1:])


def _added(
    kafka: Kafka,
    producer_id: int,
    producer_epoch: int,
    partitions: tuple[TopicPartition, ...],
    rules: CoordinatorRules,
) -> tuple[Kafka, object]:
    kafka, code = _add(kafka, ProducerPair(producer_id, producer_epoch), partitions, rules, 0)
    return kafka, BLOCKED if code is ErrorCode.concurrent_transactions else Added(code.value)


def _add(
    kafka: Kafka, pair: ProducerPair, partitions: tuple[TopicPartition, ...], rules: CoordinatorRules, version: int
) -> tuple[Kafka, ErrorCode]:
    decision = decisions.decide_add_partitions(
        kafka.metadata, pair, partitions, rules, transaction_version=version, now_ms=_now_ms(kafka)
    )
    return applied(kafka, decision.transition), decision.response


def _now_ms(kafka: Kafka) -> int:
    """Return the time that tells new transactions apart: it advances with each write."""
    return sum(map(kafka_log.end_offset, kafka.logs))


def applied(kafka: Kafka, transition: transitions.Transition | None) -> Kafka:
    """Return the broker after a step of the id."""
    if transition is None:
        return kafka
    after = transition.after._replace(last_update_timestamp_ms=0)
    used = max(after.producer_id, after.next_producer_id, after.previous_producer_id)
    return kafka._replace(metadata=after, next_producer_id=max(kafka.next_producer_id, used + 1))


def described(kafka: Kafka) -> Described | None:
    """Return the coordinator's description of the id; None if it does not know it."""
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


# ---- partitions -----------------------------------------------------------------------------------------------------


def _produce(kafka: Kafka, request: Produce, rules: CoordinatorRules) -> tuple[Kafka, object]:
    partition = topic_partition(request.partition)
    kafka, code = _verified(kafka, request, partition, rules)
    if code is ErrorCode.concurrent_transactions:
        return kafka, BLOCKED
    if code is ErrorCode.producer_fenced:
        return kafka, Produced(FENCED)
    if code is not ErrorCode.none:
        return kafka, Produced(code.value)
    log, response = kafka_log.append_batch(log_of(kafka, partition), request)
    return with_log(kafka, partition, log), response


def _verified(
    kafka: Kafka, request: Produce | CommitOffset, partition: TopicPartition, rules: CoordinatorRules
) -> tuple[Kafka, ErrorCode]:
    """Have the coordinator add or verify the partition, unless the transaction is already open there."""
    pair = ProducerPair(request.producer_id, request.producer_epoch)
    # before Kafka 4 a transaction that is open at any epoch counts as verified
    epoch = pair.producer_epoch if rules.newest_client_version >= 2 else None
    if kafka_log.is_open(log_of(kafka, partition), pair.producer_id, epoch):
        return kafka, ErrorCode.none
    if request.transaction_version >= 2:
        return _add(kafka, pair, (partition,), rules, 2)
    return kafka, decisions.verify_partitions(kafka.metadata, pair, (partition,))[partition]


def _commit_offset(
    kafka: Kafka, request: CommitOffset, rules: CoordinatorRules, *, forgets: bool
) -> tuple[Kafka, object]:
    kafka, code = _verified(kafka, request, OFFSETS, rules)
    if code is ErrorCode.concurrent_transactions:
        return kafka, BLOCKED
    if code is not ErrorCode.none:
        return kafka, OffsetCommitted(COORDINATOR_ERRORS.get(code, code).value)
    log, response = append_offset(kafka.offsets, request, forgets=forgets)
    return kafka._replace(offsets=log), response


def _write_marker(kafka: Kafka, request: WriteMarker) -> tuple[Kafka, object]:
    log, code = kafka_log.append_marker(log_of(kafka, request.partition), request)
    return with_log(kafka, request.partition, log), code
