"""The producer id of a producer without transactions (KIP-98, KIP-360), without sockets."""

from __future__ import annotations

from typing import Final

from dualwrite.client import messages as m
from dualwrite.client.error_texts import error_name, missing_right
from dualwrite.client.late_log import LateLog
from dualwrite.client.pacing import Backoff
from dualwrite.client.producer_port import Outgoing
from dualwrite.client.transactions.states import WHAT_NEXT, Event, ProducerState
from dualwrite.client.wire.versions import NEWEST_TRANSACTION_VERSION
from dualwrite.errors import (
    NETWORK_EXCEPTION,
    Api,
    ErrorClass,
    FatalError,
    IllegalStateError,
    KafkaError,
    error_class,
    exception_for,
)
from dualwrite.prepared_state import MAX_PRODUCER_EPOCH

_NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1
_READY: Final = ProducerState.READY  # compared for each record, and a member of an enum takes as long to find


class IdempotenceManager:
    """Gets a producer id when the first record is sent; `enabled=False` sends without one.

    A batch that is given up leaves a gap in its partition's sequence, which no broker would accept. The epoch is then
    raised by one, here and without a request. Batches that were sent before keep theirs: see `Accumulator`.
    """

    def __init__(self, *, enabled: bool, backoff: Backoff) -> None:
        self.late_log: Final = LateLog()
        self.state = ProducerState.READY
        self.producer_id = -1
        self.producer_epoch = -1
        self._enabled = enabled
        self._in_flight = False
        self._backoff = backoff
        self._retry_at_ms = 0.0
        self._error: KafkaError | None = None

    @property
    def may_produce(self) -> bool:
        """Whether batches may be sent now."""
        if self.state is not ProducerState.READY:
            return False
        return not self._enabled or self.producer_id != -1

    @property
    def drops_unsent(self) -> bool:
        """Whether unsent records are never going to be sent."""
        return self.state is not ProducerState.READY

    @property
    def error(self) -> KafkaError | None:
        """Why the producer has failed, if it has."""
        return self._error

    @property
    def retry_at_ms(self) -> float | None:
        """When `poll()` must be called again even if nothing happens; None if it need not be."""
        return self._retry_at_ms or None

    @property
    def transaction_version(self) -> int:
        """The newest version; it has no meaning without a transaction."""
        return NEWEST_TRANSACTION_VERSION

    @property
    def wants_partitions(self) -> bool:
        """Always False without a transaction."""
        return False

    def may_produce_to(self, topic: str, partition: int, leader: int, losses: int) -> bool:
        """Return True: without a transaction, any partition may be written to."""
        return True

    def check_send(self) -> None:
        """Raise if no record may be sent now."""
        if self.state is _READY:
            return
        sentence = f"send() is not allowed while the producer is {self.state.value}; {WHAT_NEXT[self.state]}"
        if self._error is not None:
            raise type(self._error)(f"{sentence}. Cause: {self._error}", error_code=self._error.error_code)
        raise IllegalStateError(sentence)

    def accepted(self) -> None:
        """Do nothing: only a transaction notes that a record was accepted."""

    def produced(self) -> None:
        """Do nothing: only a transaction notes that a batch is on its way."""

    def stored(self, topic: str, partition: int, base_offset: int, record_count: int) -> None:
        """Do nothing: only a prepared transaction has to know where its records are."""

    def produce_unanswered(self) -> None:
        """Do nothing: the batch is sent again, and its sequence lets the broker recognise it."""

    def poll(self, now_ms: float, *, delivered: bool) -> Outgoing | None:
        """Return InitProducerId if records wait for a producer id."""
        if not self._enabled or self._in_flight or now_ms < self._retry_at_ms or self.state is not ProducerState.READY:
            return None
        self._retry_at_ms = 0.0
        if self.producer_id != -1 or delivered:
            return None
        self._in_flight = True
        return Outgoing(m.InitProducerId(None, _NO_TRANSACTION_TIMEOUT_MS, False, False), m.ANY_NODE)

    def on_response(self, response: m.Response, now_ms: float) -> None:
        """Use the producer id of the response, or handle the refusal."""
        self._in_flight = False
        if not isinstance(response, m.InitProducerIdResponse):
            raise AssertionError(f"{response!r} is not a response to InitProducerId")
        if response.error_code:
            self._failed_with(response.error_code, now_ms)
            return
        self._backoff.succeeded()
        self.producer_id = response.producer_id
        self.producer_epoch = response.producer_epoch

    def on_no_response(self, now_ms: float, *, sent: bool = True) -> None:
        """Request another producer id: one that is not used does no harm."""
        self._in_flight = False
        self._failed_with(NETWORK_EXCEPTION, now_ms)

    def on_unsupported(self, error: KafkaError) -> None:
        """Fail for good: the broker is too old for idempotence."""
        self._in_flight = False
        self.fail_fatal(error)

    def _failed_with(self, error_code: int, now_ms: float) -> None:
        if error_class(Api.INIT_PRODUCER_ID, error_code) in (
            ErrorClass.RETRIABLE,
            ErrorClass.RETRIABLE_AFTER_LOOKUP,
        ):
            self._retry_at_ms = now_ms + self._backoff.failed(error_code)
            return
        right = missing_right(Api.INIT_PRODUCER_ID, error_code, "")
        sentence = f"InitProducerId returned {error_name(error_code)}"
        sentence += "" if right is None else f": the right that is missing is {right}"
        error = exception_for(Api.INIT_PRODUCER_ID, error_code, sentence)
        self.fail_fatal(error if isinstance(error, FatalError) else FatalError(sentence, error_code=error_code))

    def consequence(self, event: Event) -> str:
        """Return the consequence of a failed batch for the producer, as the end of a sentence."""
        return f"; {WHAT_NEXT[ProducerState.FATAL_ERROR]}" if event is Event.FATAL_FAILURE else ""

    def fail_abortable(self, error: KafkaError) -> None:
        """Raise the epoch, because a batch was given up; after the last epoch, another producer id is needed."""
        if self.producer_id == -1:
            return
        if self.producer_epoch < MAX_PRODUCER_EPOCH:
            self.producer_epoch += 1
        else:
            self.producer_id = self.producer_epoch = -1

    def fail_fatal(self, error: KafkaError) -> None:
        """Fail the producer for good."""
        if self.state is ProducerState.READY:
            self.state = ProducerState.FATAL_ERROR
            self._error = error

    def close(self, error: KafkaError) -> None:
        """Refuse further records."""
        self._error = error
        self.state = ProducerState.CLOSED
