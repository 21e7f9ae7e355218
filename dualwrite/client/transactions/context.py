"""What the calls, the responses and the take-over of a transactional producer share, and how each of them fails."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dualwrite.client.backoff import Backoff
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.transactions.errors import RETRIED, commit_outcome_unknown, refusal_sentence
from dualwrite.client.transactions.initialisation import Initialisation
from dualwrite.client.transactions.open_transaction import NOT_PREPARED, OpenTransaction
from dualwrite.client.transactions.operations import Coordinators, Exchange, Operation, PendingCall
from dualwrite.client.transactions.producer_state import StateMachine
from dualwrite.client.transactions.states import EVENTS, Event, ProducerState
from dualwrite.errors import (
    Api,
    ErrorClass,
    FatalError,
    IllegalStateError,
    KafkaError,
    error_class,
    exception_for,
)
from dualwrite.guarantee import Guarantee
from dualwrite.prepared_state import PreparedTxnState

FINISHED: Final = (ProducerState.FATAL_ERROR, ProducerState.CLOSED)
PRODUCING: Final = (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING_TRANSACTION)

_ENDS_THE_PRODUCER: Final = frozenset({ErrorClass.FENCED, ErrorClass.UNSUPPORTED, ErrorClass.FATAL})


class TransactionContext(StateMachine):
    """The shared state of a transactional producer, and the ways in which a transaction, an id or the producer ends.

    Invariant: each of these ends changes the state by the tables, forgets or marks the open transaction, and finishes
    the pending call. A producer fails with `CommitOutcomeUnknown` as long as a commit that was sent may take effect.
    """

    def __init__(
        self,
        *,
        transactional_id: str,
        transaction_timeout_ms: int,
        two_phase_commit: bool,
        accepts_bound: bool,
        backoff: Backoff,
    ) -> None:
        super().__init__(transactional_id)
        self.two_phase_commit: Final = two_phase_commit
        self.transaction: Final = OpenTransaction()
        self.pending: Final = PendingCall()
        self.exchange: Final = Exchange(backoff)
        self.coordinators: Final = Coordinators(transactional_id)
        self.initialisation: Final = Initialisation(
            transactional_id=transactional_id,
            two_phase_commit=two_phase_commit,
            accepts_bound=accepts_bound,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        self._guarantee: Guarantee | None = None

    # ---- the guarantee --------------------------------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        """What holds on the broker that was found; `IllegalStateError` before `init_transactions()`."""
        if self._guarantee is None:
            raise IllegalStateError(f"the guarantee is known after init_transactions(): {self.standing}")
        return self._guarantee

    @property
    def bounded_ms(self) -> int | None:
        """How long a prepared transaction lasts; None if it has no limit, or none is known yet."""
        return None if self._guarantee is None or not self.two_phase_commit else self._guarantee.bounded_ms

    def follow_version(self) -> None:
        """Adopt the cluster's transaction.version. Only between transactions: an open one keeps its version."""
        if self.initialisation.follow_version():
            self._guarantee = self.initialisation.guarantee

    # ---- the pending call -----------------------------------------------------------------------------------

    def start(self, name: str, argument: object) -> Operation:
        """Start a call that was allowed."""
        self.exchange.restart()
        return self.pending.start(name, argument)

    def join(self, name: str, argument: object) -> Operation | None:
        """Return the same call made before, if it is pending; raise `IllegalStateError` if another one is."""
        return None if self.pending.operation is None else self.pending.join(name, argument, self.standing)

    # ---- ends -----------------------------------------------------------------------------------------------

    def initialised(self) -> None:
        """End the initialisation: a transaction may be begun."""
        self.happen(Event.INITIALIZED)
        self.forget_transaction()
        self._guarantee = self.initialisation.guarantee
        self.pending.finish(None)

    def found_prepared(self, prepared: PreparedTxnState) -> None:
        """End the initialisation with a prepared transaction of the id's past, which the application decides."""
        self.happen(Event.FOUND_PREPARED)
        self.transaction.prepared_state = prepared
        self.transaction.has_records = self.transaction.reached_kafka = True
        self.transaction.stored.are_known = False
        self._guarantee = self.initialisation.guarantee
        self.pending.finish(None)

    def ended(self) -> None:
        """End the transaction: it is committed or aborted."""
        transaction = self.transaction
        if transaction.leaves_id:
            self.happen(Event.FOUND_IS_ENDED)
            self.leave_id(None)
            return
        aborting = self.state is ProducerState.ABORTING_TRANSACTION
        if aborting and transaction.reached_kafka and not self.initialisation.is_v2:
            # batches that were given up left gaps in their sequences (KIP-360); version 2 has a new epoch by now
            self.initialisation.raise_epoch()
        self.happen(Event.ENDED)
        self.forget_transaction()
        self.follow_version()
        self.pending.finish(None)

    def leave_id(self, error: KafkaError | None) -> None:
        """Leave the transactional id to the next producer that takes it over: nothing of this one is open."""
        self.forget_transaction()
        self.adopt(NOT_PREPARED)
        self.nothing_to_complete = False
        self.pending.finish(error)

    def forget_transaction(self) -> None:
        """Forget the open transaction and why it failed."""
        self.transaction.clear()
        self.error = None

    # ---- failures -------------------------------------------------------------------------------------------

    def fail_abortable(self, error: KafkaError) -> None:
        """Fail the transaction: a part of it is lost, so it can only be aborted."""
        if (self.state, Event.ABORTABLE_FAILURE) not in EVENTS:
            self.fail_fatal(FatalError(f"unexpected while the producer is {self.state.value}: {error}"))
            return
        if self.state is ProducerState.ABORTING_TRANSACTION:
            return
        self.happen(Event.ABORTABLE_FAILURE, error)
        transaction = self.transaction
        transaction.failed = True
        transaction.offsets.current = None
        transaction.prepared_state = NOT_PREPARED
        self.error = self.error or error
        self.pending.finish(error)

    def fail_fatal(self, error: KafkaError) -> None:
        """Fail the producer for good."""
        if self.state in FINISHED:
            return
        error = self._or_outcome_unknown(error)
        self.happen(Event.FATAL_FAILURE, error)
        self.transaction.offsets.current = None
        self.error = error
        self.pending.finish(error)

    def _or_outcome_unknown(self, error: KafkaError) -> KafkaError:
        """Return `CommitOutcomeUnknown`, caused by `error`, if a commit that was sent may take effect; else `error`."""
        if not (self.exchange.commit_in_flight or self.transaction.commit_may_take_effect):
            return error
        return commit_outcome_unknown(error, self.transactional_id, self.transaction.prepared_state)

    def failed_with(self, api: Api, error_code: int, now_ms: float, *, resource: str | None = None) -> None:
        """Retry the request, or fail the transaction or the producer, as the error code's class says.

        `resource` is what the request was about, unless that is the transactional id.
        """
        error_kind = error_class(api, error_code)
        if error_kind in RETRIED:
            self.exchange.retry_later(now_ms, error_code)
            if api is Api.INIT_PRODUCER_ID:
                self.initialisation.failed_to_take_over()
            if error_kind is ErrorClass.RETRIABLE_AFTER_LOOKUP:
                self.coordinators.forget(api)
            return
        transaction = self.transaction
        # What was prepared may be decided already: no response is a reason to abort it, and close() must not (KIP-939).
        may_abort = self.state in PRODUCING and transaction.prepared_state.is_empty
        if error_kind is ErrorClass.ABORTABLE and may_abort and not transaction.commit_may_take_effect:
            self.fail_abortable(exception_for(api, error_code, self.refusal(api, error_code, error_kind, resource)))
        elif error_kind is ErrorClass.REFUSED and self.state is ProducerState.INITIALIZING:
            error = exception_for(api, error_code, self.refusal(api, error_code, error_kind, resource))
            self.happen(Event.INIT_REFUSED)
            self.pending.finish(error)
        elif error_kind in _ENDS_THE_PRODUCER:
            self.fail_fatal(exception_for(api, error_code, self.refusal(api, error_code, error_kind, resource)))
        else:
            sentence = self.refusal(api, error_code, ErrorClass.FATAL, resource)
            self.fail_fatal(FatalError(sentence, error_code=error_code))

    def refusal(self, api: Api, error_code: int, taken_as: ErrorClass, resource: str | None = None) -> str:
        """Return the sentence that says why a request was refused and what to do; see `refusal_sentence`."""
        return refusal_sentence(
            api,
            error_code,
            transactional_id=self.transactional_id,
            resource=resource,
            state=self.state,
            taken_as=taken_as,
            init_unanswered=self.exchange.init_unanswered,
            requests_two_phase_commit=self.initialisation.requests_two_phase_commit,
        )


_GENERATION: Final = struct.Struct("=i")  # librdkafka writes it as its machine does
_LIBRDKAFKA_MAGIC: Final = b"CGMDv2:"
_LIBRDKAFKA_NOTHING_READ: Final = -1001


def group_of(given: Any) -> ConsumerGroupMetadata:
    """Return the group metadata from any of: a group id, a `ConsumerGroupMetadata`, kafka-python's `group_metadata()`,
    confluent-kafka's `consumer_group_metadata()`, an aiokafka consumer (which has no such method).

    Raises `TypeError` or `ValueError` for anything else.
    """
    if isinstance(given, ConsumerGroupMetadata):
        return given
    if isinstance(given, str):
        return ConsumerGroupMetadata(_group_id(given))
    if isinstance(given, bytes):
        return _of_librdkafka(given)
    if type(given).__module__.startswith("aiokafka."):
        return _of_aiokafka(given)
    try:
        return ConsumerGroupMetadata(
            _group_id(given.group_id), given.generation_id, given.member_id, given.group_instance_id
        )
    except AttributeError:
        raise _unknown(given) from None


def _unknown(given: Any) -> TypeError:
    return TypeError(
        f"the group metadata is {type(given).__name__}; nothing was sent: give a ConsumerGroupMetadata, "
        "kafka-python's consumer.group_metadata(), confluent-kafka's consumer.consumer_group_metadata(), "
        "an aiokafka consumer, or the group id of a consumer that assigns partitions itself"
    )


def _group_id(group_id: Any) -> str:
    if not isinstance(group_id, str) or not group_id:
        raise ValueError(f"the consumer's group id is {group_id!r}, and without a group there is nothing to commit to")
    return group_id


def _of_librdkafka(serialized: bytes) -> ConsumerGroupMetadata:
    """Parse librdkafka's format: magic, generation, zero-terminated strings; the last has a flag for null before it."""
    try:
        magic, rest = serialized[: len(_LIBRDKAFKA_MAGIC)], serialized[len(_LIBRDKAFKA_MAGIC) :]
        if magic != _LIBRDKAFKA_MAGIC:
            raise ValueError(magic)
        (generation_id,) = _GENERATION.unpack_from(rest)
        group_id, member_id, instance = rest[_GENERATION.size :].split(b"\0", 2)
        if instance == b"\1":
            instance_id = None
        elif instance[:1] == b"\0" and instance.index(b"\0", 1) == len(instance) - 1:
            instance_id = instance[1:-1].decode()
        else:
            raise ValueError(instance)
        return ConsumerGroupMetadata(_group_id(group_id.decode()), generation_id, member_id.decode(), instance_id)
    except (ValueError, struct.error) as error:
        raise ValueError(
            f"these {len(serialized)} bytes are not group metadata in a format of librdkafka that is known (2.x): "
            "give a ConsumerGroupMetadata with the group id, generation and member id; nothing was sent"
        ) from error


def _of_aiokafka(consumer: Any) -> ConsumerGroupMetadata:
    """Read the membership from private members of an aiokafka consumer, which has no public ones (0.10 to 0.14).

    tests/producer/test_group_metadata.py fails when aiokafka changes them.
    """
    coordinator = getattr(consumer, "_coordinator", None)
    try:
        return ConsumerGroupMetadata(
            _group_id(coordinator.group_id),  # type: ignore[union-attr]
            coordinator.generation,  # type: ignore[union-attr]
            coordinator.member_id,  # type: ignore[union-attr]
            coordinator._group_instance_id,  # type: ignore[union-attr]  # noqa: SLF001
        )
    except AttributeError:
        raise TypeError(
            "this aiokafka consumer is not started, has no group, or is of a version that stores its membership "
            "elsewhere: give a ConsumerGroupMetadata; nothing was sent"
        ) from None


def positions_of(given: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets by partition, from a mapping (to kafka-python's or aiokafka's offsets, or to numbers), or from the
    list of `TopicPartition`s that confluent-kafka's `position()` returns.

    Partitions of which nothing was read are left out.
    """
    if isinstance(given, Mapping):
        return {TopicPartition(*partition): _position(offset) for partition, offset in given.items()}
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return {
            TopicPartition(each.topic, each.partition): _position(each)
            for each in given
            if each.offset != _LIBRDKAFKA_NOTHING_READ
        }
    raise TypeError(f"the offsets are {type(given).__name__}, not a mapping by partition; nothing was sent")


def _position(given: Any) -> OffsetAndMetadata:
    if isinstance(given, int):
        given = OffsetAndMetadata(given)
    leader_epoch = getattr(given, "leader_epoch", None)
    position = OffsetAndMetadata(given.offset, given.metadata or "", -1 if leader_epoch is None else leader_epoch)
    if not isinstance(position.offset, int) or position.offset < 0:
        raise ValueError(f"the offset {position.offset!r} is not that of a next record to read; nothing was sent")
    return position
