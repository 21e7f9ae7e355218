"""Messages for the log about unfinished work of a closed producer, and how it is completed."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from dualwrite.client.operations import Operation
from dualwrite.client.transactions.states import Call, ProducerState
from dualwrite.config import ProducerConfig
from dualwrite.prepared_state import PreparedTxnState


class Unfinished(NamedTuple):
    """A message, and the level of `logging` at which to log it."""

    level: int
    message: str


_ENDS: Final = {ProducerState.COMMITTING_TRANSACTION: "commit", ProducerState.ABORTING_TRANSACTION: "abort"}
_COMPLETED_BY: Final = "init_transactions(keep_prepared_txn=True) and complete_transaction() are called for that id"


def unfinished_on_close(
    state: ProducerState,
    prepared: PreparedTxnState,
    config: ProducerConfig,
    *,
    pending: bool,
    hand_over: bool = False,
    bounded_ms: int | None = None,
) -> Unfinished | None:
    """Return the message about unfinished work; None if there is none.

    `pending`: a call has no outcome yet; `bounded_ms`: how long a prepared transaction lasts; `hand_over`: a prepared
    transaction is left to another process on purpose, which is no reason to warn.
    """
    completed_by = _COMPLETED_BY
    if bounded_ms is not None:
        completed_by += f", but no longer than {bounded_ms} ms after its first record (transaction.timeout.ms)"
    named = f"transactional id {config.transactional_id!r}"
    if state is ProducerState.PREPARED_TRANSACTION and not prepared.is_empty:
        return Unfinished(
            logging.DEBUG if hand_over else logging.WARNING,
            f"closed while transaction {prepared} of {named} is prepared: it stays in doubt until {completed_by}",
        )
    if not pending:
        return None
    if state in _ENDS:
        return Unfinished(
            logging.WARNING,
            f"closed while the {_ENDS[state]} for {named} had no response: Kafka completes it if the request arrived; "
            f"if not, {_if_not(prepared, config, completed_by)}",
        )
    if state is ProducerState.INITIALIZING:
        return Unfinished(
            logging.INFO,
            f"closed while init_transactions() for {named} had no response: no transaction was begun here, and the "
            "next producer with that id makes the same call",
        )
    return Unfinished(
        logging.WARNING,
        "closed before all records were acknowledged: the futures of the others raise an error, "
        "and Kafka may have stored those records anyway",
    )


def failed_on_close(operation: Operation) -> Unfinished | None:
    """Return the message about a failure while `close()` waited for a call; None if there was none.

    An initialisation that fails has begun no transaction, and no caller has to repeat it with a closed producer.
    """
    if operation.error is None:
        return None
    level = logging.INFO if operation.name == Call.INIT_TRANSACTIONS.value else logging.WARNING
    return Unfinished(level, f"{operation.name} failed while closing: {operation.error}")


def _if_not(prepared: PreparedTxnState, config: ProducerConfig, completed_by: str) -> str:
    if not prepared.is_empty:
        return f"the transaction stays prepared until {completed_by}"
    if config.transaction_two_phase_commit_enable:
        return "the next producer with that id aborts it in init_transactions()"
    return (
        "Kafka aborts it by itself after "
        f"transaction.timeout.ms={config.transaction_timeout_ms}, or earlier for the next producer with that id"
    )
