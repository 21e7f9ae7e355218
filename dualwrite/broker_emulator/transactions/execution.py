"""Carries out the coordinator's decisions: appends their records, and writes the markers of transactions that end.

Everything here runs in the emulator's one event loop; a step between two awaits is atomic, and `pending_state` protects
a transactional id across them (other requests get CONCURRENT_TRANSACTIONS). A started call must run to its end, as a
broker finishes a request whose client is gone: cancelling it would leave the id pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from enum import Enum, auto
from typing import Final

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.clock import Clock
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.pause_points import PausePoint, PausePoints
from dualwrite.broker_emulator.slices import Retries, all_done
from dualwrite.broker_emulator.suspended_coroutine import Soon, begin, finish
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions import coordinator as decisions
from dualwrite.broker_emulator.transactions import transitions
from dualwrite.broker_emulator.transactions.metadata import (
    CoordinatorRules,
    MarkerRun,
    OwnedPartition,
    TransactionMetadata,
)
from dualwrite.broker_emulator.transactions.ports import Marker, MarkerSender, StateLog
from dualwrite.broker_emulator.transactions.states import (
    COMPLETE_STATES,
    ONGOING,
    PREPARE_COMMIT,
    PREPARE_STATES,
    TransactionState,
)
from dualwrite.broker_emulator.transactions.transaction_log import (
    encode_key,
    encode_value,
    fits_version_0,
    value_version,
)
from dualwrite.broker_emulator.transactions.transitions import Transition

RETRY_BACKOFF_S = 0.01
_MARKERS_AT_ONCE: Final = 500
"""Markers written before the response to EndTxn if none has to wait; more of them pause for other clients."""

APPEND_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}


def client_error_of_append(error: ErrorCode) -> ErrorCode:
    """Return the error for a client whose append to `__transaction_state` failed with `error`."""
    return APPEND_ERRORS.get(error, error)


class MarkerReaction(Enum):
    """The coordinator's reaction to a leader's response, for one partition of a transaction that is being ended."""

    ACKNOWLEDGED = auto()  # the marker is written: the partition leaves the transaction
    DROPPED = auto()  # the partition can never take a marker: it leaves the transaction as well
    RETRY = auto()
    CANCEL = auto()  # a newer coordinator or producer is active: stop all markers, the id stays in its Prepare state


RETRY: Final = MarkerReaction.RETRY
CANCEL: Final = MarkerReaction.CANCEL
"""Module-level names, which are faster to look up (see `error_codes.py`)."""

REACTIONS: Mapping[ErrorCode | None, MarkerReaction] = {
    NO_ERROR: MarkerReaction.ACKNOWLEDGED,
    ErrorCode.unknown_topic_or_partition: MarkerReaction.RETRY,
    ErrorCode.not_leader_or_follower: MarkerReaction.RETRY,
    ErrorCode.request_timed_out: MarkerReaction.RETRY,
    ErrorCode.not_enough_replicas: MarkerReaction.RETRY,
    ErrorCode.not_enough_replicas_after_append: MarkerReaction.RETRY,
    ErrorCode.kafka_storage_error: MarkerReaction.RETRY,
    ErrorCode.invalid_producer_epoch: MarkerReaction.CANCEL,
    ErrorCode.transaction_coordinator_fenced: MarkerReaction.CANCEL,
    ErrorCode.unsupported_for_message_format: MarkerReaction.DROPPED,
    ErrorCode.unsupported_version: MarkerReaction.DROPPED,
    None: MarkerReaction.DROPPED,  # the topic was deleted: it has no leader
}


def reaction_to(response: ErrorCode | None) -> MarkerReaction:
    """Return the reaction to a leader's response. Raises RuntimeError on an error that no leader may send."""
    reaction = REACTIONS.get(response)
    if reaction is None:
        raise RuntimeError(f"a partition leader responded to a transaction marker with {response!r}")
    return reaction


class Execution:
    """Appends and applies transitions on one node, and runs its background work."""

    def __init__(
        self, *, node_id: int, clock: Clock, log: StateLog, markers: MarkerSender, pause_points: PausePoints
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._log = log
        self._markers = markers
        self._pause_points = pause_points
        self._retries = Retries(RETRY_BACKOFF_S)
        self.background_tasks: set[asyncio.Task[None]] = set()
        """Markers being written, and aborts and removals started by the scans."""

    def configure(self, config: BrokerConfig) -> None:
        """Apply a configuration whose `transaction.version` may have changed."""
        self._rules = CoordinatorRules.from_config(config)
        self._value_version = value_version(self._rules.transaction_version)
        self._logged = self._rules.logged

    @staticmethod
    def watch_timeout(owned: OwnedPartition, metadata: TransactionMetadata) -> None:
        """Schedule a scan of the id for the time at which its transaction may time out."""
        deadline_ms = decisions.timeout_deadline_ms(metadata)
        if deadline_ms is not None:
            owned.timeouts.schedule(metadata.transactional_id, deadline_ms)

    def watch_expiry(self, owned: OwnedPartition, metadata: TransactionMetadata) -> None:
        """Schedule a scan of the id for the time at which it may expire."""
        owned.expiries.schedule(metadata.transactional_id, decisions.expiry_deadline_ms(metadata, self._rules))

    async def carry_out(self, owned: OwnedPartition, transition: Transition) -> ErrorCode:
        """Append a transition's record, with the id pending meanwhile; return the client's error if that fails."""
        after = transition.after
        owned.ids[after.transactional_id] = transition.during
        error = self._append(owned, after)
        if not isinstance(error, ErrorCode):
            error = await error
        if error is not NO_ERROR:
            if error is ErrorCode.unsupported_version and self._rules.unwritable_record_wedges:
                return error
            if transition.on_failure is None:
                del owned.ids[after.transactional_id]
            else:
                owned.ids[after.transactional_id] = transition.on_failure
            return client_error_of_append(error)
        owned.ids[after.transactional_id] = after
        if after.state is ONGOING:
            self.watch_timeout(owned, after)
        elif transition.on_failure is None:
            self.watch_expiry(owned, after)
        if self._pause_points.active:
            await self._reach(_AFTER_APPEND, after)
        if not owned.is_led:
            return ErrorCode.not_coordinator
        if after.state in PREPARE_STATES:
            self._start_markers(MarkerRun(owned, after))
        return NO_ERROR

    async def remove(self, owned: OwnedPartition, metadata: TransactionMetadata) -> None:
        """Append the tombstone of an id; it stays if that fails."""
        transactional_id = metadata.transactional_id
        owned.ids[transactional_id] = metadata._replace(pending_state=TransactionState.DEAD)
        if self._pause_points.active:
            await self._reach(PausePoint.BEFORE_TOMBSTONE_APPEND, metadata)
        error = self._log.append(owned.partition, encode_key(transactional_id), None)
        if not isinstance(error, ErrorCode):
            error = await error
        if error is NO_ERROR:
            del owned.ids[transactional_id]
        else:
            owned.ids[transactional_id] = metadata

    def _append(
        self, owned: OwnedPartition, metadata: TransactionMetadata, *, has_paused: bool = False
    ) -> Soon[ErrorCode]:
        if self._pause_points.active and not has_paused:
            return self._append_after_pause(owned, metadata)
        version = self._value_version
        if version == 0 and not fits_version_0(metadata):
            return ErrorCode.unsupported_version
        value = encode_value(metadata, version, **self._logged)
        return self._log.append(owned.partition, encode_key(metadata.transactional_id), value)

    async def _append_after_pause(self, owned: OwnedPartition, metadata: TransactionMetadata) -> ErrorCode:
        await self._reach(_BEFORE_APPEND, metadata)
        if not owned.is_led:
            return ErrorCode.not_coordinator
        error = self._append(owned, metadata, has_paused=True)
        return error if isinstance(error, ErrorCode) else await error

    async def write_markers(self, run: MarkerRun) -> None:
        """Write the markers of a decided transaction, then the record that it is complete."""
        run.owned.marker_runs[run.decided.transactional_id] = run
        partitions = run.decided.topic_partitions
        if len(partitions) == 1:
            await self._write_marker(run, *partitions)
        else:  # a leader that does not respond must not delay the others
            works = (self._write_marker(run, topic_partition) for topic_partition in sorted(partitions))
            await all_done(works, at_once=_MARKERS_AT_ONCE)
        if not run.is_cancelled:
            await self._complete(run)

    async def _write_marker(self, run: MarkerRun, topic_partition: TopicPartition) -> None:
        owned, decided = run.owned, run.decided
        is_commit = decided.state is PREPARE_COMMIT
        marker = Marker(  # by position: by name it takes three times as long
            decided.producer_id,
            decided.producer_epoch,
            owned.coordinator_epoch,
            is_commit,
            decided.client_transaction_version,
        )
        is_sent = False  # even if another partition's response cancels the run, each partition is sent its marker once
        while owned.is_led and not (is_sent and run.is_cancelled):
            is_sent = True
            if self._pause_points.active:
                await self._reach(PausePoint.BEFORE_MARKER, decided, topic_partition)
            response = self._markers.send(topic_partition, marker)
            if response is not None and not isinstance(response, ErrorCode):
                response = await response
            if self._pause_points.active:
                await self._reach(PausePoint.AFTER_MARKER, decided, topic_partition)
            reaction = reaction_to(response)
            if reaction is CANCEL:
                run.is_cancelled = True
            elif reaction is RETRY:
                await self._retries.turn()
            else:
                run.acknowledged.add(topic_partition)
                return

    async def _complete(self, run: MarkerRun) -> None:
        """Append the Complete record. Retry until it succeeds, because the decision and the markers are written."""
        owned, name = run.owned, run.decided.transactional_id
        while owned.is_led:
            transition = transitions.completed(owned.ids[name], self._clock.now_ms())
            error = self._append(owned, transition.after)
            if not isinstance(error, ErrorCode):
                error = await error
            if error is NO_ERROR:
                owned.ids[name] = transition.after
                del owned.marker_runs[name]
                if self._pause_points.active:
                    await self._reach(_AFTER_APPEND, transition.after)
                return
            await self._retries.turn()

    async def _reach(
        self,
        point: PausePoint | tuple[PausePoint, PausePoint, PausePoint],
        metadata: TransactionMetadata,
        topic_partition: TopicPartition | None = None,
    ) -> None:
        if not isinstance(point, PausePoint):
            point = point[(metadata.state in PREPARE_STATES) + 2 * (metadata.state in COMPLETE_STATES)]
        where = {} if topic_partition is None else topic_partition._asdict()
        await self._pause_points.reach(
            point,
            node_id=self._node_id,
            transactional_id=metadata.transactional_id,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            state=metadata.state.label,
            **where,
        )

    def _start_markers(self, run: MarkerRun) -> None:
        """Write markers synchronously until they block; with pause points active, in the background.

        If a transaction is complete before the response to its EndTxn, the client's next transaction does not get
        CONCURRENT_TRANSACTIONS, after which clients back off for 20 ms and more.
        """
        writing = self.write_markers(run)
        if self._pause_points.active:
            self.start(writing)
            return
        try:
            rest = begin(writing)
        except Exception as error:
            self._failed(asyncio.get_running_loop(), error)
        else:
            if rest is not None:
                self.start(finish(rest))

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self.background_tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self.background_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(task.get_loop(), error)

    @staticmethod
    def _failed(loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
        loop.call_exception_handler({"message": "the transaction coordinator failed", "exception": error})


_BEFORE_APPEND = (
    PausePoint.BEFORE_STATE_APPEND,
    PausePoint.BEFORE_PREPARE_APPEND,
    PausePoint.BEFORE_COMPLETE_APPEND,
)
_AFTER_APPEND = (
    PausePoint.AFTER_STATE_APPEND,
    PausePoint.AFTER_PREPARE_APPEND,
    PausePoint.AFTER_COMPLETE_APPEND,
)
