"""Stored blocks that Kafka refuses for good: which errors say so, and of which record.

An outage ends by itself; a missing right, a missing topic or a record that is too large does not. All that is stored
behind such a block waits for a person, so it has to be told from an outage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from dualwrite.errors import AbortableError, AuthorizationError, InvalidRecordError, KafkaError, KafkaTimeoutError
from dualwrite.recipes.core.buffer import BufferedRecord

UNKNOWN_TOPIC: Final = 3

_REFUSALS: Final = frozenset(
    {
        10,  # MESSAGE_TOO_LARGE
        17,  # INVALID_TOPIC_EXCEPTION
        18,  # RECORD_LIST_TOO_LARGE
        29,  # TOPIC_AUTHORIZATION_FAILED
        32,  # INVALID_TIMESTAMP
        43,  # UNSUPPORTED_FOR_MESSAGE_FORMAT
        44,  # POLICY_VIOLATION
        87,  # INVALID_RECORD
    }
)
"""The error codes with which brokers refuse a record, or its topic, in each further attempt."""


class RefusedBlock(NamedTuple):
    """A stored block that Kafka refuses, the topic of the record, and the reason."""

    transactional_id: str
    seq: int
    topic: str
    why: str


def is_refusal(error: BaseException) -> bool:
    """Return whether the same records would be refused again until somebody changes something.

    A topic that does not exist is waited for first, because a broker learns of new topics late: the wait has timed out.
    """
    if isinstance(error, AbortableError | AuthorizationError):
        return error.error_code in _REFUSALS
    if isinstance(error, KafkaTimeoutError):
        return error.error_code == UNKNOWN_TOPIC
    return isinstance(error, InvalidRecordError)


def refused_topic(records: Sequence[BufferedRecord]) -> str:
    """Return the topic of the record that was refused; those of all, if that is not known.

    Call it before the transaction is aborted, which drops the others.
    """
    refused = [record.topic for record in records if _is_refused(record)]
    not_sent = [record.topic for record in records if record.fate is None]
    if refused or not_sent:
        return (refused or not_sent)[0]
    return ", ".join(dict.fromkeys(record.topic for record in records))


def _is_refused(record: BufferedRecord) -> bool:
    """Return whether brokers have refused this record, and not one beside it."""
    if record.fate is None or not record.fate.done():
        return False
    try:
        record.fate.outcome()
    except KafkaError as error:
        return error.error_code in _REFUSALS and error.__cause__ is None  # else another record is the cause
    return False
