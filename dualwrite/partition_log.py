"""One partition of a topic as a log: append a record and get its offset, read, and delete the beginning. For threads.

The Spark sink keeps its decisions in one. Records are sent alone, without a producer id or a transaction: a record
without a response is sent again, so it may be in the log several times, and a reader has to recognise it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from dualwrite.client.io_thread import IoThread, shared_io_thread, this_process
from dualwrite.client.log.partition_log import LogDescription, LogRecord, OffsetOutOfRangeError, PartitionLogCalls
from dualwrite.config import AdminConfig
from dualwrite.errors import IllegalStateError
from dualwrite.exact import exact
from dualwrite.monkey_patches import assert_real_threads

__all__ = ["LogDescription", "LogRecord", "OffsetOutOfRangeError", "PartitionLog"]

T = TypeVar("T")


class PartitionLog:
    """The log in partition 0 of a topic. Threads may share it; a forked child makes its own.

    `config` has the settings of `TransactionAdmin`. Every call takes up to `timeout_ms`, and fails earlier, with
    KafkaUnreachableError, if no broker could be reached for `unreachable_timeout_ms`. Until then it repeats requests
    that fail for a passing reason. Other errors: `KafkaTimeoutError`, `AuthenticationError`, `AuthorizationError`,
    `UnsupportedByBrokerError`, `AdminError`. After an error of `append`, it may have happened, or may still happen.
    """

    def __init__(
        self, config: Mapping[str, Any], topic: str, *, timeout_ms: int, unreachable_timeout_ms: int, most_bytes: int
    ) -> None:
        """`most_bytes`: the greatest compressed size of a record that is sent."""
        self._io: Final[IoThread] = shared_io_thread()
        self._generation: Final = this_process.generation
        self._timeout_s = timeout_ms / 1000
        self._most_bytes = most_bytes
        parsed = AdminConfig.parse(config, {})
        self._calls = PartitionLogCalls(
            parsed, exact(topic), self._io.loop, unreachable_timeout_ms=unreachable_timeout_ms
        )

    def append(self, value: bytes) -> int:
        """Append a record, with the acknowledgement of all in-sync replicas; return one of its offsets.

        Raises InvalidRecordError if it is too long.
        """
        return self._run(lambda until_s: self._calls.append(value, until_s, most_bytes=self._most_bytes))

    def start(self) -> int:
        """Return the first offset."""
        return self._run(self._calls.start)

    def read(self, first: int, last: int) -> list[LogRecord]:
        """Return the records from the offset `first` to at least `last`. Raises OffsetOutOfRangeError."""
        return self._run(lambda until_s: self._calls.read(first, last, until_s))

    def delete_before(self, offset: int) -> None:
        """Delete the records before this offset."""
        self._run(lambda until_s: self._calls.delete_before(offset, until_s))

    def describe(self, names: Sequence[str]) -> LogDescription | None:
        """Return partitions, replicas and these settings of the topic; None if it does not exist."""
        return self._run(lambda until_s: self._calls.describe(names, until_s))

    def exists(self) -> bool:
        """Return whether a broker knows the topic now."""
        return self._run(self._calls.exists)

    def create(self, settings: Mapping[str, str], replicated: Mapping[str, str]) -> None:
        """Create the topic with one partition on up to three brokers, unless it exists.

        `replicated`: additional settings if it has several replicas.
        """
        self._run(lambda until_s: self._calls.create(settings, replicated, until_s))

    def close(self) -> None:
        """Release the connections."""
        if self._generation == this_process.generation:
            self._io.start(self._calls.close())

    def _run(self, call: Callable[[float], Coroutine[Any, Any, T]]) -> T:
        """Run a call, which gets its deadline, in the I/O thread, and wait for it in this one."""
        if self._generation != this_process.generation:
            raise IllegalStateError("this log belongs to the process before the fork; create a new one here")
        assert_real_threads()
        pending = self._io.start(self._until(call))
        try:
            return pending.result()
        except BaseException:  # KeyboardInterrupt, for example
            pending.cancel()
            raise

    async def _until(self, call: Callable[[float], Coroutine[Any, Any, T]]) -> T:
        return await call(asyncio.get_running_loop().time() + self._timeout_s)
