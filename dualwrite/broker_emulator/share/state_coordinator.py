"""The share coordinator of one node: the state of share-partitions in `__share_group_state`. A thin shell.

State changes when its record is appended; a writer gets its response when the record is replicated. Records before the
oldest snapshot in use are deleted from time to time, as the topic is never compacted.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.partition_log import AppendOrigin
from dualwrite.broker_emulator.log.reading import replay
from dualwrite.broker_emulator.log.record_batch import build_batch
from dualwrite.broker_emulator.log.results import APPEND_ERRORS
from dualwrite.broker_emulator.share import state_records
from dualwrite.broker_emulator.share.state import (
    NO_OFFSET,
    NO_SUMMARY,
    UNKNOWN_COUNT,
    ShareState,
    ShareStateUpdate,
    StateBatch,
    StateError,
    StateKey,
    Summary,
    inconsistency,
)
from dualwrite.broker_emulator.slices import at_once
from dualwrite.broker_emulator.topics.replication import wait_until_replicated
from dualwrite.broker_emulator.transactions.transaction_log import partition_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from dualwrite.broker_emulator.log.record import Record
    from dualwrite.broker_emulator.log.record_batch import BatchHeader
    from dualwrite.broker_emulator.topics.topics import ClusterView, Partition

logger = logging.getLogger(__name__)

UPDATES_PER_SNAPSHOT: Final = 500
"""Kafka's default of share.coordinator.snapshot.update.records.per.snapshot."""
_PRUNED_EVERY: Final = 4 * UPDATES_PER_SNAPSHOT
MAX_BATCHES: Final = 50_000
"""More batches do not fit into a record of `__share_group_state`, which `max.message.bytes` limits."""

_FEW_BATCHES: Final = 1000

_NEGATIVE_PARTITION = "The partition id cannot be a negative number."
_NEGATIVE_LEADER_EPOCH = "The leader epoch cannot be a negative number."
_NEGATIVE_STATE_EPOCH = "The state epoch cannot be a negative number."
_TOO_MANY_BATCHES = f"A snapshot cannot have more than {MAX_BATCHES} batches of records."
_UNINITIALIZED = "{} operation on uninitialized share partition not allowed."


def coordinator_key(key: StateKey) -> str:
    """Return the key by which FindCoordinator finds the coordinator of a share-partition's state."""
    return f"{key.group_id}:{kafka_id(key.topic_id)}:{key.partition}"


def kafka_id(topic_id: UUID) -> str:
    """Return a topic id in the format of Kafka's UUIDs."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def partition_of(key: StateKey, partitions: int) -> int:
    """Return the partition of `__share_group_state` that holds a share-partition's state."""
    return partition_for(coordinator_key(key), partitions)


class ShareCoordinator:
    """Finds the shard of a share-partition, and keeps the shards in step with the partitions that the node leads."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._shards: dict[int, StateShard] = {}
        self._loading: set[int] = set()

    def begin_loading(self, index: int) -> None:
        """Become leader of a partition that will be loaded later: requests get error 14 until then."""
        self._loading.add(index)

    def load_partition(self, partition: Partition) -> None:
        """Become leader of a partition: rebuild its states from its records."""
        self.unload_partition(partition.index)  # a shard of an older leader epoch must write no more
        self._shards[partition.index] = StateShard(self._cluster, partition)

    def unload_partition(self, index: int) -> None:
        """Lose leadership: forget the partition's states."""
        self._loading.discard(index)
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()

    def shard(self, index: int) -> StateShard:
        """Return the shard of a partition. Raises StateError: 14 while it is loaded, 16 if another node leads it."""
        shard = self._shards.get(index)
        if shard is not None:
            return shard
        is_loading = index in self._loading
        raise StateError(ErrorCode.coordinator_load_in_progress if is_loading else ErrorCode.not_coordinator)


class StateShard:
    """The states in one partition of `__share_group_state`."""

    def __init__(self, cluster: ClusterView, partition: Partition) -> None:
        self._cluster = cluster
        self._partition = partition
        self._leader_epoch = partition.log.leader_epoch
        self._states: dict[StateKey, ShareState] = {}
        self._snapshot_offsets: dict[StateKey, int] = {}
        self._appended = 0
        self._is_led = True
        replay(partition.log, self._apply)

    def _apply(self, header: BatchHeader, record: Record) -> None:
        if header.is_control or record.key is None:
            return
        kind, key = state_records.decode_key(record.key)
        if kind == state_records.UPDATE:
            update = None if record.value is None else state_records.decode_update(record.value)
            known = self._states.get(key)
            if known is not None and update is not None:
                self._states[key] = known.updated(update)
        elif record.value is None:
            self._states.pop(key, None)
            self._snapshot_offsets.pop(key, None)
        else:
            self._states[key] = state_records.decode_snapshot(record.value)
            self._snapshot_offsets[key] = record.offset

    def close(self) -> None:
        """End the shard, as the node no longer leads the partition. Pending writes are refused."""
        self._is_led = False

    # requests

    def read(self, key: StateKey, leader_epoch: int) -> ShareState:
        """Return the state for the leader of a partition, and fence older leaders. Raises StateError."""
        _check_partition(key)
        _check_epochs(leader_epoch=leader_epoch)
        state = self._initialized(key, "Read")
        if leader_epoch < state.leader_epoch:
            raise StateError(ErrorCode.fenced_leader_epoch)
        self._check_exists(key)
        if leader_epoch > state.leader_epoch:
            fence = ShareStateUpdate(leader_epoch, state.start_offset, state.delivery_complete_count, ())
            after = state.updated(fence)
            self._store_update(key, state, fence, after)
            return after
        return state

    def write(self, key: StateKey, state_epoch: int, update: ShareStateUpdate) -> None:
        """Store an update. Raises StateError."""
        state = self._writable(key, state_epoch, update)
        self._store_update(key, state, update, state.updated(update))

    async def write_large(self, key: StateKey, state_epoch: int, update: ShareStateUpdate) -> None:
        """Store an update of very many batches, combined in a thread while others are served. Raises StateError.

        If the state has changed meanwhile, the update is checked and combined again with the new state.
        """
        while True:
            state = self._writable(key, state_epoch, update)
            after = await asyncio.to_thread(state.updated, update)
            if self._is_led and self._states.get(key) is state:
                self._store_update(key, state, update, after)
                return

    def _writable(self, key: StateKey, state_epoch: int, update: ShareStateUpdate) -> ShareState:
        """Return the state if the update may be written to it. Raises StateError."""
        if not self._is_led:
            raise StateError(ErrorCode.not_coordinator)
        _check_partition(key)
        _check_epochs(leader_epoch=update.leader_epoch, state_epoch=state_epoch)
        state = self._initialized(key, "Write")
        if update.leader_epoch < state.leader_epoch:
            raise StateError(ErrorCode.fenced_leader_epoch)
        if state_epoch < state.state_epoch:
            raise StateError(ErrorCode.fenced_state_epoch)
        self._check_exists(key)
        _check_numbers(state.start_offset if update.start_offset == NO_OFFSET else update.start_offset, update)
        return state

    def is_large(self, key: StateKey, update: ShareStateUpdate) -> bool:
        """Return whether the update and the state have so many batches that `write` would delay other requests."""
        state = self._states.get(key)
        return state is not None and len(state.batches) + len(update.batches) > _FEW_BATCHES

    def initialize(self, key: StateKey, state_epoch: int, start_offset: int) -> None:
        """Give a share-partition a new state, replacing any older one. Raises StateError."""
        _check_partition(key)
        _check_epochs(state_epoch=state_epoch)
        known = self._states.get(key)
        if known is not None and state_epoch < known.state_epoch:
            raise StateError(ErrorCode.fenced_state_epoch)
        self._check_exists(key)
        _check_start_offset(start_offset)
        now_ms = self._cluster.clock.now_ms()
        self._store_snapshot(
            key,
            ShareState(
                snapshot_epoch=0 if known is None else known.snapshot_epoch + 1,
                state_epoch=state_epoch,
                start_offset=start_offset,
                delivery_complete_count=UNKNOWN_COUNT if start_offset == NO_OFFSET else 0,
                create_timestamp_ms=now_ms,
                write_timestamp_ms=now_ms,
            ),
        )
        self._prune()

    def delete(self, key: StateKey) -> None:
        """Delete the state, if there is any. Raises StateError."""
        _check_partition(key)
        self._check_exists(key)
        self.forget(key)

    def forget(self, key: StateKey) -> None:
        """Delete the state, if there is any, even if the partition no longer exists. Raises StateError."""
        if key in self._states:
            self._append(state_records.encode_key(state_records.SNAPSHOT, key), None)
            del self._states[key]
            self._snapshot_offsets.pop(key, None)
            self._prune()

    def summary(self, key: StateKey) -> Summary:
        """Return the summary of a state, or `NO_SUMMARY`. Raises StateError."""
        _check_partition(key)
        self._check_exists(key)
        state = self._states.get(key)
        if state is None:
            return NO_SUMMARY
        return Summary(state.state_epoch, state.leader_epoch, state.start_offset, state.delivery_complete_count)

    async def replicated(self) -> None:
        """Wait until everything appended so far is replicated. Raises StateError."""
        log = self._partition.log
        if log.is_replicated:
            return
        error = await wait_until_replicated(self._partition, log.log_end_offset, self._leader_epoch)
        if error is not ErrorCode.none:
            raise StateError(APPEND_ERRORS.get(error, error))

    # checks

    def _initialized(self, key: StateKey, operation: str) -> ShareState:
        state = self._states.get(key)
        if state is None:
            raise StateError(ErrorCode.invalid_request, _UNINITIALIZED.format(operation))
        return state

    def _check_exists(self, key: StateKey) -> None:
        topic = self._cluster.topic_by_id(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            raise StateError(ErrorCode.unknown_topic_or_partition)

    # the log

    def _store_update(self, key: StateKey, state: ShareState, update: ShareStateUpdate, after: ShareState) -> None:
        """Append an update, or a snapshot after many updates; `after` is the new state. Raises StateError."""
        _check_size(after.batches)
        if after.updates > UPDATES_PER_SNAPSHOT:
            self._store_snapshot(key, self._next_snapshot(after))
        else:
            whole = update._replace(start_offset=after.start_offset)
            record = state_records.encode_update(state.snapshot_epoch, whole)
            self._append(state_records.encode_key(state_records.UPDATE, key), record)
            self._states[key] = after
        self._prune()

    def _next_snapshot(self, state: ShareState) -> ShareState:
        now_ms = self._cluster.clock.now_ms()
        return replace(state, snapshot_epoch=state.snapshot_epoch + 1, write_timestamp_ms=now_ms, updates=0)

    def _store_snapshot(self, key: StateKey, state: ShareState) -> None:
        record = state_records.encode_snapshot(state)
        self._snapshot_offsets[key] = self._append(state_records.encode_key(state_records.SNAPSHOT, key), record)
        self._states[key] = state

    def _append(self, key: bytes, value: bytes | None) -> int:
        """Append one record and return its offset. Raises StateError."""
        now_ms = self._cluster.clock.now_ms()
        result = self._partition.log.append(
            build_batch([(key, value)], timestamp_ms=now_ms),
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
        )
        if result.error is not ErrorCode.none:
            raise StateError(APPEND_ERRORS.get(result.error, result.error))
        self._appended += 1
        return result.base_offset

    def _prune(self) -> None:
        """Delete the records before the oldest snapshot now and then, after renewing snapshots that hold back others.

        Renewed snapshots are of the current state, so call this after the last record has changed it.
        """
        if self._appended < _PRUNED_EVERY:
            return
        self._appended = 0
        log = self._partition.log
        try:
            for key, offset in list(self._snapshot_offsets.items()):
                if log.log_end_offset - offset > _PRUNED_EVERY:
                    self._store_snapshot(key, self._next_snapshot(self._states[key]))
        except StateError as error:  # the request's own record is stored; the next time is soon enough
            logger.warning("%s not pruned: %s", self._partition.name, error)
            return
        oldest = min(self._snapshot_offsets.values(), default=log.log_end_offset)
        at_once(log.delete_records(min(oldest, log.high_watermark)))


def _check_epochs(*, leader_epoch: int = 0, state_epoch: int = 0) -> None:
    if leader_epoch < 0:
        raise StateError(ErrorCode.invalid_request, _NEGATIVE_LEADER_EPOCH)
    if state_epoch < 0:
        raise StateError(ErrorCode.invalid_request, _NEGATIVE_STATE_EPOCH)


def _check_start_offset(start_offset: int) -> None:
    problem = inconsistency(start_offset, 0, ())
    if problem is not None:
        raise StateError(ErrorCode.invalid_request, problem)


def _check_numbers(start_offset: int, update: ShareStateUpdate) -> None:
    _check_size(update.batches)
    problem = inconsistency(start_offset, update.delivery_complete_count, update.batches)
    if problem is not None:
        raise StateError(ErrorCode.invalid_request, problem)


def _check_size(batches: Sequence[StateBatch]) -> None:
    """Refuse a state too large for a record, as Kafka does; there is no other limit."""
    if len(batches) > MAX_BATCHES:
        raise StateError(ErrorCode.unknown_server_error, _TOO_MANY_BATCHES)


def _check_partition(key: StateKey) -> None:
    if key.partition < 0:
        raise StateError(ErrorCode.invalid_request, _NEGATIVE_PARTITION)
