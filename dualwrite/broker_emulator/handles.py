"""Return values of the methods of `Emulator`: snapshots, and held points and replications of a running emulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.results import ProducerDescription
from dualwrite.broker_emulator.pause_points import Hold
from dualwrite.broker_emulator.topics.topics import Partition


class LogSnapshot(NamedTuple):
    """One partition at one moment."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    leader_id: int
    producers: list[ProducerDescription]
    batches: list[bytes]


def snapshot(partition: Partition) -> LogSnapshot:
    """Return the current state of a partition. Call it in the emulator's loop."""
    log = partition.log
    return LogSnapshot(
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.leader_epoch,
        partition.leader_id,
        log.producers(),
        list(log.batches()),
    )


class HeldPoint:
    """A pause point held by a test; any thread may wait for it and release it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hold: Hold) -> None:
        self._loop = loop
        self._hold = hold

    @property
    def hits(self) -> int:
        """The number of times that the point has been reached."""
        return self._hold.hits

    def wait_reached(self, timeout_s: float = 60.0) -> None:
        """Block until the point is reached. Raises TimeoutError after `timeout_s`."""
        reached = asyncio.run_coroutine_threadsafe(self._hold.until_hit(), self._loop)
        try:
            reached.result(timeout_s)
        except TimeoutError:
            reached.cancel()
            raise TimeoutError(f"{self._hold.point} was not reached within {timeout_s} s") from None

    def release(self) -> None:
        """Release every task that waits at the point, now and later."""
        self._loop.call_soon_threadsafe(self._hold.release)


class HeldReplication:
    """The replication of one partition, held by a test; any thread may release it."""

    def __init__(self, call: Callable[[Callable[[], None]], None], log: PartitionLog) -> None:
        self._call_in_loop = call
        self._log = log

    def release(self, up_to: int | None = None) -> None:
        """Let the followers fetch the records below offset `up_to`, or all records from now on.

        Raises ValueError if `up_to` is already replicated, beyond the log end, or inside a batch.
        """
        self._call_in_loop(lambda: self._log.release_high_watermark(up_to))
