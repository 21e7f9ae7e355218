"""A share-partition whose partition this node leads: decisions are persisted, and acquisition locks time out."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.clock import Timer
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.log.record_batch import (
    RecordTooLargeError,
    iter_records,
    parse_end_txn_marker,
    split_batches,
)
from dualwrite.broker_emulator.share.share_partition import (
    Acknowledgement,
    Acquired,
    Change,
    SharePartition,
    ShareSettings,
    Wish,
)
from dualwrite.broker_emulator.share.state import NO_OFFSET, ShareState, ShareStateUpdate, StateError, StateKey
from dualwrite.broker_emulator.slices import at_once

if TYPE_CHECKING:
    from dualwrite.broker_emulator.log.last_stable_offset import AbortedTransaction
    from dualwrite.broker_emulator.log.results import ReadResult
    from dualwrite.broker_emulator.share.state import ShareClusterView
    from dualwrite.broker_emulator.topics.topics import Partition


_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE | re.ASCII,
)


def parse_duration(text: str) -> timedelta:
    """Parse a duration. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as PT1H30M")
    return timedelta(**{unit: float(value) for unit, value in match.groupdict(default="0").items()})


logger = logging.getLogger(__name__)

_RETRY_MS = 500
_BY_DURATION = "by_duration:"
_MILLISECOND = timedelta(milliseconds=1)

_ERRORS: dict[ErrorCode, ErrorCode] = {
    ErrorCode.coordinator_not_available: ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress: ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator: ErrorCode.coordinator_not_available,
    ErrorCode.unknown_topic_or_partition: ErrorCode.unknown_topic_or_partition,
    ErrorCode.fenced_state_epoch: ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch: ErrorCode.not_leader_or_follower,
}
"""The errors that a member gets if the state could not be read or written; -1 for all others, as in Kafka."""


class LeaderError(RefusedError):
    """The share-partition cannot serve a request."""


class Fetched(NamedTuple):
    """The records of a partition that a member gets."""

    records: bytes
    acquired: list[Acquired]


class LedPartition:
    """One share-partition, for as long as this node leads the partition."""

    def __init__(
        self, cluster: ShareClusterView, key: StateKey, partition: Partition, on_available: Callable[[], None]
    ) -> None:
        """Read the persisted state. Raises LeaderError."""
        self._cluster = cluster
        self._key = key
        self._partition = partition
        self._on_available = on_available
        self._leader_epoch = partition.log.leader_epoch
        self._timer: tuple[int, Timer] | None = None
        self.is_open = True
        try:
            state = cluster.share_states.shard(key).read(key, self._leader_epoch)
        except StateError as error:
            raise _member_error(error) from error
        self._share = SharePartition(state, self._first_offset(state))
        partition.log.on_advance.append(on_available)

    @property
    def settings(self) -> ShareSettings:
        """The settings of the group as they are now."""
        return settings_of(self._cluster, self._key.group_id)

    def _first_offset(self, state: ShareState) -> int:
        """Return the first offset to deliver if nothing was delivered yet: share.auto.offset.reset."""
        log = self._partition.log
        if state.start_offset != NO_OFFSET:
            return log.log_start_offset
        strategy = self._group_value("share.auto.offset.reset")
        if strategy.startswith(_BY_DURATION):
            since_ms = (
                self._cluster.clock.now_ms() - parse_duration(strategy.removeprefix(_BY_DURATION)) // _MILLISECOND
            )
            try:
                offset, _ = at_once(log.offset_for_timestamp(since_ms, read_committed=False))
            except RecordTooLargeError as error:
                raise LeaderError(ErrorCode.invalid_record) from error
            return log.high_watermark if offset < 0 else offset
        return log.log_start_offset if strategy == "earliest" else log.high_watermark

    def _group_value(self, name: str) -> str:
        return self._cluster.group_config(self._key.group_id)[name]

    def close(self) -> None:
        """Forget the owners of the records in flight."""
        if self.is_open:
            self._partition.log.on_advance.remove(self._on_available)
        self.is_open = False
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None

    # fetching

    def readable_bytes(self, most: int) -> int:
        """Return how many bytes could be read now, up to about `most`."""
        if self._has_nothing_new or not self._share.has_room(self.settings):
            return 0
        return len(self._read(most).records)

    @property
    def _has_nothing_new(self) -> bool:
        """Whether there are neither new nor deleted records: a quick check, as many partitions are idle."""
        log, share = self._partition.log, self._share
        return share.start_offset >= log.log_start_offset and share.next_fetch_offset >= log.high_watermark

    def _read(self, most: int) -> ReadResult:
        log = self._partition.log
        self._share.log_start_moved(log.log_start_offset)
        return log.read(
            self._share.next_fetch_offset,
            max_bytes=most,
            read_committed=self._group_value("share.isolation.level") == "read_committed",
            at_least_one=True,
        )

    async def fetch(self, wish: Wish, most: int) -> Fetched:
        """Acquire records for a member. Raises LeaderError."""
        if self._has_nothing_new:
            return Fetched(b"", [])
        settings = self.settings
        if not self._share.has_room(settings):
            return Fetched(b"", [])
        read = self._read(most)
        if read.error is ErrorCode.offset_out_of_range:  # the log was truncated
            return Fetched(b"", [])
        if read.error is not ErrorCode.none:
            raise LeaderError(read.error)
        batches = split_batches(read.records) if read.records else []
        offsets = [(header.base_offset, header.last_offset) for header, _ in batches]
        acquired = self._share.acquire(wish, offsets, settings, self._cluster.clock.now_ms())
        if read.aborted and acquired:
            hidden = aborted_ranges(read.records, read.aborted)
            acquired = await self._hide(wish.member_id, hidden, acquired, settings)
        self._arm()
        if not acquired:
            return Fetched(b"", [])
        first, last = acquired[0].first_offset, acquired[-1].last_offset
        kept = (bytes(batch) for header, batch in batches if header.last_offset >= first and header.base_offset <= last)
        return Fetched(b"".join(kept), acquired)

    async def _hide(
        self, member_id: str, hidden: Sequence[tuple[int, int]], acquired: list[Acquired], settings: ShareSettings
    ) -> list[Acquired]:
        """Archive records of aborted transactions, which the member does not get; return the other records."""
        gaps, left = [], list(acquired)
        for first, last in hidden:
            for row in acquired:
                begin, end = max(first, row.first_offset), min(last, row.last_offset)
                if begin <= end:
                    gaps.append(Acknowledgement(begin, end, (0,)))
            left = [part for row in left for part in _outside(row, first, last)]
        if gaps:
            await self._persist(self._share.acknowledge(member_id, gaps, settings, self._cluster.clock.now_ms()))
        return left

    # acknowledging

    async def acknowledge(self, member_id: str, acknowledgements: Sequence[Acknowledgement]) -> None:
        """Handle acknowledgements of a member. Raises AcknowledgeError, LeaderError."""
        now_ms = self._cluster.clock.now_ms()
        self._share.log_start_moved(self._partition.log.log_start_offset)
        await self._persist(self._share.acknowledge(member_id, acknowledgements, self.settings, now_ms))

    async def release(self, member_id: str) -> None:
        """Take all records from a member. Raises LeaderError."""
        await self._persist(self._share.release(member_id, self.settings))

    async def _persist(self, change: Change) -> None:
        """Persist a change and let it take effect. Raises LeaderError."""
        self._write(change)
        if change.batches:
            try:
                await self._cluster.share_states.shard(self._key).replicated()
            except StateError as error:
                raise _member_error(error) from error

    def _write(self, change: Change) -> None:
        if change.batches:
            update = ShareStateUpdate(
                self._leader_epoch, change.start_offset, change.delivery_complete_count, change.batches
            )
            try:
                shard = self._cluster.share_states.shard(self._key)
                shard.write(self._key, self._share.state_epoch, update)
            except StateError as error:
                raise _member_error(error) from error
        self._share.apply(change)
        self._arm()
        if change.batches:
            self._on_available()

    # time

    def _arm(self) -> None:
        """Set a timer for the next acquisition lock to time out."""
        due_ms = self._share.next_deadline_ms
        if due_ms is None or not self.is_open or (self._timer is not None and self._timer[0] <= due_ms):
            return  # an early timer finds nothing due and is set again
        self._arm_at(due_ms)

    def _arm_at(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
        delay_ms = max(due_ms - self._cluster.clock.now_ms(), 1)
        self._timer = due_ms, self._cluster.clock.call_later(delay_ms, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        if not self.is_open:
            return
        now_ms = self._cluster.clock.now_ms()
        try:
            self._write(self._share.time_out(self.settings, now_ms))
        except LeaderError as error:
            logger.warning("acquisition locks of %s not ended: %s", self._partition.name, error)
            self._arm_at(now_ms + _RETRY_MS)


def settings_of(cluster: ShareClusterView, group_id: str) -> ShareSettings:
    """Return the settings for one group: its own (GROUP configs), else the brokers'."""
    values = cluster.group_config(group_id)
    return ShareSettings(
        lock_duration_ms=int(values["share.record.lock.duration.ms"]),
        delivery_count_limit=int(values["share.delivery.count.limit"]),
        max_record_locks=int(values["share.partition.max.record.locks"]),
        allows_renewal=values["share.renew.acknowledge.enable"] == "true",
    )


def aborted_ranges(records: bytes, aborted: Sequence[AbortedTransaction]) -> list[tuple[int, int]]:
    """Return the offsets of the batches of aborted transactions, from the list that comes with the records."""
    waiting = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    open_ids: set[int] = set()
    found = []
    for header, batch in split_batches(records):
        while waiting and waiting[-1].first_offset <= header.last_offset:
            open_ids.add(waiting.pop().producer_id)
        if header.is_control:
            marker = parse_end_txn_marker(next(iter_records(batch)))
            if marker is not None:
                open_ids.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in open_ids:
            found.append((header.base_offset, header.last_offset))
    return found


def _outside(row: Acquired, first: int, last: int) -> list[Acquired]:
    """Return the parts of acquired records that lie outside two offsets."""
    parts = []
    if row.first_offset < first:
        parts.append(row._replace(last_offset=min(row.last_offset, first - 1)))
    if row.last_offset > last:
        parts.append(row._replace(first_offset=max(row.first_offset, last + 1)))
    return parts


def _member_error(error: StateError) -> LeaderError:
    return LeaderError(_ERRORS.get(error.error, ErrorCode.unknown_server_error))
