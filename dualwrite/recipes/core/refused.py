"""Records that the database has decided and Kafka refuses for good: which errors say so, and of which record.

An outage ends by itself; a missing right, a missing topic or a record that is too large does not. All records that are
stored or owed behind such a record wait for a person, so it has to be told from an outage. Only a timestamp that the
topic no longer takes needs no person: the record gets a new one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from dualwrite.client.records.late import INVALID_TIMESTAMP, renewed
from dualwrite.errors import AbortableError, AuthorizationError, InvalidRecordError, KafkaError, KafkaTimeoutError
from dualwrite.recipes.core.buffer import BufferedRecord

UNKNOWN_TOPIC: Final = 3

_REFUSALS: Final = frozenset(
    {
        10,  # MESSAGE_TOO_LARGE
        17,  # INVALID_TOPIC_EXCEPTION
        18,  # RECORD_LIST_TOO_LARGE
        29,  # TOPIC_AUTHORIZATION_FAILED
        INVALID_TIMESTAMP,
        43,  # UNSUPPORTED_FOR_MESSAGE_FORMAT
        44,  # POLICY_VIOLATION
        87,  # INVALID_RECORD
    }
)
"""The error codes with which brokers refuse a record, or its topic, in each further attempt."""

_REMEDIES: Final = {
    UNKNOWN_TOPIC: "create the topic",
    10: "raise max.message.bytes of the topic",
    18: "raise segment.bytes of the topic",
    29: "grant this client WRITE on the topic",
    INVALID_TIMESTAMP: (
        "correct the clock of this machine or of the brokers, or raise message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms of the topic"
    ),
    44: "change the policy of the brokers",
    87: "take 'compact' out of cleanup.policy of the topic, which then takes records without a key",
}

OWED: Final = 0
"""The number of the owed records, beside the numbers of stored blocks, which begin at 1."""


class RefusedBlock(NamedTuple):
    """A stored block that Kafka refuses, the topic of the record, and the reason. `seq` is OWED for owed records."""

    transactional_id: str
    seq: int
    topic: str
    why: str


def is_refusal(error: BaseException) -> bool:
    """Return whether the same records would be refused again until a person changes the cause.

    A missing topic is a refusal only after a wait has timed out, because brokers learn of new topics late.
    """
    if isinstance(error, AbortableError | AuthorizationError):
        return error.error_code in _REFUSALS
    if isinstance(error, KafkaTimeoutError):
        return error.error_code == UNKNOWN_TOPIC
    return isinstance(error, InvalidRecordError)


def remedy_of(error: BaseException) -> str:
    """Return the change after which Kafka takes the records, for a person to make."""
    code = error.error_code if isinstance(error, KafkaError) else None
    return _REMEDIES.get(code or 0, "correct the cause")


def is_only_of(block: Sequence[BufferedRecord], owed: Sequence[BufferedRecord], error: BaseException) -> bool:
    """Return whether it is certain that a record of the block was refused, and no owed one, which come first."""
    if any(record.fate is None or _is_refused(record) for record in owed):
        return False
    return not isinstance(error, AbortableError) or any(map(_is_refused, block))


class NewTimestamps:
    """The topics for which records that are published late get a new timestamp, because they refuse the old one."""

    def __init__(self) -> None:
        self._topics: set[str] = set()

    def help_with(self, error: BaseException, records: Sequence[BufferedRecord]) -> bool:
        """Note the topics that refused timestamps. Return whether any is new, so that another attempt may succeed."""
        if not isinstance(error, KafkaError) or error.error_code != INVALID_TIMESTAMP:
            return False
        refused = {record.topic for record in records if _is_refused(record)}
        known = len(self._topics)
        self._topics |= refused or {record.topic for record in records}
        return len(self._topics) > known

    def of(self, records: Sequence[BufferedRecord]) -> Sequence[BufferedRecord]:
        if not self._topics:
            return records
        now_ms = int(time.time() * 1000)
        return [_renewed(record, now_ms) if record.topic in self._topics else record for record in records]

    def forget(self) -> None:
        self._topics.clear()


def _renewed(record: BufferedRecord, now_ms: int) -> BufferedRecord:
    headers, timestamp_ms = renewed(record.headers, record.timestamp_ms, now_ms)
    return BufferedRecord(record.topic, record.value, record.key, headers, record.partition, timestamp_ms)


def refused_topic(records: Sequence[BufferedRecord]) -> str:
    """Return the topic of the refused record, or all; call it before the abort, which drops the records."""
    refused = [record.topic for record in records if _is_refused(record)]
    not_sent = [record.topic for record in records if record.fate is None]
    if refused or not_sent:
        return (refused or not_sent)[0]
    return ", ".join(dict.fromkeys(record.topic for record in records))


def _is_refused(record: BufferedRecord) -> bool:
    """Return whether brokers have refused this record itself, not one beside it."""
    if record.fate is None or not record.fate.done():
        return False
    try:
        record.fate.outcome()
    except KafkaError as error:
        return error.error_code in _REFUSALS and error.__cause__ is None  # else another record is the cause
    return False
