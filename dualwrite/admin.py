"""Administration of transactions: list, describe, find hanging ones, abort, terminate (KIP-664, KIP-939).

`TransactionAdmin` is for threads, `AsyncTransactionAdmin` for asyncio; both have the same calls.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, cast

from dualwrite.client.admin.calls import AdminCalls, HangingSearch
from dualwrite.client.admin.driver import AdminDriver, AdminTransport
from dualwrite.client.admin.ending import TransactionEnds
from dualwrite.client.admin.listing import Filters, IdFilter, matcher, pattern_of_prefix
from dualwrite.client.admin.results import (
    ActiveProducer,
    BrokerDescription,
    BrokerFeatures,
    ClusterDescription,
    HangingTransaction,
    TerminatedTransaction,
    TopicDescription,
    TopicIds,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TwoPhaseCommit,
)
from dualwrite.client.io_thread import IoThread, shared_io_thread, this_process
from dualwrite.client.records.record import TopicPartition
from dualwrite.config import AdminConfig
from dualwrite.errors import DualWriteError, IllegalStateError
from dualwrite.exact import exact
from dualwrite.monkey_patches import FIRST_LOCK, assert_real_threads
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.settings import AdminSettings

__all__ = [
    "ActiveProducer",
    "AsyncTransactionAdmin",
    "BrokerDescription",
    "BrokerFeatures",
    "ClusterDescription",
    "HangingTransaction",
    "TerminatedTransaction",
    "TopicDescription",
    "TopicIds",
    "TopicPartition",
    "TransactionAdmin",
    "TransactionDescription",
    "TransactionListing",
    "TransactionState",
    "TwoPhaseCommit",
]

DEFAULT_MAX_TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The brokers' default of `transaction.max.timeout.ms`."""

PROBED_ID: Final = "dualwrite-probe"
"""The transactional id of a request that every broker refuses; it is never created."""

_CLOSE_TIMEOUT_S: Final = 5.0

_log = logging.getLogger(__name__)

T = TypeVar("T")


class AsyncTransactionAdmin:
    """Administration of transactions, for asyncio, in one event loop.

    Settings by Kafka's names: a mapping with dots, or keywords with underscores: `bootstrap.servers`, `client.id`,
    `request.timeout.ms`, `default.api.timeout.ms`, the back-offs and the security settings of a producer.

    Every call takes `timeout_ms` (default: `default.api.timeout.ms`), and until then repeats requests that fail for a
    passing reason: a coordinator that loads or moves, a leader that moves, a lost connection. A missing result is never
    left out silently: `IncompleteAnswerError` contains the available results, and says which are missing and why. A
    call for a single key raises the key's own error. Other errors: `KafkaTimeoutError`, `AuthenticationError`,
    `AuthorizationError`, `UnsupportedByBrokerError`, `AdminError`.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Unpack[AdminSettings]) -> None:
        self._transport: AdminTransport | None = None  # first, for __del__ if the next line raises
        self._config = AdminConfig.parse(config, settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    # ---- describing -----------------------------------------------------------------------------------------

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        running_longer_than_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        timeout_ms: int | None = None,
    ) -> tuple[TransactionListing, ...]:
        """List the transactional ids of all brokers, ordered by id (KIP-664). All filters have to match.

        `states` are names of `TransactionState`. `running_longer_than_ms` counts from the start of the newest
        transaction by the broker's clock; brokers treat Empty and complete ids as long-running, too, so pass `states`
        with it (KIP-994). `transactional_id_pattern` is an RE2/J regular expression that the whole id has to match
        (KIP-1152). If a broker cannot filter by the pattern, this client does, provided that the pattern certainly
        means the same to both.

        Raises `InvalidPatternError`, and `UnsupportedByBrokerError` for a pattern that only a newer broker can match,
        or for `running_longer_than_ms` with a broker without KIP-994.
        """
        pattern = None if transactional_id_pattern is None else exact(transactional_id_pattern)
        ids = IdFilter(pattern, matcher(pattern)) if pattern else None
        filters = Filters(_states(states), tuple(producer_ids), running_longer_than_ms, ids)
        return await self._calls(timeout_ms).list_transactions(filters)

    async def transactions_of_prefix(
        self, prefix: str, *, timeout_ms: int | None = None
    ) -> tuple[TransactionListing, ...]:
        """List the transactional ids that begin with `prefix`, with brokers of every version."""
        ids = IdFilter(pattern_of_prefix(exact(prefix)), lambda transactional_id: transactional_id.startswith(prefix))
        return await self._calls(timeout_ms).list_transactions(Filters(ids=ids))

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription | None]:
        """Describe transactional ids, as their coordinators know them; None for an id that they do not know."""
        ids = _several("transactional ids", transactional_ids)
        return await self._calls(timeout_ms).describe_transactions(ids)

    async def describe_transaction(
        self, transactional_id: str, *, timeout_ms: int | None = None
    ) -> TransactionDescription:
        """Describe one transactional id. Raises `TransactionalIdNotFoundError`."""
        return await self._calls(timeout_ms).describe_transaction(exact(transactional_id))

    async def describe_producers(
        self,
        topic_partitions: Iterable[TopicPartition],
        *,
        broker_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        """Describe the producers that partitions remember, at their leaders or at the replica of `broker_id`."""
        partitions = [_partition(partition) for partition in _several("partitions", topic_partitions)]
        return await self._calls(timeout_ms).describe_producers(partitions, broker_id)

    async def find_hanging(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        broker_id: int | None = None,
        max_transaction_timeout_ms: int = DEFAULT_MAX_TRANSACTION_TIMEOUT_MS,
        timeout_ms: int | None = None,
    ) -> tuple[HangingTransaction, ...]:
        """Find open transactions that no coordinator will ever end, by the rule of kafka-transactions.sh find-hanging.

        Searches one partition, one topic or the whole cluster; with `broker_id`, the replicas of this broker. A
        transaction hangs if its producer has written nothing to the partition for `max_transaction_timeout_ms` (which
        must not be less than the brokers' `transaction.max.timeout.ms`; compared with this machine's clock), and either
        no coordinator knows its producer id, or the transaction of that id does not include the partition. The
        partition is described once more before a transaction is reported, because it may have ended meanwhile.

        A prepared transaction does not hang, however old it is: its coordinator knows it (KIP-939).

        Needs DESCRIBE on all transactional ids: brokers silently leave out ids that the client may not see, so that a
        transaction of such an id would look like a hanging one.
        """
        if partition is not None and topic is None:
            raise ValueError("find_hanging() with a partition needs its topic")
        search = HangingSearch(
            None if topic is None else exact(topic), partition, broker_id, max_transaction_timeout_ms
        )
        return await self._calls(timeout_ms).find_hanging(search)

    # ---- ending ---------------------------------------------------------------------------------------------

    async def abort_transaction(
        self,
        topic_partition: TopicPartition,
        *,
        start_offset: int | None = None,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        coordinator_epoch: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Write an abort marker for a hanging transaction to one partition (KIP-664).

        Name the transaction by the offset at which it starts there (brokers since 3.0), or by producer id, producer
        epoch and coordinator epoch (older ones; -1 if the epoch is not known). **This bypasses the coordinator**:
        aborting a transaction that does not hang tears it apart, because its other partitions may be committed. For
        such a transaction use `force_terminate_transaction`.

        Raises `AdminError` if no transaction starts at that offset, or if the producer epoch (INVALID_PRODUCER_EPOCH)
        or the coordinator epoch (TRANSACTION_COORDINATOR_FENCED) is too old.
        """
        ends, partition = self._ends(timeout_ms), _partition(topic_partition)
        if start_offset is not None and producer_id is producer_epoch is coordinator_epoch is None:
            return await ends.abort_at(partition, start_offset)
        if start_offset is not None or producer_id is None or producer_epoch is None or coordinator_epoch is None:
            raise ValueError(
                "abort_transaction() takes start_offset, or producer_id, producer_epoch and coordinator_epoch together"
            )
        return await ends.abort_by_ids(partition, producer_id, producer_epoch, coordinator_epoch)

    async def commit_transaction(
        self, topic_partition: TopicPartition, prepared_state: PreparedTxnState, *, timeout_ms: int | None = None
    ) -> None:
        """Write a commit marker for a decided transaction that hangs on one partition (KAFKA-20734).

        `prepared_state` is the producer id and epoch that `TransactionHangsError` names. **This bypasses the
        coordinator**: the owner of a transaction that does not hang commits it, and a transaction that no database has
        decided must not be committed at all. May be repeated.

        Raises `AdminError` if that transaction is not open on the partition, or if another one of its producer is.
        """
        await self._ends(timeout_ms).commit_at(_partition(topic_partition), prepared_state)

    async def commit_prepared_transactions(
        self, prepared: Mapping[str, PreparedTxnState], *, timeout_ms: int | None = None
    ) -> set[str]:
        """Commit prepared transactions that are decided, each by its own pair; return the ids that are committed.

        `prepared` has the prepared states by transactional id. Sends one request per transaction, all of them at once,
        and repeats none. Each names the pair, so it cannot affect another transaction, even if it is carried out late;
        and it succeeds if the transaction was committed before. The state of ids that are not returned is unknown: they
        may be committed, open, aborted, or have another owner. A producer that takes the id over finds out
        (`complete_transaction`).
        """
        return await self._ends(timeout_ms).end_by_pair(_by_exact_id(prepared), commit=True)

    async def abort_open_transactions(
        self, pairs: Mapping[str, PreparedTxnState], *, timeout_ms: int | None = None
    ) -> set[str]:
        """Abort open transactions, each by its own pair; return the ids whose transactions are aborted.

        As with `commit_prepared_transactions`, a late request cannot affect a transaction with another pair.
        **If a database has committed, this loses the records.** Refused for ids that another producer has taken over,
        even if it kept the transaction (KIP-939); `force_terminate_transaction` aborts that.
        """
        return await self._ends(timeout_ms).end_by_pair(_by_exact_id(pairs), commit=False)

    async def force_terminate_transaction(
        self, transactional_id: str, *, timeout_ms: int | None = None
    ) -> TerminatedTransaction:
        """Abort the open transaction of a transactional id, prepared or not, and fence its owner (KIP-939).

        Sends InitProducerId without KeepPreparedTxn, with brokers of every version, but only if a transaction is open:
        an id without one stays as it is. **If the database has committed, aborting its prepared transaction loses the
        records**: the database has the data and Kafka does not. The id stays CompleteAbort, by which every recovery of
        a dual write detects that. A transaction whose end was decided before stays as decided. Returns when the abort
        is visible to read_committed consumers.

        After a `KafkaTimeoutError` it may or may not have taken effect, and the call may be repeated. Raises
        `TransactionalIdNotFoundError` for an id that no coordinator knows (InitProducerId would create it).
        """
        return await self._ends(timeout_ms).force_terminate(exact(transactional_id), self._config.request_timeout_ms)

    async def overwrite_end(self, seen: TransactionDescription) -> None:
        """Make the coordinator forget how the last transaction of an id ended. For recoveries that have dealt with it.

        Refused if the id has been used since it was described as `seen`.
        """
        await self._ends(None).overwrite_end(seen, self._config.request_timeout_ms)

    # ---- the cluster ----------------------------------------------------------------------------------------

    async def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """Describe the living brokers, as one of them sees them."""
        return await self._calls(timeout_ms).describe_cluster()

    async def describe_topic_ids(self, topics: Collection[str], *, timeout_ms: int | None = None) -> TopicIds:
        """Return the ids of topics by name, without topics that do not exist or may not be seen.

        Kafka before 2.8 has no topic ids.
        """
        return await self._calls(timeout_ms).describe_topic_ids(_several("topics", topics))

    async def describe_topics(
        self, topics: Collection[str], *, timeout_ms: int | None = None
    ) -> dict[str, TopicDescription]:
        """Describe whether this client may read topics, and how their logs are cleaned. Creates no topic.

        A dual write whose transaction a broker aborts can be published again only where its topics can be read and
        keep their records.
        """
        return await self._calls(timeout_ms).describe_topics(_several("topics", topics))

    async def creates_topics(self, *, timeout_ms: int | None = None) -> bool | None:
        """Return whether each broker lets producers create topics; None if this client may not query its settings."""
        return await self._calls(timeout_ms).creates_topics()

    async def describe_features(self, *, timeout_ms: int | None = None) -> dict[int, BrokerFeatures]:
        """Describe API versions and feature levels, by broker id (KIP-35, KIP-584)."""
        return await self._calls(timeout_ms).describe_features()

    async def describe_two_phase_commit(
        self, transactional_id: str = PROBED_ID, *, timeout_ms: int | None = None
    ) -> dict[int, TwoPhaseCommit]:
        """Describe how much of two-phase commit each broker supports, by broker id (KIP-939). Changes nothing.

        Sends an InitProducerId that brokers have to refuse, for an id on which this client should have the rights of a
        producer: WRITE and TWO_PHASE_COMMIT.
        """
        return await self._calls(timeout_ms).describe_two_phase_commit(exact(transactional_id))

    async def may_write_with(self, transactional_id: str, *, timeout_ms: int | None = None) -> bool:
        """Return whether this client is allowed WRITE on a transactional id. Changes nothing.

        Sends an InitProducerId that brokers have to refuse.
        """
        return await self._calls(timeout_ms).may_write_with(exact(transactional_id))

    # ---- the end --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Release the connections; idempotent."""
        self._closed = True
        if self._transport is not None:
            transport, self._transport = self._transport, None
            await transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Warn about a missing `close()`, and release the connections."""
        transport = None if is_finalizing() else self._transport  # a module's names may be None then
        if transport is None or self._loop is None or self._loop.is_closed():
            return
        warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
        loop = self._loop
        loop.call_soon_threadsafe(lambda: loop.create_task(transport.close()))

    # ---- inside ---------------------------------------------------------------------------------------------

    def _calls(self, timeout_ms: int | None) -> AdminCalls:
        return AdminCalls(*self._until(timeout_ms))

    def _ends(self, timeout_ms: int | None) -> TransactionEnds:
        return TransactionEnds(*self._until(timeout_ms))

    def _until(self, timeout_ms: int | None) -> tuple[AdminDriver, float]:
        """Return the driver of a call, whose connections belong to the loop of the first one, and its deadline."""
        if self._closed:
            raise IllegalStateError("this admin client is closed; create a new one")
        assert_real_threads()
        loop = asyncio.get_running_loop()
        if self._transport is None:
            self._loop, self._transport = loop, AdminTransport(self._config, loop)
        elif self._loop is not loop:
            raise IllegalStateError("this admin client belongs to another event loop; create a new one here")
        self._transport.retry_refused()
        limit_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return AdminDriver(self._config, self._transport), loop.time() + limit_ms / 1000


class TransactionAdmin:
    """Administration of transactions, for threads; several threads may share one.

    The calls and settings are those of `AsyncTransactionAdmin`. Unusable in a child after `os.fork()`: create a new one
    there.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Unpack[AdminSettings]) -> None:
        self._closed = True  # for __del__ if the next line raises
        self._admin = AsyncTransactionAdmin(config, **settings)
        self._generation = this_process.generation
        self._io: IoThread = shared_io_thread()
        self._closed = False

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        running_longer_than_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        timeout_ms: int | None = None,
    ) -> tuple[TransactionListing, ...]:
        """See `AsyncTransactionAdmin.list_transactions`."""
        return self._run(
            self._admin.list_transactions(
                states=states,
                producer_ids=producer_ids,
                running_longer_than_ms=running_longer_than_ms,
                transactional_id_pattern=transactional_id_pattern,
                timeout_ms=timeout_ms,
            )
        )

    def transactions_of_prefix(self, prefix: str, *, timeout_ms: int | None = None) -> tuple[TransactionListing, ...]:
        """See `AsyncTransactionAdmin.transactions_of_prefix`."""
        return self._run(self._admin.transactions_of_prefix(prefix, timeout_ms=timeout_ms))

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription | None]:
        """See `AsyncTransactionAdmin.describe_transactions`."""
        return self._run(self._admin.describe_transactions(transactional_ids, timeout_ms=timeout_ms))

    def describe_transaction(self, transactional_id: str, *, timeout_ms: int | None = None) -> TransactionDescription:
        """See `AsyncTransactionAdmin.describe_transaction`."""
        return self._run(self._admin.describe_transaction(transactional_id, timeout_ms=timeout_ms))

    def describe_producers(
        self,
        topic_partitions: Iterable[TopicPartition],
        *,
        broker_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        """See `AsyncTransactionAdmin.describe_producers`."""
        return self._run(self._admin.describe_producers(topic_partitions, broker_id=broker_id, timeout_ms=timeout_ms))

    def find_hanging(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        broker_id: int | None = None,
        max_transaction_timeout_ms: int = DEFAULT_MAX_TRANSACTION_TIMEOUT_MS,
        timeout_ms: int | None = None,
    ) -> tuple[HangingTransaction, ...]:
        """See `AsyncTransactionAdmin.find_hanging`."""
        return self._run(
            self._admin.find_hanging(
                topic,
                partition,
                broker_id=broker_id,
                max_transaction_timeout_ms=max_transaction_timeout_ms,
                timeout_ms=timeout_ms,
            )
        )

    def abort_transaction(
        self,
        topic_partition: TopicPartition,
        *,
        start_offset: int | None = None,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        coordinator_epoch: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """See `AsyncTransactionAdmin.abort_transaction`."""
        self._run(
            self._admin.abort_transaction(
                topic_partition,
                start_offset=start_offset,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timeout_ms=timeout_ms,
            )
        )

    def commit_transaction(
        self, topic_partition: TopicPartition, prepared_state: PreparedTxnState, *, timeout_ms: int | None = None
    ) -> None:
        """See `AsyncTransactionAdmin.commit_transaction`."""
        self._run(self._admin.commit_transaction(topic_partition, prepared_state, timeout_ms=timeout_ms))

    def commit_prepared_transactions(
        self, prepared: Mapping[str, PreparedTxnState], *, timeout_ms: int | None = None
    ) -> set[str]:
        """See `AsyncTransactionAdmin.commit_prepared_transactions`."""
        return self._run(self._admin.commit_prepared_transactions(prepared, timeout_ms=timeout_ms))

    def abort_open_transactions(
        self, pairs: Mapping[str, PreparedTxnState], *, timeout_ms: int | None = None
    ) -> set[str]:
        """See `AsyncTransactionAdmin.abort_open_transactions`."""
        return self._run(self._admin.abort_open_transactions(pairs, timeout_ms=timeout_ms))

    def force_terminate_transaction(
        self, transactional_id: str, *, timeout_ms: int | None = None
    ) -> TerminatedTransaction:
        """See `AsyncTransactionAdmin.force_terminate_transaction`."""
        return self._run(self._admin.force_terminate_transaction(transactional_id, timeout_ms=timeout_ms))

    def overwrite_end(self, seen: TransactionDescription) -> None:
        """See `AsyncTransactionAdmin.overwrite_end`."""
        self._run(self._admin.overwrite_end(seen))

    def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """See `AsyncTransactionAdmin.describe_cluster`."""
        return self._run(self._admin.describe_cluster(timeout_ms=timeout_ms))

    def describe_topic_ids(self, topics: Collection[str], *, timeout_ms: int | None = None) -> TopicIds:
        """See `AsyncTransactionAdmin.describe_topic_ids`."""
        return self._run(self._admin.describe_topic_ids(topics, timeout_ms=timeout_ms))

    def describe_topics(self, topics: Collection[str], *, timeout_ms: int | None = None) -> dict[str, TopicDescription]:
        """See `AsyncTransactionAdmin.describe_topics`."""
        return self._run(self._admin.describe_topics(topics, timeout_ms=timeout_ms))

    def creates_topics(self, *, timeout_ms: int | None = None) -> bool | None:
        """See `AsyncTransactionAdmin.creates_topics`."""
        return self._run(self._admin.creates_topics(timeout_ms=timeout_ms))

    def describe_features(self, *, timeout_ms: int | None = None) -> dict[int, BrokerFeatures]:
        """See `AsyncTransactionAdmin.describe_features`."""
        return self._run(self._admin.describe_features(timeout_ms=timeout_ms))

    def describe_two_phase_commit(
        self, transactional_id: str = PROBED_ID, *, timeout_ms: int | None = None
    ) -> dict[int, TwoPhaseCommit]:
        """See `AsyncTransactionAdmin.describe_two_phase_commit`."""
        return self._run(self._admin.describe_two_phase_commit(transactional_id, timeout_ms=timeout_ms))

    def may_write_with(self, transactional_id: str, *, timeout_ms: int | None = None) -> bool:
        """See `AsyncTransactionAdmin.may_write_with`."""
        return self._run(self._admin.may_write_with(transactional_id, timeout_ms=timeout_ms))

    def close(self) -> None:
        """Release the connections; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._generation == this_process.generation and not sys.is_finalizing():
            closing = self._io.start(self._admin.close())
            if threading.get_ident() == self._io.ident or threading.Lock is not FIRST_LOCK:
                return
            try:
                closing.result(_CLOSE_TIMEOUT_S)
            except FutureTimeoutError:
                _log.warning("the connections did not close within %g s", _CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Warn about a missing `close()`, and release the connections."""
        if is_finalizing():
            return  # a module's names may be None by now
        if not self._closed and self._generation == this_process.generation:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self._io.start(self._admin.close())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call in the I/O thread and block this one until it ends, which the call's own timeout bounds."""
        try:
            self._check_usable()
        except DualWriteError:
            call.close()
            raise
        pending: Future[T] = self._io.start(call)
        try:
            return pending.result()
        except BaseException:  # KeyboardInterrupt, for example
            pending.cancel()
            raise

    def _check_usable(self) -> None:
        if self._generation != this_process.generation:
            raise IllegalStateError("this admin client belongs to the process before the fork; create a new one here")
        assert_real_threads()
        if threading.get_ident() == self._io.ident:
            raise IllegalStateError("TransactionAdmin cannot block the I/O thread; use AsyncTransactionAdmin")
        if sys.is_finalizing():
            raise IllegalStateError("the interpreter is shutting down and has stopped the I/O thread")


def _states(states: Collection[str]) -> tuple[str, ...]:
    """Return the names of states; raise for a misspelt one, which would silently match nothing."""
    return tuple(TransactionState(state).value for state in _several("states", states))


def _partition(given: TopicPartition) -> TopicPartition:
    topic, partition = TopicPartition(*given)
    return TopicPartition(exact(topic), partition)


def _by_exact_id(pairs: Mapping[str, PreparedTxnState]) -> dict[str, PreparedTxnState]:
    return {exact(transactional_id): pair for transactional_id, pair in pairs.items()}


def _several(what: str, given: Iterable[T]) -> list[T]:
    if isinstance(given, str):
        raise TypeError(f"{what} must be a list, not the str {given!r}")
    return [cast("T", exact(each)) if isinstance(each, str) else each for each in given]
