"""Say the errors of a producer in the words of a block, whose user has no producer to call."""

from __future__ import annotations

from typing import Final

from dualwrite.client.transactions.states import WHAT_NEXT, Call
from dualwrite.errors import WHAT_TO_DO, ErrorClass, InvalidRecordError, KafkaError
from dualwrite.outcome import Outcome

_REPEAT: Final = "repeat the block"

_ADVICE: Final[dict[str, str]] = {
    **dict.fromkeys(WHAT_NEXT.values(), _REPEAT),
    WHAT_TO_DO[ErrorClass.ABORTABLE]: _REPEAT,
    WHAT_TO_DO[ErrorClass.REFUSED]: "grant it, then repeat the block",
    WHAT_TO_DO[ErrorClass.FENCED]: "make a new writer only if there is no other with this id",
    WHAT_TO_DO[ErrorClass.UNSUPPORTED]: "change the configuration, or the broker",
    WHAT_TO_DO[ErrorClass.FATAL]: _REPEAT,
    "repeat the same call until it returns": _REPEAT,
    "init_transactions() or, for a dual write, with ": "",
}
"""The remedies for the user of a block, in place of those for a producer."""

_CALLS: Final[dict[str, str]] = {
    Call.INIT_TRANSACTIONS.value: "taking the transactional id over",
    Call.BEGIN_TRANSACTION.value: "beginning the transaction",
    Call.SEND_OFFSETS.value: "sending the consumed offsets",
    Call.PREPARE_TRANSACTION.value: "preparing the transaction",
    Call.COMMIT_TRANSACTION.value: "committing the transaction",
    Call.ABORT_TRANSACTION.value: "aborting the transaction",
    "complete_transaction()": "completing the transaction",
    "flush()": "sending all records",
}
"""Descriptions of a producer's calls, in place of their names."""

_COMMITTED: Final = " (the database has committed this block)"
_UNCHANGED: Final = ("either side", "either database", "othing was written")
"""Phrases by which errors say that the block changed nothing."""


def say_of_block(error: BaseException) -> None:
    """Reword a producer's error that leaves a block, and add what state both sides are in. Harmless when repeated."""
    if not isinstance(error, KafkaError | InvalidRecordError) or not error.args:
        return
    said, outcome = str(error.args[0]), error.outcome
    for of_producer, of_block in (*_ADVICE.items(), *_CALLS.items()):
        said = said.replace(of_producer, of_block)
    if outcome.is_decided and _COMMITTED not in said:
        said += _COMMITTED
    elif outcome is Outcome.ROLLED_BACK and not any(words in said for words in _UNCHANGED):
        said = f"{said} (neither side was changed by this block)"
    error.args = (said, *error.args[1:])
