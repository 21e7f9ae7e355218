"""`ProducerTransaction`: the Kafka transaction of one attempt of a task, with `dualwrite.Producer`.

| `txn.mode` | required tier (docs/guarantees.md) | a prepared transaction lasts |
|---|---|---|
| `kip939` | 1: KeepPreparedTxn | forever |
| `auto` | 1 to 4 | as `resume`; but on 3 and 4 only topics in which it can be published again after that |
| `resume` | 1 to 4 | on 3 and 4, `txn.timeoutMs` from its first record |

A cluster with a lower guarantee is refused before a transaction exists, and a topic before the attempt is prepared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dualwrite.errors import (
    DualWriteError,
    FencedError,
    InvalidRecordError,
    KafkaError,
    UnsupportedByBrokerError,
)
from dualwrite.guarantee import Tier
from dualwrite.participant import ParticipantProducer
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import ProducerState
from spark_sink.errors import AttemptCondemnedError, SinkError, SinkOptionError
from spark_sink.kafka_settings import in_terms_of_options
from spark_sink.options import SinkOptions, TxnMode
from spark_sink.record_encoder import by_topic
from spark_sink.store.attempt_states import Prepared

if TYPE_CHECKING:
    import pyarrow as pa

_NOTHING: Final = PreparedTxnState()
_ABORT_TIMEOUT_S: Final = 5.0

# INVALID_PRODUCER_EPOCH and PRODUCER_FENCED. In a leader's response to a record they are not fatal for a producer in
# general; but a task uses the id for one transaction only, and need not query the coordinator as well.
_FENCED: Final = (47, 90)

_TIMEOUT_TOO_LONG: Final = 50
"""INVALID_TRANSACTION_TIMEOUT."""
_TOO_LARGE: Final = (10, 18)
"""MESSAGE_TOO_LARGE and RECORD_LIST_TOO_LARGE, in a leader's response to a batch of records."""

_log = logging.getLogger(__name__)


class ProducerTransaction:
    """A `TaskTransaction`; `begin` makes it, with the transaction begun."""

    def __init__(
        self, producer: ParticipantProducer, transactional_id: str, topic: str | None, check: TopicCheck | None = None
    ) -> None:
        self._producer = producer
        self._transactional_id = transactional_id
        self._topic = topic
        self._check = check
        self._records = self._bytes = 0

    @property
    def is_bounded(self) -> bool:
        """Whether the broker aborts the transaction after a time, although it is prepared."""
        return self._producer.bounded_ms is not None

    @property
    def records(self) -> int:
        """The number of records sent."""
        return self._records

    @property
    def bytes(self) -> int:
        """The number of bytes of keys and values sent."""
        return self._bytes

    def write(self, rows: pa.RecordBatch) -> None:
        """Encode and send the Kafka columns of these rows.

        Raises InvalidRecordError for a row that cannot be sent, AttemptCondemnedError if the transactional id was taken
        over, AbortableError and KafkaTimeoutError if Kafka did not accept the records, and SinkOptionError for a topic
        in which they could not be published again, if that is needed.
        """
        with _fenced_means_condemned(self._transactional_id), _refusals_in_terms_of_options():
            for topic, of_topic, size in by_topic(rows, self._topic):
                if self._check is not None:
                    self._check.before_sending(topic)
                self._producer.send_batch(topic, of_topic)
                self._records += of_topic.num_rows
                self._bytes += size

    def prepare(self) -> Prepared:
        """Flush, and promise that the transaction can be committed.
        Raises the errors of `write`, and SinkError if Kafka may abort the transaction against a decision and the
        positions of its records are unknown: then they could not be published again.
        """
        with _fenced_means_condemned(self._transactional_id), _refusals_in_terms_of_options():
            state = self._producer.prepare_transaction()
            if self._check is not None:
                self._check.of_created()
        manifest = self._producer.manifest
        if self._check is not None and self._records and not str(manifest or ""):
            raise _not_repairable(state, manifest)
        return Prepared(state, str(manifest or ""))

    def abort(self) -> None:
        """Abort if possible; a transaction that stays open is aborted when the attempt is finished. Never raises."""
        try:
            if self._producer.state is ProducerState.PREPARED_TRANSACTION:
                self._producer.complete_transaction(_NOTHING)
            else:
                self._producer.close(timeout_s=_ABORT_TIMEOUT_S)  # aborts an open transaction
        except DualWriteError as error:
            _log.info(
                "the transaction of %s was not aborted, which is done when its attempt is finished: %s",
                self._transactional_id,
                error,
            )

    def close(self) -> None:
        """Release the producer; a prepared transaction stays as it is. Never raises."""
        _release(self._producer)


def begin(
    options: SinkOptions, settings: Mapping[str, Any], transactional_id: str, still_mine: Callable[[], bool]
) -> ProducerTransaction:
    """Take the id over, abort any open transaction of the id, check that the attempt is still wanted, and begin.

    The attempt is also checked before an open transaction is aborted: the next owner of the id may have prepared it.

    `settings` are those of every producer of the sink. Raises AttemptCondemnedError, SinkOptionError if the broker
    supports less than `txn.mode` requires, and the errors of `Producer.init_transactions()` and
    `complete_transaction()`.
    """
    producer = ParticipantProducer({**settings, **_two_phase_commit(options), "transactional.id": transactional_id})
    try:
        with _fenced_means_condemned(transactional_id), _in_terms_of_options(options):
            producer.init_transactions(keep_prepared_txn=True)
            _check_tier(options, producer)
            if producer.state is ProducerState.PREPARED_TRANSACTION:
                _assert_still_mine(transactional_id, still_mine)
            producer.complete_transaction(_NOTHING)
            # Below tier 1, only that call has fenced others. A driver that gave this attempt up before has finished
            # with the id, so no process would end a transaction begun now; one that does so later fences this producer.
            _assert_still_mine(transactional_id, still_mine)
            producer.begin_transaction()
    except BaseException:
        _release(producer)
        raise
    is_bounded = producer.bounded_ms is not None
    check = TopicCheck(producer) if is_bounded and options.txn_mode is TxnMode.AUTO else None
    return ProducerTransaction(producer, transactional_id, options.topic, check)


def _assert_still_mine(transactional_id: str, still_mine: Callable[[], bool]) -> None:
    if not still_mine():
        raise AttemptCondemnedError(
            f"the driver gave this attempt up while it took over {transactional_id!r}; it has sent nothing. A "
            "transaction that is open with that id belongs to another attempt, and was not touched"
        )


class TopicCheck:
    """Checks each topic of an attempt once, on brokers that abort prepared transactions after a time.

    A decided transaction that such a broker aborts is published again from the log. If that cannot work, the attempt
    is refused.
    """

    def __init__(self, producer: ParticipantProducer) -> None:
        self._producer = producer
        self._seen: set[str] = set()
        self._to_create: set[str] = set()

    def before_sending(self, topic: str) -> None:
        """Raise SinkOptionError if records of this topic could not be published again."""
        if topic not in self._seen:
            self._seen.add(topic)
            if not self._is_there(topic):
                self._to_create.add(topic)

    def of_created(self) -> None:
        """Do the same for topics that sending has created."""
        for topic in sorted(self._to_create):
            if not self._is_there(topic):
                _log.warning("topic %r: cannot find out whether this client may read it%s", topic, _ELSE)
        self._to_create.clear()

    def _is_there(self, topic: str) -> bool:
        from dualwrite.decisions.obstacles import obstacle_of

        found = self._producer.describe_topics([topic])[topic]
        obstacle = obstacle_of(topic, found, may_store=False)
        if obstacle is not None:
            guarantee = self._producer.guarantee
            raise SinkOptionError(
                f"txn.mode=auto: this cluster is tier {int(guarantee.tier or 0)}: it aborts a prepared transaction "
                f"{guarantee.bounded_ms} ms after its first record (txn.timeoutMs), and records decided by then are "
                f"published again from the log. {obstacle.where[0].upper()}{obstacle.where[1:]} that cannot work: "
                f"{obstacle.why}. No part of this attempt becomes visible: {obstacle.remedy}, or accept the bound, "
                "and with it the loss, with txn.mode=resume"
            )
        if found.is_readable and found.is_compacted is None:
            _log.warning("topic %r: cannot find out whether it is compacted (%s)%s", topic, found.why_not_known, _ELSE)
        return found.is_readable is not None


_ELSE: Final = "; if it cannot be read or loses records, records that a broker aborts cannot be published again"


def _two_phase_commit(options: SinkOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {"transaction.two.phase.commit.enable": True}
    if options.txn_mode is not TxnMode.KIP939:
        settings |= {"accept.bounded.guarantee": True, "transaction.timeout.ms": options.txn_timeout_ms}
    return settings


def _not_repairable(state: PreparedTxnState, manifest: object) -> SinkError:
    """Return the error for a transaction whose manifest is unknown (None) or too long to be stored."""
    if manifest is None:
        return SinkError(
            f"a broker acknowledged records of {state} without their offsets, so they could not be published again if "
            "the broker aborts them. No part of this attempt becomes visible; Spark may try again"
        )
    return SinkOptionError(
        f"this task wrote to more partitions than the store can list ({state}), so its records could not be published "
        "again if the broker aborts them, as this cluster does after txn.timeoutMs. No part of it becomes visible: "
        "write to fewer partitions in one task, or accept the bound with txn.mode=resume"
    )


def _check_tier(options: SinkOptions, producer: ParticipantProducer) -> None:
    """Raise SinkOptionError for the mode kip939; the producer itself checks the other modes."""
    if options.txn_mode is TxnMode.KIP939 and producer.guarantee.tier is not Tier.KEEP_PREPARED:
        raise SinkOptionError(
            "txn.mode=kip939 requires a broker with KeepPreparedTxn (KIP-939), and this one refuses it; no transaction "
            f"exists. txn.mode=auto works with this broker: {producer.guarantee.sentence}"
        )


@contextmanager
def _in_terms_of_options(options: SinkOptions) -> Iterator[None]:
    """Reword errors of the beginning, which name the producer's settings, with the names of the sink's options."""
    try:
        yield
    except KafkaError as error:
        if error.error_code == _TIMEOUT_TOO_LONG:
            raise SinkOptionError(
                f"txn.timeoutMs={options.txn_timeout_ms} is more than the brokers allow with their "
                "transaction.max.timeout.ms; nothing was written: set txn.timeoutMs to at most that, or have it raised "
                "there"
            ) from error
        sentence = in_terms_of_options(str(error))
        if isinstance(error, UnsupportedByBrokerError):
            raise SinkOptionError(f"txn.mode={options.txn_mode.value}: {sentence}") from error
        raise error.reworded(sentence) from error


@contextmanager
def _refusals_in_terms_of_options() -> Iterator[None]:
    """Reword errors about records with the names of the sink's options, and advise on records that are too large."""
    try:
        yield
    except InvalidRecordError as error:
        sentence = in_terms_of_options(str(error))
        raise InvalidRecordError(f"{sentence}{_BY_THE_PRODUCER if _MAX_REQUEST_SIZE in sentence else ''}") from error
    except KafkaError as error:
        sentence = in_terms_of_options(str(error))
        raise error.reworded(f"{sentence}{_BY_THE_TOPIC if error.error_code in _TOO_LARGE else ''}") from error


_MAX_REQUEST_SIZE: Final = "kafka.max.request.size"
_BY_THE_PRODUCER: Final = (
    f". No part of this attempt becomes visible: make the row smaller, or set {_MAX_REQUEST_SIZE} higher (and "
    "max.message.bytes of the topic, if that is lower)"
)
_BY_THE_TOPIC: Final = (
    ". A row is larger than max.message.bytes of the topic (message.max.bytes of the brokers, where the topic has "
    "none). No part of this attempt becomes visible: raise it, or make the row smaller"
)


@contextmanager
def _fenced_means_condemned(transactional_id: str) -> Iterator[None]:
    """Raise AttemptCondemnedError if the producer was fenced, as it is when the driver gives the attempt up."""
    try:
        yield
    except KafkaError as error:
        if not isinstance(error, FencedError) and error.error_code not in _FENCED:
            raise
        raise AttemptCondemnedError(
            f"the transactional id {transactional_id!r} of this attempt was taken over, because the driver gave the "
            f"attempt up (or it took too long, if prepared transactions have a time limit): {error}. No part of it "
            "becomes visible, and Spark may try again"
        ) from error


def _release(producer: ParticipantProducer) -> None:
    """Close the producer at once; an open transaction stays open until the attempt is finished. Never raises."""
    try:
        producer.close(timeout_s=0, hand_over=True)
    except Exception as error:
        _log.info("closing a producer failed: %s", error)
