"""The transaction coordinator of one node: carries out the pure decisions of `coordinator.py`.

Everything here runs in the emulator's one event loop; a step between two awaits is atomic, and `pending_state` protects
a transactional id across them (other requests get CONCURRENT_TRANSACTIONS). A started call must run to its end, as a
broker finishes a request whose client is gone: cancelling it would leave the id pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator
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
from dualwrite.broker_emulator.transactions import inspection, transitions
from dualwrite.broker_emulator.transactions.coordinator import (
    CANCEL,
    RETRY,
    EndTxnResult,
    InitProducerIdRequest,
    InitProducerIdResult,
    reaction_to,
)
from dualwrite.broker_emulator.transactions.inspection import (
    ListTransactionsResult,
    TransactionDescription,
    TransactionListing,
)
from dualwrite.broker_emulator.transactions.metadata import (
    NO_PRODUCER_ID,
    CoordinatorRules,
    MarkerRun,
    OwnedPartition,
    ProducerPair,
    Progress,
    TransactionMetadata,
)
from dualwrite.broker_emulator.transactions.ports import Marker, MarkerSender, ProducerIdSource, StateLog
from dualwrite.broker_emulator.transactions.states import (
    COMPLETE_STATES,
    ONGOING,
    PREPARE_COMMIT,
    PREPARE_STATES,
    TransactionState,
)
from dualwrite.broker_emulator.transactions.transaction_log import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    fits_version_0,
    partition_for,
    value_version,
)
from dualwrite.broker_emulator.transactions.transitions import Transition

RETRY_BACKOFF_S = 0.01
_MARKERS_AT_ONCE: Final = 500
"""Markers written before the response to EndTxn if none has to wait; more of them pause for other clients."""


class TransactionCoordinator:
    """The transactional ids whose `__transaction_state` partition this node leads."""

    def __init__(
        self,
        *,
        node_id: int,
        config: BrokerConfig,
        clock: Clock,
        log: StateLog,
        producer_ids: ProducerIdSource,
        markers: MarkerSender,
        pause_points: PausePoints,
    ) -> None:
        self.node_id = node_id
        self.configure(config)
        self._partition_count = config.transaction_state_log_num_partitions
        self._clock = clock
        self._log = log
        self._producer_ids = producer_ids
        self._markers = markers
        self._pause_points = pause_points
        self._partitions: dict[int, OwnedPartition] = {}
        self._loading: set[int] = set()
        self._retries = Retries(RETRY_BACKOFF_S)
        self.background_tasks: set[asyncio.Task[None]] = set()
        """Markers being written, and aborts and removals started by the scans."""
        self._is_active = True

    # --- ownership ---

    def partition_for(self, transactional_id: str) -> int:
        """Return the `__transaction_state` partition that owns the id."""
        return partition_for(transactional_id, self._partition_count)

    def begin_loading(self, partition: int) -> None:
        """Become leader of a partition that will be loaded later: until then, requests get error 14."""
        self._loading.add(partition)

    def load_partition(self, partition: int, leader_epoch: int) -> None:
        """Become leader of a partition: replay it, and resend the markers of transactions that were being ended.

        Runs without yielding to the event loop. `leader_epoch` is the coordinator epoch of all markers sent from now
        on. Raises UnreadableRecordError.
        """
        owned = OwnedPartition(partition, leader_epoch)

        def apply(key: bytes, value: bytes | None) -> None:
            transactional_id = decode_key(key)
            if value is None:
                owned.ids.pop(transactional_id, None)
            else:
                owned.ids[transactional_id] = transitions.loaded(decode_value(transactional_id, value))

        self._log.replay(partition, apply)
        self.unload_partition(partition)
        self._partitions[partition] = owned
        for metadata in owned.ids.values():
            self._watch_timeout(owned, metadata)
            self._watch_expiry(owned, metadata)
            if metadata.state in PREPARE_STATES:
                self._start(self._write_markers(MarkerRun(owned, metadata)))

    def unload_partition(self, partition: int) -> None:
        """Lose leadership: forget the partition's ids; requests whose append is in flight get NOT_COORDINATOR."""
        owned = self._partitions.pop(partition, None)
        if owned is not None:
            owned.is_led = False
        self._loading.discard(partition)

    def configure(self, config: BrokerConfig) -> None:
        """Apply a configuration whose `transaction.version` may have changed.

        An open transaction is ended by the version of the request that ends it; server-side aborts and the format of
        records follow the cluster's version at that moment (KIP-890).
        """
        self._rules = CoordinatorRules.from_config(config)
        self._value_version = value_version(self._rules.transaction_version)
        self._logged = self._rules.logged

    def halt(self) -> None:
        """Stop all background work at once; from then on requests get NOT_COORDINATOR, inspection gets error 15."""
        self._is_active = False
        for partition in list(self._partitions):
            self.unload_partition(partition)
        self._loading.clear()
        for task in self.background_tasks:
            task.cancel()

    async def shutdown(self) -> None:
        """Stop all background work and wait for its end."""
        self.halt()
        await asyncio.gather(*self.background_tasks, return_exceptions=True)

    def _owner_of(self, transactional_id: str) -> OwnedPartition | None:
        return self._partitions.get(partition_for(transactional_id, self._partition_count))

    def _not_owned_error(self, transactional_id: str) -> ErrorCode:
        """Return the error for an id that this node does not own."""
        is_loading = self.partition_for(transactional_id) in self._loading
        return ErrorCode.coordinator_load_in_progress if is_loading else ErrorCode.not_coordinator

    # --- requests ---

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        enable_2pc: bool = False,
        keep_prepared: bool = False,
    ) -> InitProducerIdResult:
        """Handle InitProducerId (KIP-98, KIP-360, KIP-890, KIP-939). `timeout_ms` is ignored with `enable_2pc`.

        An open transaction is aborted (CONCURRENT_TRANSACTIONS until that is done) or, with `keep_prepared`, left as it
        is; either way, every earlier holder of the id is fenced.
        """
        request = InitProducerIdRequest(
            timeout_ms, ProducerPair(producer_id, producer_epoch), enable_2pc, keep_prepared
        )
        error = decisions.check_init_request(transactional_id, request, self._rules)
        if error is not NO_ERROR:
            return InitProducerIdResult(error)
        if transactional_id is None:
            return InitProducerIdResult(NO_ERROR, self._producer_ids.next_producer_id(), self._producer_ids.first_epoch)
        owned = self._owner_of(transactional_id)
        if owned is None:
            return InitProducerIdResult(self._not_owned_error(transactional_id))
        metadata = owned.ids.get(transactional_id)
        decision = decisions.decide_init_producer_id(
            transactional_id,
            metadata,
            request,
            self._rules,
            new_producer_id=self._spare_producer_id(metadata),
            now_ms=self._clock.now_ms(),
        )
        if decision.transition is not None:
            error = await self._carry_out(owned, decision.transition)
        return decision.response if error is NO_ERROR else InitProducerIdResult(error)

    async def set_next_epoch(self, transactional_id: str, producer_epoch: int) -> ErrorCode:
        """Make the next InitProducerId of the id return this epoch; 51 while a transaction is open. For tests."""
        owned = self._owner_of(transactional_id)
        if owned is None:
            return self._not_owned_error(transactional_id)
        metadata = owned.ids.get(transactional_id)
        spare, now_ms = self._spare_producer_id(metadata), self._clock.now_ms()
        transition = decisions.decide_next_epoch(
            transactional_id, metadata, producer_epoch, new_producer_id=spare, now_ms=now_ms
        )
        return ErrorCode.concurrent_transactions if transition is None else await self._carry_out(owned, transition)

    async def add_partitions(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        transaction_version: int,
    ) -> ErrorCode:
        """Add partitions to the transaction, opening it if needed.

        `transaction_version` is 2 for the implicit additions by brokers, else 0.
        """
        if not transactional_id:
            return ErrorCode.invalid_request
        owned = self._owner_of(transactional_id)
        if owned is None:
            return self._not_owned_error(transactional_id)
        decision = decisions.decide_add_partitions(
            owned.ids.get(transactional_id),
            ProducerPair(producer_id, producer_epoch),
            partitions,
            self._rules,
            transaction_version=transaction_version,
            now_ms=self._clock.now_ms(),
        )
        if decision.transition is None:
            return decision.response
        return await self._carry_out(owned, decision.transition)

    def verify_partitions(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Check that each partition is part of the transaction (AddPartitionsToTxn with VerifyOnly, KIP-890 part 1)."""
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.invalid_request)
        owned = self._owner_of(transactional_id)
        if owned is None:
            return dict.fromkeys(partitions, self._not_owned_error(transactional_id))
        writer = ProducerPair(producer_id, producer_epoch)
        return decisions.verify_partitions(owned.ids.get(transactional_id), writer, partitions)

    async def end_txn(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        transaction_version: int,
    ) -> EndTxnResult:
        """End the transaction; return once the commit or abort is in the log.

        `transaction_version` is 2 for EndTxn v5 and later, else 0.
        """
        if not transactional_id:
            return EndTxnResult(ErrorCode.invalid_request)
        owned = self._owner_of(transactional_id)
        if owned is None:
            return EndTxnResult(self._not_owned_error(transactional_id))
        metadata = owned.ids.get(transactional_id)
        decision = decisions.decide_end_txn(
            metadata,
            ProducerPair(producer_id, producer_epoch),
            self._rules,
            commit=commit,
            transaction_version=transaction_version,
            new_producer_id=NO_PRODUCER_ID if metadata is None else self._spare_producer_id(metadata),
            now_ms=self._clock.now_ms(),
        )
        if decision.transition is None:
            return decision.response
        error = await self._carry_out(owned, decision.transition)
        return decision.response if error is NO_ERROR else EndTxnResult(error)

    def _spare_producer_id(self, metadata: TransactionMetadata | None) -> int:
        if not decisions.needs_new_producer_id(metadata):
            return NO_PRODUCER_ID
        return self._producer_ids.next_producer_id()

    # --- inspection ---

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Describe one id (DescribeTransactions, KIP-664)."""
        if not self._is_active:
            return TransactionDescription(ErrorCode.coordinator_not_available, transactional_id)
        if not transactional_id:
            return TransactionDescription(ErrorCode.invalid_request, transactional_id)
        owned = self._owner_of(transactional_id)
        if owned is None:
            return TransactionDescription(self._not_owned_error(transactional_id), transactional_id)
        metadata = owned.ids.get(transactional_id)
        run = owned.marker_runs.get(transactional_id)
        if metadata is not None and run is not None:
            metadata = transitions.acknowledged(metadata, run.acknowledged)
        return inspection.describe(transactional_id, metadata, stores_start_time=self._rules.stores_start_time)

    def list(
        self,
        *,
        state_filters: Collection[str] = (),
        producer_id_filters: Collection[int] = (),
        duration_filter_ms: int = -1,
    ) -> ListTransactionsResult:
        """List the ids that pass all given filters (ListTransactions, KIP-664, KIP-994)."""
        if not self._is_active:
            return ListTransactionsResult(ErrorCode.coordinator_not_available)
        if self._loading:
            return ListTransactionsResult(ErrorCode.coordinator_load_in_progress)
        filters, unknown = inspection.parse_filters(state_filters, producer_id_filters, duration_filter_ms)
        now_ms = self._clock.now_ms()
        rows = (
            TransactionListing(metadata.transactional_id, metadata.producer_id, metadata.state.label)
            for owned in self._partitions.values()
            for metadata in owned.ids.values()
            if filters.admit(metadata, now_ms)
        )
        return ListTransactionsResult(NO_ERROR, unknown, tuple(rows))

    def known_ids(self) -> Iterator[TransactionMetadata]:
        """Yield every id of the loaded partitions, in no particular order."""
        for owned in self._partitions.values():
            yield from owned.ids.values()

    def progress(self, transactional_id: str) -> Progress:
        """Return the written markers of the id's transaction.

        Raises KeyError if the id's partition is not loaded here.
        """
        owned = self._partitions[self.partition_for(transactional_id)]
        run = owned.marker_runs.get(transactional_id)
        return Progress(owned.coordinator_epoch, frozenset() if run is None else frozenset(run.acknowledged))

    # --- scans ---

    def abort_timed_out(self) -> None:
        """Start aborting every transaction whose timeout has passed; call at intervals.

        An abort whose append fails is retried by the next scan.
        """
        now_ms = self._clock.now_ms()
        for owned in self._partitions.values():
            for transactional_id in owned.timeouts.take_due(now_ms):
                metadata = owned.ids.get(transactional_id)
                if metadata is None:
                    continue
                self._watch_timeout(owned, metadata)
                if decisions.has_timed_out(metadata, now_ms):
                    self._start(self._abort_timed_out(owned, transactional_id))

    @staticmethod
    def _watch_timeout(owned: OwnedPartition, metadata: TransactionMetadata) -> None:
        """Schedule a scan of the id for the time at which its transaction may time out."""
        deadline_ms = decisions.timeout_deadline_ms(metadata)
        if deadline_ms is not None:
            owned.timeouts.schedule(metadata.transactional_id, deadline_ms)

    async def _abort_timed_out(self, owned: OwnedPartition, transactional_id: str) -> None:
        metadata = owned.ids.get(transactional_id)
        if metadata is None:
            return
        transition = decisions.decide_timeout_abort(
            metadata,
            self._rules,
            new_producer_id=self._spare_producer_id(metadata),
            now_ms=self._clock.now_ms(),
        )
        if transition is not None:
            await self._carry_out(owned, transition)

    def expire_transactional_ids(self) -> None:
        """Start removing every id that has been unused for `transactional.id.expiration.ms`; call at intervals."""
        now_ms = self._clock.now_ms()
        for owned in self._partitions.values():
            for transactional_id in owned.expiries.take_due(now_ms):
                metadata = owned.ids.get(transactional_id)
                if metadata is None:
                    continue
                self._watch_expiry(owned, metadata)
                if decisions.has_expired(metadata, self._rules, now_ms):
                    self._start(self._expire(owned, transactional_id))

    def _watch_expiry(self, owned: OwnedPartition, metadata: TransactionMetadata) -> None:
        """Schedule a scan of the id for the time at which it may expire."""
        owned.expiries.schedule(metadata.transactional_id, decisions.expiry_deadline_ms(metadata, self._rules))

    async def _expire(self, owned: OwnedPartition, transactional_id: str) -> None:
        metadata = owned.ids.get(transactional_id)
        if metadata is None or not decisions.has_expired(metadata, self._rules, self._clock.now_ms()):
            return
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

    # --- transitions and markers ---

    async def _carry_out(self, owned: OwnedPartition, transition: Transition) -> ErrorCode:
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
            return decisions.client_error_of_append(error)
        owned.ids[after.transactional_id] = after
        if after.state is ONGOING:
            self._watch_timeout(owned, after)
        elif transition.on_failure is None:
            self._watch_expiry(owned, after)
        if self._pause_points.active:
            await self._reach(_AFTER_APPEND, after)
        if not owned.is_led:
            return ErrorCode.not_coordinator
        if after.state in PREPARE_STATES:
            self._start_markers(MarkerRun(owned, after))
        return NO_ERROR

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

    async def _write_markers(self, run: MarkerRun) -> None:
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
            node_id=self.node_id,
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
        writing = self._write_markers(run)
        if self._pause_points.active:
            self._start(writing)
            return
        try:
            rest = begin(writing)
        except Exception as error:
            self._failed(asyncio.get_running_loop(), error)
        else:
            if rest is not None:
                self._start(finish(rest))

    def _start(self, work: Coroutine[None, None, None]) -> None:
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
