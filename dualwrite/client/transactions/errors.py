"""The exceptions of a transactional producer, and their messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dualwrite.client.error_texts import error_meaning, error_name, missing_right
from dualwrite.client.messages import OpenAt
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.transactions.recovery import Described
from dualwrite.client.transactions.states import ProducerState
from dualwrite.client.transactions.tiers import ACCEPT_SETTING
from dualwrite.errors import (
    WHAT_TO_DO,
    AbortableError,
    Api,
    CommitOutcomeUnknown,
    ErrorClass,
    FencedCommitOutcomeUnknown,
    FencedError,
    KafkaError,
    TransactionHangsError,
    UnsupportedByBrokerError,
    error_class,
)
from dualwrite.hanging import end_by_hand
from dualwrite.prepared_state import PreparedTxnState

RETRIED: Final = frozenset({ErrorClass.RETRIABLE, ErrorClass.RETRIABLE_AFTER_LOOKUP})
"""Classes of error codes after which the same request is sent again."""

_TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53


def decisive_code(api: Api, error_codes: tuple[int, ...]) -> int:
    """Return the decisive error code: the request is repeated as a whole, so a code that forbids that wins."""
    codes = [code for code in error_codes if code]
    final = [code for code in codes if error_class(api, code) not in RETRIED]
    lookup = [code for code in codes if error_class(api, code) is ErrorClass.RETRIABLE_AFTER_LOOKUP]
    return next(iter([*final, *lookup, *codes]), 0)


def refusal_sentence(
    api: Api,
    error_code: int,
    *,
    transactional_id: str,
    resource: str | None,
    state: ProducerState,
    taken_as: ErrorClass,
    init_unanswered: bool,
    requests_two_phase_commit: bool,
) -> str:
    """Return the reason of a refusal, and advice.

    `resource` is the request's subject, unless that is the transactional id; `taken_as` is the class by which this
    producer handles the code, which may be worse than the code's own; `init_unanswered`: an InitProducerId of this
    producer may have arrived late.
    """
    meaning = error_meaning(api, error_code) or taken_as.value
    right = missing_right(api, error_code, resource or transactional_id)
    if right is not None:
        meaning = f"the right that is missing is {right}"
    is_two_phase = api is Api.INIT_PRODUCER_ID and requests_two_phase_commit
    if is_two_phase and error_code == _TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        meaning = (
            f"either two-phase commit is off at the broker (transaction.two.phase.commit.enable=true turns it on), "
            f"or a right is missing: {right}, and TWO_PHASE_COMMIT on it. {ACCEPT_SETTING}=true works without "
            "it, with prepared transactions that the broker aborts after transaction.timeout.ms"
        )
    if init_unanswered and taken_as is ErrorClass.FENCED:
        meaning += (
            " (or an InitProducerId of this producer itself, which was sent earlier and got no response, has only now "
            "arrived and aborted its transaction)"
        )
    return (
        f"{api.kafka_name} for transactional id {transactional_id!r} returned "
        f"{error_name(error_code)} while the producer was {state.value}: {meaning}; {WHAT_TO_DO[taken_as]}"
    )


def commit_outcome_unknown(error: KafkaError, transactional_id: str, prepared: PreparedTxnState) -> KafkaError:
    """Return the error of a producer that `error` ends while a commit may take effect."""
    kind = FencedCommitOutcomeUnknown if isinstance(error, FencedError) else CommitOutcomeUnknown
    unknown = kind(
        f"a commit of transactional id {transactional_id!r} was sent and got no response, and cannot be "
        f"repeated, so its outcome is unknown: {error}",
        transactional_id=transactional_id,
        prepared_state=str(prepared),
        error_code=error.error_code,
    )
    unknown.__cause__ = error
    return unknown


def overtaken(transactional_id: str, now: Described, *, stored_is_committed: bool) -> FencedError:
    """Return the error for a transactional id that has changed since it was first described."""
    done = " (the stored transaction is committed)" if stored_is_committed else ""
    return FencedError(
        f"transactional id {transactional_id!r} is in state {now.state.value} at {now.pair or 'no producer id'}, "
        f"which has changed since init_transactions() described it{done}: another producer has taken the id over; "
        f"{WHAT_TO_DO[ErrorClass.FENCED]}"
    )


def id_taken_over(transactional_id: str, own: PreparedTxnState, now: Described) -> FencedError:
    """Return the error for an id that another producer had taken over when it was described between transactions."""
    return FencedError(
        f"transactional id {transactional_id!r} is in state {now.state.value} at {now.pair or 'no producer id'}, and "
        f"this producer, which holds {own}, has no open transaction: another producer has taken the id over, and "
        f"none of its transactions was changed; {WHAT_TO_DO[ErrorClass.FENCED]}"
    )


def offsets_may_go_back(transactional_id: str, group_id: str) -> AbortableError:
    """Return the error for offsets that an earlier request of the same transaction, without a response, may replace."""
    return AbortableError(
        f"earlier offsets of group {group_id!r} in this transaction of transactional id {transactional_id!r} were "
        "sent once without a response. That request may still arrive and overwrite newer offsets, so these were not "
        f"sent; {WHAT_TO_DO[ErrorClass.ABORTABLE]}, with one send_offsets_to_transaction() of the last offsets"
    )


def no_member(transactional_id: str, group_id: str) -> AbortableError:
    """Return the error for offsets of a consumer that has left its group, or is not in it yet."""
    return AbortableError(
        f"the consumer whose offsets transactional id {transactional_id!r} was to commit is no member of group "
        f"{group_id!r}, and Kafka accepts offsets without a membership from anyone, so they were not sent: another "
        f"consumer may read these records again; {WHAT_TO_DO[ErrorClass.ABORTABLE]} with records that it reads as a "
        "member. A consumer that assigns its partitions itself gives its group id instead of its metadata"
    )


def earlier_hangs(
    transactional_id: str, producer_id: int, hanging: Mapping[TopicPartition, OpenAt]
) -> TransactionHangsError:
    """Return the error for the oldest transaction that hangs where this one would write next."""
    epoch = min(opened.producer_epoch for opened in hanging.values())
    starts = {where: opened.start_offset for where, opened in sorted(hanging.items()) if opened.producer_epoch == epoch}
    earlier = PreparedTxnState.of(producer_id=producer_id, producer_epoch=epoch)
    ends = end_by_hand(earlier, starts)
    return TransactionHangsError(
        f"the transaction of transactional id {transactional_id!r} can only be aborted: an earlier one, {earlier}, is "
        f"open in {_named(starts)}, and no coordinator is going to write its marker (KAFKA-20734). The next marker of "
        "the id there would end both, so nothing was written there. End the earlier one first, by a commit if it was "
        f"decided (the stored state was {earlier}): {ends.commit}; else by an abort: {ends.abort}",
        transactional_id=transactional_id,
        prepared_state=str(earlier),
        partitions=tuple(starts),
        start_offsets=tuple(starts.values()),
    )


def _named(starts: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{topic}-{index} from offset {start} on" for (topic, index), start in starts.items())


def taken_meanwhile(refusal: str, error_code: int) -> FencedError:
    """Return the error for a take-over that was refused because the id's producer id and epoch have changed."""
    return FencedError(
        f"{refusal}. Another producer has used the id since init_transactions() described it, and none of its "
        "transactions was changed",
        error_code=error_code,
    )


def still_prepared_by_keep(transactional_id: str, pair: PreparedTxnState) -> UnsupportedByBrokerError:
    """Return the error for a broker whose KeepPreparedTxn returns the producer id and epoch of the open transaction."""
    return UnsupportedByBrokerError(
        f"the broker responded to InitProducerId with KeepPreparedTxn for transactional id {transactional_id!r} with "
        f"{pair}, the producer id and epoch of the open transaction itself: this does not fence the producer that "
        "prepared it, which KIP-939 requires and the proposal for KAFKA-20739 (apache/kafka#22704) lacks. Two owners "
        "could decide the transaction differently, so it stays open and was not completed; use a broker that raises "
        "the epoch, or one without KeepPreparedTxn, where the stored producer id and epoch complete a transaction"
    )


def end_not_described(refusal: str, error_code: int, prepared: PreparedTxnState, now: Described) -> FencedError:
    """Return the error for a refused commit after which the description does not say how the transaction ended."""
    return FencedError(
        f"{refusal}. The id is in state {now.state.value} at {now.pair or 'no producer id'}, which does "
        f"not show how the prepared transaction {prepared} ended",
        error_code=error_code,
    )
