"""`KafkaLog`: the log of a commit store in a topic of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from dualwrite.errors import InvalidRecordError, KafkaError, KafkaTimeoutError
from dualwrite.partition_log import LogDescription, OffsetOutOfRangeError, PartitionLog
from spark_sink.errors import CommitLogError, SinkError
from spark_sink.store.topic.log import OutOfLogError, StoredRecord
from spark_sink.store.topic.replica import missing_store

T = TypeVar("T")

MOST_BYTES: Final = 16 * 1024 * 1024

REQUIRED: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
}
"""Settings without which the topic would lose records, or have timestamps of other clocks."""

_LEAST_IN_SYNC: Final = 2
_IN_SYNC: Final = "min.insync.replicas"
_SIZE: Final = "max.message.bytes"


class KafkaLog:
    """A `CommitLog` in partition 0 of a topic."""

    def __init__(
        self, settings: Mapping[str, Any], topic: str, *, timeout_ms: int, unreachable_timeout_ms: int
    ) -> None:
        """Take the `settings` of an admin client; connect when needed."""
        self._topic = topic
        self._log = PartitionLog(
            settings,
            topic,
            timeout_ms=timeout_ms,
            unreachable_timeout_ms=unreachable_timeout_ms,
            most_bytes=MOST_BYTES - 1024,
        )

    @property
    def name(self) -> str:
        """The topic."""
        return self._topic

    def append(self, value: bytes) -> int:
        """See `CommitLog.append`."""
        try:
            return self._called(lambda: self._log.append(value))
        except InvalidRecordError as error:
            raise SinkError(
                f"an update of the commit store in the topic {self._topic} is too long: {error}. None of it was "
                f"written: use fewer tasks, or set {_SIZE} of that topic to {MOST_BYTES}"
            ) from error

    def start(self) -> int:
        """See `CommitLog.start`."""
        return self._called(self._log.start)

    def read(self, first: int, last: int) -> list[StoredRecord]:
        """See `CommitLog.read`."""
        try:
            records = self._called(lambda: self._log.read(first, last))
        except OffsetOutOfRangeError as error:
            raise OutOfLogError from error
        if any(not record.is_plain for record in records):
            raise SinkError(
                f"the topic {self._topic} of the commit store has records of a transaction, which another program has "
                "written; nothing was changed: give WRITE on that topic to the sink alone, and begin with a new topic"
            )
        return [StoredRecord(*record[:4]) for record in records]

    def delete_before(self, offset: int) -> None:
        """See `CommitLog.delete_before`."""
        self._called(lambda: self._log.delete_before(offset))

    def check(self) -> None:
        """See `CommitLog.check`."""
        found = self._called(lambda: self._log.describe([*REQUIRED, _IN_SYNC]))
        if found is None:
            raise missing_store(self._topic)
        wrong = _wrong(found)
        if wrong:
            raise SinkError(
                f"the topic {self._topic} cannot keep the decisions of a sink: {'; '.join(wrong)}. Nothing was "
                "written: correct that, or let the sink create a new topic"
            )

    def create(self) -> None:
        """See `CommitLog.create`."""
        if not self._called(self._log.exists):
            self._called(
                lambda: self._log.create({**REQUIRED, _SIZE: str(MOST_BYTES)}, {_IN_SYNC: str(_LEAST_IN_SYNC)})
            )

    def close(self) -> None:
        """Release the connections."""
        self._log.close()

    def _called(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except OffsetOutOfRangeError:
            raise
        except KafkaError as error:
            is_away = isinstance(error, KafkaTimeoutError)
            raise CommitLogError(f"the topic {self._topic} of the commit store: {error}", is_away=is_away) from error


def _wrong(found: LogDescription) -> list[str]:
    """Return the faults of a topic."""
    wrong = [] if found.partitions == 1 else [f"it has {found.partitions} partitions, not 1"]
    for name, value in REQUIRED.items():
        actual = found.settings.get(name)
        if actual != value:
            wrong.append(f"{name} is {actual or 'not known'}, not {value}")
    if found.replicas > 1 and int(found.settings.get(_IN_SYNC, 0)) < _LEAST_IN_SYNC:
        wrong.append(f"{_IN_SYNC} is {found.settings.get(_IN_SYNC)}, and must be at least {_LEAST_IN_SYNC}")
    return wrong
