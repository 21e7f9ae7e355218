"""What a broker's answer means for one batch: a pure decision."""

from __future__ import annotations

from enum import Enum
from typing import Final

from dualwrite.errors import Api, ErrorClass, error_class

OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
DUPLICATE_SEQUENCE_NUMBER: Final = 46


class Verdict(Enum):
    """The fate of a batch after an answer."""

    DELIVERED = "stored"
    SEND_AGAIN = "send the same bytes again"
    SEND_AGAIN_AFTER_LOOKUP = "find the leader, then send the same bytes again"
    LOST = "this batch failed, the producer has not"
    FATAL = "the producer failed"


_VERDICTS: Final[dict[ErrorClass, Verdict]] = {
    ErrorClass.RETRIABLE: Verdict.SEND_AGAIN,
    ErrorClass.RETRIABLE_AFTER_LOOKUP: Verdict.SEND_AGAIN_AFTER_LOOKUP,
    ErrorClass.ABORTABLE: Verdict.LOST,
    ErrorClass.REFUSED: Verdict.LOST,
    ErrorClass.FENCED: Verdict.FATAL,
    ErrorClass.UNSUPPORTED: Verdict.FATAL,
    ErrorClass.FATAL: Verdict.FATAL,
}


def judge(error_code: int, *, unresolved_before: bool) -> Verdict:
    """`unresolved_before`: an earlier batch of the partition is not acknowledged yet."""
    if error_code in (0, DUPLICATE_SEQUENCE_NUMBER):
        return Verdict.DELIVERED
    if error_code == OUT_OF_ORDER_SEQUENCE_NUMBER and unresolved_before:
        return Verdict.SEND_AGAIN
    return _VERDICTS[error_class(Api.PRODUCE, error_code)]
