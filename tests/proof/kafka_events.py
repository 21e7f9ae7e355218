"""A broker's own events in the model, and events that happen to it: markers, aborts, moves, an upgrade, operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions import coordinator as decisions
from dualwrite.broker_emulator.transactions import transitions
from dualwrite.broker_emulator.transactions.states import (
    EXPIRABLE_STATES,
    ONGOING,
    PREPARE_COMMIT,
    PREPARE_STATES,
)
from dualwrite.broker_emulator.transactions.transaction_log import decode_value, encode_value, value_version
from dualwrite.client import messages as m
from tests.proof import kafka_log
from tests.proof.kafka_model import (
    FOREIGN_TIMEOUT_MS,
    NO_DEADLINE_MS,
    Kafka,
    Profile,
    applied,
    log_of,
    rules_of,
    serve,
    with_log,
)
from tests.proof.kafka_requests import (
    OFFSETS,
    TRANSACTIONAL_ID,
    Added,
    CommitOffset,
    OffsetCommitted,
    Produce,
    Produced,
    WriteMarker,
    topic_partition,
)
from tests.proof.remembered import remembered

_NEVER_MS: Final = 10**15
_NOT_LEADER: Final = 6
_NOT_COORDINATOR: Final = 16
_NOT_ENOUGH_REPLICAS: Final = 19
_NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20


# ---- markers --------------------------------------------------------------------------------------------------------


def marker_is_due(kafka: Kafka) -> bool:
    """Return whether a decided transaction is not complete."""
    return kafka.metadata is not None and kafka.metadata.state in PREPARE_STATES


def markers_due(kafka: Kafka, profile: Profile) -> list[WriteMarker]:
    """Return the markers that the coordinator has to write."""
    metadata = kafka.metadata
    if metadata is None or metadata.state not in PREPARE_STATES:
        return []
    version = min(metadata.client_transaction_version, profile.marker_version)
    committed = metadata.state is PREPARE_COMMIT
    return [
        WriteMarker(partition, *metadata.producer_pair, committed, kafka.coordinator_epoch, version)
        for partition in sorted(metadata.topic_partitions - kafka.acknowledged)
    ]


def marker_is_refused(kafka: Kafka, profile: Profile) -> bool:
    """Return whether a marker is due that the partition's leader refuses, because it knows a newer epoch."""
    if not marker_is_due(kafka):
        return False
    due = markers_due(kafka, profile)
    return any(_answer_to(kafka, marker) is not ErrorCode.none for marker in due)


def _answer_to(kafka: Kafka, marker: WriteMarker) -> ErrorCode:
    return kafka_log.append_marker(log_of(kafka, marker.partition), marker)[1]


@remembered
def markers_written(kafka: Kafka, profile: Profile) -> Iterator[tuple[str, Kafka]]:
    """Yield the broker after each marker that may be written next; the last one completes the transaction."""
    due = markers_due(kafka, profile)
    if not due and marker_is_due(kafka):
        yield "Kafka completes the transaction", _completed(kafka)
    for marker in due:
        after = _with_marker(kafka, marker)
        if len(due) == 1:
            yield _sentence(marker), _completed(after)
        else:
            yield _sentence(marker), after._replace(acknowledged=after.acknowledged | {marker.partition})


def _sentence(marker: WriteMarker) -> str:
    if marker.partition == topic_partition(0):
        return "Kafka writes the marker"
    return f"Kafka writes the marker of {marker.partition.topic}-{marker.partition.partition}"


def _with_marker(kafka: Kafka, marker: WriteMarker) -> Kafka:
    log, _ = kafka_log.append_marker(log_of(kafka, marker.partition), marker)
    return with_log(kafka, marker.partition, log)


def _completed(kafka: Kafka) -> Kafka:
    assert kafka.metadata is not None
    after = transitions.completed(kafka.metadata, 0).after
    return kafka._replace(metadata=after, acknowledged=frozenset())


# ---- aborts, other programs, and ids that are forgotten -------------------------------------------------------------


@remembered
def timed_out(kafka: Kafka, profile: Profile) -> Kafka | None:
    """Abort the open transaction by its timeout; None if there is none, or it has no timeout."""
    if kafka.metadata is None:
        return None
    transition = decisions.decide_timeout_abort(
        kafka.metadata, rules_of(kafka, profile), new_producer_id=kafka.next_producer_id, now_ms=_NEVER_MS
    )
    return None if transition is None else applied(kafka, transition)


@remembered
def initialised_by_another(kafka: Kafka, profile: Profile, timeout_ms: int = FOREIGN_TIMEOUT_MS) -> Kafka | None:
    """Initialise the id as a foreign program does, which aborts an open transaction; None if nothing would change."""
    request = m.InitProducerId(TRANSACTIONAL_ID, timeout_ms, enable_2pc=False, keep_prepared_txn=False)
    after, _ = serve(kafka, request, profile)
    return None if after == kafka else after


@remembered
def expired(kafka: Kafka) -> Kafka | None:
    """Forget the id, as after weeks without use; None if its state does not allow that."""
    metadata = kafka.metadata
    if metadata is None or metadata.state not in EXPIRABLE_STATES or metadata.pending_state is not None:
        return None
    return kafka._replace(metadata=None)


@remembered
def is_open(kafka: Kafka) -> bool:
    """Return whether a transaction is open, at the coordinator or in a partition."""
    is_ongoing = kafka.metadata is not None and kafka.metadata.state is ONGOING
    return is_ongoing or any(kafka_log.open_pairs(log) for log in (*kafka.logs, kafka.offsets))


# ---- moves ----------------------------------------------------------------------------------------------------------


def moved(kafka: Kafka, profile: Profile) -> Kafka:
    """Load the id at another coordinator: state in memory only is lost, and every marker is written again."""
    metadata, rules = kafka.metadata, rules_of(kafka, profile)
    if metadata is not None:
        version = value_version(rules.transaction_version)
        value = encode_value(metadata, version, **rules.logged)
        metadata = transitions.loaded(decode_value(TRANSACTIONAL_ID, value))
    return kafka._replace(metadata=metadata, acknowledged=frozenset(), coordinator_epoch=kafka.coordinator_epoch + 1)


def refused(kafka: Kafka, request: object, profile: Profile) -> Iterator[tuple[str, Kafka, object]]:
    """Yield the responses of a broker that loses its role: the request was carried out or not.

    A leader that has lost the partition answers 6, one whose replicas were too few after it had appended 20, and one
    that has added the partition and then does not hear of it 19. After all of these the client looks for the new owner
    of the role.
    """
    match request:
        case Produce():
            yield "not carried out", kafka, Produced(_NOT_LEADER)
            after, response = serve(kafka, request, profile)
            if isinstance(response, Produced) and response.error_code == 0:
                yield "carried out", after, Produced(_NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                if after.metadata != kafka.metadata:
                    added = kafka._replace(metadata=after.metadata)
                    yield "the partition added", moved(added, profile), Produced(_NOT_ENOUGH_REPLICAS)
        case m.InitProducerId() | m.EndTxn() | m.AddPartitionsToTxn() | m.AddOffsetsToTxn() | m.DescribeTransaction():
            answer = _not_coordinator(request)
            yield "not carried out", moved(kafka, profile), answer
            after, _ = serve(kafka, request, profile)
            if after != kafka:
                yield "carried out", moved(after, profile), answer
        case CommitOffset():
            yield "not carried out", kafka, OffsetCommitted(_NOT_COORDINATOR)
            after, response = serve(kafka, request, profile)
            if response == OffsetCommitted(0):
                yield "carried out", after, OffsetCommitted(_NOT_COORDINATOR)


def _not_coordinator(request: object) -> object:
    match request:
        case m.InitProducerId():
            return m.InitProducerIdResponse(_NOT_COORDINATOR)
        case m.EndTxn():
            return m.EndTxnResponse(_NOT_COORDINATOR)
        case m.DescribeTransaction():
            return m.DescribeTransactionResponse(_NOT_COORDINATOR)
    return Added(_NOT_COORDINATOR)


# ---- an upgrade, and an operator ------------------------------------------------------------------------------------


def upgraded(kafka: Kafka, profile: Profile) -> Kafka | None:
    """Raise `transaction.version`; None if the profile has no newer one, or it was done."""
    return None if profile.later is None or kafka.is_upgraded else kafka._replace(is_upgraded=True)


def termination(kafka: Kafka) -> m.InitProducerId | None:
    """Return the request of an operator who terminates the id's open transaction; None if there is none.

    It names the described pair, unless a recovering client holds another one, which is refused first.
    """
    metadata = kafka.metadata
    if metadata is None or metadata.state is not ONGOING:
        return None
    request = m.InitProducerId(TRANSACTIONAL_ID, NO_DEADLINE_MS, enable_2pc=False, keep_prepared_txn=False)
    if metadata.has_dual_identity:
        return request
    return request._replace(producer_id=metadata.producer_id, producer_epoch=metadata.producer_epoch)


def abort_markers(kafka: Kafka) -> Iterator[WriteMarker]:
    """Yield the requests of an operator who aborts a partition's open transactions, as `transactions abort` does."""
    partitions = [topic_partition(number) for number in range(len(kafka.logs))]
    for partition in (*partitions, OFFSETS):
        yield from _aborts_in(kafka, partition)


def _aborts_in(kafka: Kafka, partition: TopicPartition) -> Iterator[WriteMarker]:
    log = log_of(kafka, partition)
    for producer_id, epoch in kafka_log.open_pairs(log):
        coordinator_epoch = max(kafka_log.coordinator_epoch_of(log, producer_id), 0)
        yield WriteMarker(partition, producer_id, epoch, False, coordinator_epoch, 0)
