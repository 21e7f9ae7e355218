"""The Kafka transaction of one attempt of a task, carried out with `dualwrite.Producer`.

| `txn.mode` | brokers (tiers of docs/guarantees.md) | a prepared transaction lasts |
|---|---|---|
| `kip939` | 1: KeepPreparedTxn | for ever |
| `auto` | 1 and 2: two-phase commit | for ever |
| `resume` | 1 to 4 | on 3 and 4, `txn.timeoutMs` from its first record |

A cluster that has less is refused before a transaction exists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dualwrite.errors import DualWriteError, FencedError, KafkaError, UnsupportedByBrokerError
from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer, ProducerState
from spark_sink.errors import AttemptCondemnedError, SinkOptionError
from spark_sink.options import SinkOptions, TxnMode

if TYPE_CHECKING:
    import pyarrow as pa

_NOTHING: Final = PreparedTxnState()
_ABORT_TIMEOUT_S: Final = 5.0

# INVALID_PRODUCER_EPOCH and PRODUCER_FENCED: as a leader's answer to a record they are no reason for a producer to give
# itself up, but whoever has the id for one transaction only need not ask the coordinator, too
_FENCED: Final = (47, 90)

_log = logging.getLogger(__name__)


class ProducerTransaction:
    """A `TaskTransaction`: begun when it is made, see `begin`."""

    def __init__(self, producer: Producer, transactional_id: str, topic: str | None) -> None:
        # not at the top: the driver's processes complete transactions, and need no Arrow for that
        from spark_sink.attempt.record_encoder import by_topic

        self._producer = producer
        self._transactional_id = transactional_id
        self._topic = topic
        self._by_topic = by_topic
        self._records = self._bytes = 0

    @property
    def records(self) -> int:
        """How many were sent."""
        return self._records

    @property
    def bytes(self) -> int:
        """How many bytes of keys and values were sent."""
        return self._bytes

    def write(self, rows: pa.RecordBatch) -> None:
        """Encode and send the Kafka columns of these rows.

        Raises InvalidRecordError for a row that cannot be sent, AttemptCondemnedError when the transactional id was
        taken over, AbortableError and KafkaTimeoutError when Kafka did not take what was sent.
        """
        with _fenced_means_condemned(self._transactional_id):
            for topic, of_topic, size in self._by_topic(rows, self._topic):
                self._producer.send_batch(topic, of_topic)
                self._records += of_topic.num_rows
                self._bytes += size

    def prepare(self) -> PreparedTxnState:
        """Flush, and promise that it can be committed. Raises as `write`."""
        with _fenced_means_condemned(self._transactional_id):
            return self._producer.prepare_transaction()

    def abort(self) -> None:
        """Best effort, never raises: whatever remains open is aborted by whoever finishes this attempt."""
        try:
            if self._producer.state is ProducerState.PREPARED_TRANSACTION:
                self._producer.complete_transaction(_NOTHING)
            else:
                self._producer.close(timeout_s=_ABORT_TIMEOUT_S)  # aborts what is open
        except DualWriteError as error:
            _log.info(
                "%s was not aborted, which is done when the attempt is finished: %s", self._transactional_id, error
            )

    def close(self) -> None:
        """Let go; a prepared transaction stays as it is. Never raises."""
        _let_go(self._producer)


def begin(
    options: SinkOptions, settings: Mapping[str, Any], transactional_id: str, still_mine: Callable[[], bool]
) -> ProducerTransaction:
    """Take the id over, see whether the attempt is still wanted, abort what was left under the id, and begin.

    `settings` are those of every producer of the sink. Raises AttemptCondemnedError, SinkOptionError where the broker
    has less than `txn.mode` asks for, and what `Producer.init_transactions()` and `complete_transaction()` raise.
    """
    producer = Producer({**settings, **_two_phase_commit(options), "transactional.id": transactional_id})
    try:
        with _fenced_means_condemned(transactional_id), _in_terms_of_options(options):
            producer.init_transactions(keep_prepared_txn=True)
            _check_tier(options, producer)
            if not still_mine():
                raise AttemptCondemnedError(
                    f"the driver gave this attempt up while it took {transactional_id!r} over; it has sent nothing, "
                    "and whatever is open under that id is another attempt's and was left alone"
                )
            producer.complete_transaction(_NOTHING)
            producer.begin_transaction()
    except BaseException:
        _let_go(producer)
        raise
    return ProducerTransaction(producer, transactional_id, options.topic)


def _two_phase_commit(options: SinkOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {"transaction.two.phase.commit.enable": True}
    if options.txn_mode is TxnMode.RESUME:
        settings |= {"accept.bounded.guarantee": True, "transaction.timeout.ms": options.txn_timeout_ms}
    return settings


def _check_tier(options: SinkOptions, producer: Producer) -> None:
    """The other modes are refused by the producer, which accepts a bound only where it is told to."""
    if options.txn_mode is TxnMode.KIP939 and producer.guarantee.tier is not Tier.KEEP_PREPARED:
        raise SinkOptionError(
            "txn.mode=kip939 asks for a broker with KeepPreparedTxn (KIP-939), and this one refuses it; no transaction "
            f"exists. With txn.mode=auto it will do: {producer.guarantee.sentence}"
        )


@contextmanager
def _in_terms_of_options(options: SinkOptions) -> Iterator[None]:
    """A producer's errors name its settings, some of which users of the sink know by other names."""
    try:
        yield
    except KafkaError as error:
        sentence = str(error).replace("accept.bounded.guarantee=true", "txn.mode=resume")
        sentence = sentence.replace("transaction.timeout.ms", "txn.timeoutMs")
        if isinstance(error, UnsupportedByBrokerError):
            raise SinkOptionError(f"txn.mode={options.txn_mode.value}: {sentence}") from error
        raise error.reworded(sentence) from error


@contextmanager
def _fenced_means_condemned(transactional_id: str) -> Iterator[None]:
    """Whoever was given up is fenced."""
    try:
        yield
    except KafkaError as error:
        if not isinstance(error, FencedError) and error.error_code not in _FENCED:
            raise
        raise AttemptCondemnedError(
            f"the transactional id {transactional_id!r} of this attempt was taken over, because the driver gave the "
            f"attempt up (or, where prepared transactions have a bound, it took too long): {error}. Nothing of it will "
            "be visible, and Spark may try again"
        ) from error


def _let_go(producer: Producer) -> None:
    """At once; what is open stays open for whoever finishes the attempt. Never raises."""
    try:
        producer.close(timeout_s=0, hand_over=True)
    except Exception as error:
        _log.info("a producer was not closed properly: %s", error)
