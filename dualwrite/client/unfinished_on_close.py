"""What a producer that is closed too early leaves behind, and who completes it: sentences for the log. Pure."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from dualwrite.client.transactions.states import ProducerState
from dualwrite.config import ProducerConfig
from dualwrite.prepared_state import PreparedTxnState


class LeftBehind(NamedTuple):
    """A sentence, and how loud it is to be said (a level of `logging`)."""

    level: int
    sentence: str


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
) -> LeftBehind | None:
    """None where nothing is. `pending`: a call has no answer yet; `bounded_ms`: how long a prepared one lasts.

    `hand_over`: what is prepared is left to somebody on purpose, which is nothing to be warned of.
    """
    completed_by = _COMPLETED_BY
    if bounded_ms is not None:
        completed_by += f", but no longer than {bounded_ms} ms after its first record (transaction.timeout.ms)"
    named = f"transactional id {config.transactional_id!r}"
    if state is ProducerState.PREPARED_TRANSACTION and not prepared.is_empty:
        return LeftBehind(
            logging.DEBUG if hand_over else logging.WARNING,
            f"closed while transaction {prepared} of {named} is prepared: it stays in doubt until {completed_by}",
        )
    if not pending:
        return None
    if state in _ENDS:
        return LeftBehind(
            logging.WARNING,
            f"closed while the {_ENDS[state]} for {named} had no answer: Kafka completes it if the request arrived; "
            f"if not, {_else(prepared, config, completed_by)}",
        )
    if state is ProducerState.INITIALIZING:
        return LeftBehind(
            logging.INFO,
            f"closed while init_transactions() for {named} had no answer: no transaction was begun here, and the next "
            "producer with that id makes the same call",
        )
    return LeftBehind(
        logging.WARNING,
        "closed before all records were acknowledged: the futures of those that were not say so, "
        "and Kafka may have stored them all the same",
    )


def _else(prepared: PreparedTxnState, config: ProducerConfig, completed_by: str) -> str:
    if not prepared.is_empty:
        return f"the transaction stays prepared until {completed_by}"
    if config.transaction_two_phase_commit_enable:
        return "the next producer with that id aborts it in init_transactions()"
    return (
        "Kafka aborts it by itself after "
        f"transaction.timeout.ms={config.transaction_timeout_ms}, or earlier for the next producer with that id"
    )
