"""The transaction coordinator of one node: the ids that it owns, their requests, inspection and scans.

`coordinator.py` and `init_producer_id.py` decide, `execution.py` carries out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.clock import Clock
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.pause_points import PausePoints
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions import coordinator as decisions
from dualwrite.broker_emulator.transactions import init_producer_id, inspection, transitions
from dualwrite.broker_emulator.transactions.coordinator import (
    EndTxnResult,
)
from dualwrite.broker_emulator.transactions.execution import Execution
from dualwrite.broker_emulator.transactions.init_producer_id import InitProducerIdRequest, InitProducerIdResult
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
from dualwrite.broker_emulator.transactions.ports import MarkerSender, ProducerIdSource, StateLog
from dualwrite.broker_emulator.transactions.states import (
    PREPARE_STATES,
)
from dualwrite.broker_emulator.transactions.transaction_log import (
    decode_key,
    decode_value,
    partition_for,
)


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
        self._execution = Execution(node_id=node_id, clock=clock, log=log, markers=markers, pause_points=pause_points)
        self.configure(config)
        self._partition_count = config.transaction_state_log_num_partitions
        self._clock = clock
        self._log = log
        self._producer_ids = producer_ids
        self._partitions: dict[int, OwnedPartition] = {}
        self._loading: set[int] = set()
        self.background_tasks = self._execution.background_tasks
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
            self._execution.watch_timeout(owned, metadata)
            self._execution.watch_expiry(owned, metadata)
            if metadata.state in PREPARE_STATES:
                self._execution.start(self._execution.write_markers(MarkerRun(owned, metadata)))

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
        self._execution.configure(config)

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
        error = init_producer_id.check_init_request(transactional_id, request, self._rules)
        if error is not NO_ERROR:
            return InitProducerIdResult(error)
        if transactional_id is None:
            return InitProducerIdResult(NO_ERROR, self._producer_ids.next_producer_id(), self._producer_ids.first_epoch)
        owned = self._owner_of(transactional_id)
        if owned is None:
            return InitProducerIdResult(self._not_owned_error(transactional_id))
        metadata = owned.ids.get(transactional_id)
        decision = init_producer_id.decide_init_producer_id(
            transactional_id,
            metadata,
            request,
            self._rules,
            new_producer_id=self._spare_producer_id(metadata),
            now_ms=self._clock.now_ms(),
        )
        if decision.transition is not None:
            error = await self._execution.carry_out(owned, decision.transition)
        return decision.response if error is NO_ERROR else InitProducerIdResult(error)

    async def set_next_epoch(self, transactional_id: str, producer_epoch: int) -> ErrorCode:
        """Make the next InitProducerId of the id return this epoch; 51 while a transaction is open. For tests."""
        owned = self._owner_of(transactional_id)
        if owned is None:
            return self._not_owned_error(transactional_id)
        metadata = owned.ids.get(transactional_id)
        spare, now_ms = self._spare_producer_id(metadata), self._clock.now_ms()
        transition = init_producer_id.decide_next_epoch(
            transactional_id, metadata, producer_epoch, new_producer_id=spare, now_ms=now_ms
        )
        if transition is None:
            return ErrorCode.concurrent_transactions
        return await self._execution.carry_out(owned, transition)

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
        return await self._execution.carry_out(owned, decision.transition)

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
        error = await self._execution.carry_out(owned, decision.transition)
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
                self._execution.watch_timeout(owned, metadata)
                if decisions.has_timed_out(metadata, now_ms):
                    self._execution.start(self._abort_timed_out(owned, transactional_id))

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
            await self._execution.carry_out(owned, transition)

    def expire_transactional_ids(self) -> None:
        """Start removing every id that has been unused for `transactional.id.expiration.ms`; call at intervals."""
        now_ms = self._clock.now_ms()
        for owned in self._partitions.values():
            for transactional_id in owned.expiries.take_due(now_ms):
                metadata = owned.ids.get(transactional_id)
                if metadata is None:
                    continue
                self._execution.watch_expiry(owned, metadata)
                if decisions.has_expired(metadata, self._rules, now_ms):
                    self._execution.start(self._expire(owned, transactional_id))

    async def _expire(self, owned: OwnedPartition, transactional_id: str) -> None:
        metadata = owned.ids.get(transactional_id)
        if metadata is None or not decisions.has_expired(metadata, self._rules, self._clock.now_ms()):
            return
        await self._execution.remove(owned, metadata)
