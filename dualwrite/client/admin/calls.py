"""The implementation of the admin calls, shared by threads and asyncio. `deadline_s` is by the loop's clock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from dualwrite.client.admin import cluster_codec, codec, hanging_transactions
from dualwrite.client.admin.driver import (
    RETRIABLE,
    AdminDriver,
    CallFor,
    Located,
    NoResponseError,
    Results,
    failure,
    name_of,
)
from dualwrite.client.admin.listing import Filters, list_transactions
from dualwrite.client.admin.results import (
    ActiveProducer,
    BrokerFeatures,
    ClusterDescription,
    HangingTransaction,
    TerminatedTransaction,
    TopicDescription,
    TopicIds,
    TransactionDescription,
    TransactionListing,
    TwoPhaseCommit,
)
from dualwrite.client.admin.topics import describe_topics
from dualwrite.client.error_texts import error_name
from dualwrite.client.messages import ANY_NODE
from dualwrite.client.records.record import TopicPartition
from dualwrite.errors import (
    NETWORK_EXCEPTION,
    AdminError,
    Api,
    AuthorizationError,
    IncompleteAnswerError,
    KafkaError,
    KafkaTimeoutError,
    TransactionalIdNotFoundError,
    UnsupportedByBrokerError,
    error_class,
)
from dualwrite.prepared_state import PreparedTxnState

_NOT_LEADER: Final = 6
_PAIR_REFUSED: Final = (47, 90)
_MAY_BE_WRITTEN: Final = (3, 6, 7, 13, 20, 56)
"""Error codes after which a marker may be in the log: UNKNOWN_TOPIC_OR_PARTITION and NOT_LEADER_OR_FOLLOWER (also of a
leader that lost the partition after it had written), REQUEST_TIMED_OUT, NETWORK_EXCEPTION,
NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_STORAGE_ERROR."""
_ONGOING: Final = "Ongoing"
_OPEN_OR_ENDING: Final = (_ONGOING, "PrepareCommit", "PrepareAbort")
_DESCRIBED: Final = (0, 5)
"""The error codes with which a topic's id is valid: LEADER_NOT_AVAILABLE concerns only the topic's leaders."""
_TRANSACTIONAL_ID_NOT_FOUND: Final = 105

K = TypeVar("K")
V = TypeVar("V")

_Producers = tuple[ActiveProducer, ...]
_Marker = codec.Call[dict[TopicPartition, codec.Reply[bool]]]

_log = logging.getLogger(__name__)


class HangingSearch(NamedTuple):
    """Where to search for hanging transactions, and from which age on."""

    topic: str | None
    partition: int | None
    broker_id: int | None
    max_transaction_timeout_ms: int


class AdminCalls:
    """The admin calls on one driver."""

    def __init__(self, driver: AdminDriver) -> None:
        self._driver = driver

    # ---- describing -----------------------------------------------------------------------------------------

    async def list_transactions(self, filters: Filters, deadline_s: float) -> tuple[TransactionListing, ...]:
        """List the transactional ids of all brokers."""
        return await list_transactions(self._driver, filters, deadline_s)

    async def describe_transactions(
        self, transactional_ids: Collection[str], deadline_s: float
    ) -> dict[str, TransactionDescription | None]:
        """Describe ids by their coordinators; None for an id that they do not know."""
        results = await self._descriptions(transactional_ids, deadline_s)
        return _whole(results, "described")

    async def describe_transaction(self, transactional_id: str, deadline_s: float) -> TransactionDescription:
        """Describe one id. Raises `TransactionalIdNotFoundError` if it does not exist."""
        found = _single(await self._descriptions([transactional_id], deadline_s), transactional_id)
        if found is None:
            raise TransactionalIdNotFoundError(
                f"no coordinator knows the transactional id {transactional_id!r}: it was never used, or it expired",
                error_code=_TRANSACTIONAL_ID_NOT_FOUND,
            )
        return found

    async def _descriptions(
        self, transactional_ids: Collection[str], deadline_s: float
    ) -> Results[str, TransactionDescription | None]:
        results = await self._driver.fulfil(
            transactional_ids,
            lambda ids: self._driver.coordinators(ids, deadline_s),
            codec.describe_transactions,
            deadline_s=deadline_s,
        )
        done: dict[str, TransactionDescription | None] = dict(results.done)
        failed = dict(results.failed)
        for transactional_id, error in results.failed.items():
            if error.error_code == _TRANSACTIONAL_ID_NOT_FOUND:
                done[transactional_id] = None
                del failed[transactional_id]
        return Results({key: done[key] for key in transactional_ids if key in done}, failed)

    async def describe_producers(
        self, partitions: Collection[TopicPartition], broker_id: int | None, deadline_s: float
    ) -> dict[TopicPartition, _Producers]:
        """Describe the producers of partitions, by their leaders or by one broker."""
        return _whole(await self._producers(partitions, broker_id, deadline_s), "described")

    async def _producers(
        self, partitions: Collection[TopicPartition], broker_id: int | None, deadline_s: float
    ) -> Results[TopicPartition, _Producers]:
        async def look_up(some: Sequence[TopicPartition]) -> Located[TopicPartition]:
            if broker_id is None:
                return await self._driver.leaders(some, deadline_s)
            await self._driver.metadata([], deadline_s)  # to learn that broker's address
            return Located(dict.fromkeys(some, broker_id), {}, {})

        return await self._driver.fulfil(
            partitions,
            look_up,
            lambda _, some: codec.describe_producers(some),
            deadline_s=deadline_s,
            final_codes=() if broker_id is None else (_NOT_LEADER,),
        )

    async def describe_cluster(self, deadline_s: float) -> ClusterDescription:
        """Describe the cluster by any broker that responds."""
        return (await self._driver.metadata([], deadline_s)).cluster

    async def describe_topic_ids(self, topics: Collection[str], deadline_s: float) -> TopicIds:
        """Return the ids of topics by any broker that responds, without those that do not exist or may not be seen."""
        response = await self._driver.metadata(list(topics), deadline_s)
        found = {name: topic.topic_id for name, topic in response.topics.items() if topic.error_code in _DESCRIBED}
        return TopicIds(response.cluster.cluster_id, {name: each for name, each in found.items() if each is not None})

    async def describe_topics(self, topics: Collection[str], deadline_s: float) -> dict[str, TopicDescription]:
        """Describe this client's rights on topics, and how their logs are cleaned."""
        return await describe_topics(self._driver, topics, deadline_s)

    async def creates_topics(self, deadline_s: float) -> bool | None:
        """Return whether each living broker lets producers create topics; None if this client may not query it."""
        results = await self._of_each_broker(lambda broker_id, _: cluster_codec.creates_topics(broker_id), deadline_s)
        if any(isinstance(error, AuthorizationError) for error in results.failed.values()):
            return None
        return all(_whole(results, "queried").values())

    async def describe_features(self, deadline_s: float) -> dict[int, BrokerFeatures]:
        """Describe the API versions and features of each living broker."""
        return _whole(
            await self._of_each_broker(lambda broker_id, _: cluster_codec.api_versions(broker_id), deadline_s),
            "queried",
        )

    async def describe_two_phase_commit(self, transactional_id: str, deadline_s: float) -> dict[int, TwoPhaseCommit]:
        """Describe the two-phase commit of each living broker, by its response to a request that it must refuse."""
        results = await self._of_each_broker(
            lambda broker_id, _: codec.two_phase_commit(transactional_id, broker_id), deadline_s
        )
        for broker_id, error in list(results.failed.items()):
            if isinstance(error, UnsupportedByBrokerError):
                results.done[broker_id] = TwoPhaseCommit.NOT_OFFERED
                del results.failed[broker_id]
        return _whole(results, "queried")

    async def may_write_with(self, transactional_id: str, deadline_s: float) -> bool:
        """Return whether this client is allowed WRITE on an id, by the refusal of a request."""

        async def any_broker(ids: Sequence[str]) -> Located[str]:
            return Located(dict.fromkeys(ids, ANY_NODE), {}, {})

        results = await self._driver.fulfil(
            [transactional_id], any_broker, lambda _, ids: codec.right_to_write(ids[0]), deadline_s=deadline_s
        )
        return _whole(results, "queried")[transactional_id]

    async def _of_each_broker(self, call_for: CallFor[int, V], deadline_s: float) -> Results[int, V]:
        cluster = await self.describe_cluster(deadline_s)

        async def look_up(broker_ids: Sequence[int]) -> Located[int]:
            return Located({broker_id: broker_id for broker_id in broker_ids}, {}, {})

        broker_ids = [broker.broker_id for broker in cluster.brokers]
        return await self._driver.fulfil(broker_ids, look_up, call_for, deadline_s=deadline_s)

    # ---- hanging transactions -------------------------------------------------------------------------------

    async def find_hanging(self, search: HangingSearch, deadline_s: float) -> tuple[HangingTransaction, ...]:
        """Find hanging transactions, by the rules of `hanging_transactions`."""
        partitions, failures = await self._partitions_of(search, deadline_s)
        producers = await self._producers(partitions, search.broker_id, deadline_s)
        failures |= producers.failed
        now_ms = int(time.time() * 1000)
        candidates = hanging_transactions.candidates(
            producers.done, now_ms=now_ms, max_transaction_timeout_ms=search.max_transaction_timeout_ms
        )
        ids, classified = await self._classify(candidates, failures, deadline_s)
        again = await self._producers(
            list(dict.fromkeys(transaction.topic_partition for transaction in classified.hanging)),
            search.broker_id,
            deadline_s,
        )
        failures |= again.failed
        for transaction in classified.undecided:
            partition = transaction.topic_partition
            failures.setdefault(
                partition,
                AdminError(f"open transactions on {name_of(partition)} could not be classified"),
            )
        found = tuple(
            hanging_transactions.described(transaction, ids)
            for transaction in hanging_transactions.still_open(classified.hanging, again.done)
        )
        if failures:
            raise _incomplete(found, failures, "searched for hanging transactions")
        return found

    async def _classify(
        self, candidates: list[hanging_transactions.OpenTransaction], failures: dict[Any, KafkaError], deadline_s: float
    ) -> tuple[dict[int, str], hanging_transactions.Classified]:
        if not candidates:
            return {}, hanging_transactions.Classified([], [])
        filters = Filters(producer_ids=tuple({transaction.producer.producer_id for transaction in candidates}))
        all_responded = True
        try:
            listed = await self.list_transactions(filters, deadline_s)
        except IncompleteAnswerError as error:
            all_responded = False
            listed = error.partial
            failures |= error.failures
        ids = {row.producer_id: row.transactional_id for row in listed}
        described = await self._descriptions(list(ids.values()), deadline_s)
        failures |= described.failed
        return ids, hanging_transactions.classify(
            candidates, ids, described.done, all_coordinators_responded=all_responded
        )

    async def _partitions_of(
        self, search: HangingSearch, deadline_s: float
    ) -> tuple[list[TopicPartition], dict[Any, KafkaError]]:
        if search.topic is not None and search.partition is not None:
            return [TopicPartition(search.topic, search.partition)], {}
        metadata = await self._driver.metadata(None if search.topic is None else [search.topic], deadline_s)
        failures: dict[Any, KafkaError] = {
            name: failure(Api.METADATA, topic.error_code, name)
            for name, topic in metadata.topics.items()
            if topic.error_code
        }
        if search.topic in failures:
            raise failures[search.topic]
        partitions = [
            TopicPartition(name, index)
            for name, topic in metadata.topics.items()
            for index, replicas in sorted(topic.replicas.items())
            if search.broker_id is None or search.broker_id in replicas
        ]
        if not partitions and search.broker_id is not None:
            await self._check_broker(search.broker_id, deadline_s)
        return partitions, failures

    async def _check_broker(self, broker_id: int, deadline_s: float) -> None:
        """Raise if the broker does not exist: finding nothing there would look as if nothing hung."""
        living = [broker.broker_id for broker in (await self.describe_cluster(deadline_s)).brokers]
        if broker_id not in living:
            raise AdminError(
                f"broker {broker_id} has no replica of the partitions to search, and is not one of the living brokers "
                f"({', '.join(map(str, living))}); nothing was searched"
            )

    # ---- ending ---------------------------------------------------------------------------------------------

    async def abort_by_ids(
        self,
        partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        deadline_s: float,
    ) -> None:
        """Send an abort marker; without a response, see `_abort`."""
        try:
            described = _single(await self._producers([partition], None, deadline_s), partition)
        except (UnsupportedByBrokerError, AuthorizationError):
            start_offset = None
        else:
            starts = (row.current_transaction_start_offset for row in described if row.producer_id == producer_id)
            start_offset = next(starts, None)
        marker = _marker(partition, producer_id, producer_epoch, coordinator_epoch)
        await self._abort(partition, marker, start_offset, deadline_s)

    async def commit_at(self, partition: TopicPartition, prepared: PreparedTxnState, deadline_s: float) -> None:
        """Send a commit marker for a prepared transaction that is open on the partition, until there is a response.

        A pair belongs to one prepared transaction only, so the marker may be sent again: a partition refuses it if the
        producer has begun another one there, and it changes nothing if none is open.
        """
        producers = _single(await self._producers([partition], None, deadline_s), partition)
        producer_id, producer_epoch = prepared.producer_id, prepared.producer_epoch
        row = next((each for each in producers if each.producer_id == producer_id), None)
        if row is None or row.current_transaction_start_offset is None or row.producer_epoch != producer_epoch:
            raise _not_open(partition, prepared, row)
        epoch = -1 if row.coordinator_epoch is None else row.coordinator_epoch
        await self._write(partition, _marker(partition, producer_id, producer_epoch, epoch, commits=True), deadline_s)

    async def _write(self, partition: TopicPartition, marker: _Marker, deadline_s: float) -> None:
        results = await self._driver.fulfil(
            [partition],
            lambda some: self._driver.leaders(some, deadline_s),
            lambda _, some: marker,
            deadline_s=deadline_s,
        )
        _ended(results, partition)

    async def abort_at(self, partition: TopicPartition, start_offset: int, deadline_s: float) -> None:
        """Send an abort marker for the producer with a transaction open on the partition since that offset."""
        producers = _single(await self._producers([partition], None, deadline_s), partition)
        producer = _producer_with_open_transaction(producers, partition, start_offset)
        epoch = -1 if producer.coordinator_epoch is None else producer.coordinator_epoch
        marker = _marker(partition, producer.producer_id, producer.producer_epoch, epoch)
        await self._abort(partition, marker, start_offset, deadline_s)

    async def _abort(
        self, partition: TopicPartition, marker: _Marker, start_offset: int | None, deadline_s: float
    ) -> None:
        """Send an abort marker for the transaction that is open since that offset; None: none is, as far as is known.

        Before it is sent again, check whether that transaction is still open: with transaction.version 0 and 1 a new
        transaction has the same epoch, so a second marker would abort one that the producer may have begun meanwhile.
        """
        backoff = self._driver.new_backoff()
        was_sent = False
        while True:
            problem, sent_now = await self._try_to_abort(partition, marker, deadline_s)
            if problem is None:
                return
            was_sent |= sent_now
            if (was_sent and start_offset is None) or not await self._driver.pause(backoff, deadline_s):
                raise KafkaTimeoutError(
                    f"no response for {name_of(partition)} in time: {problem}; the transaction may or may not be "
                    "aborted: if its producer has begun no other, repeat the same call"
                )
            if start_offset is not None:
                producers = _single(await self._producers([partition], None, deadline_s), partition)
                if was_sent and all(row.current_transaction_start_offset != start_offset for row in producers):
                    return
                _producer_with_open_transaction(producers, partition, start_offset)

    async def _try_to_abort(
        self, partition: TopicPartition, marker: _Marker, deadline_s: float
    ) -> tuple[str | None, bool]:
        """Send an abort marker; return why the outcome is unknown (None: aborted), and whether it may be there."""
        located = await self._driver.leaders([partition], deadline_s)
        if partition in located.failed:
            raise located.failed[partition]
        if partition in located.not_yet:
            return str(located.not_yet[partition]), False
        try:
            replies = await self._driver.request_once(located.nodes[partition], marker, deadline_s)
        except NoResponseError as error:
            return str(error), error.sent
        error_code = replies.get(partition, codec.Reply(NETWORK_EXCEPTION)).error_code
        if error_code and error_class(Api.WRITE_TXN_MARKERS, error_code) not in RETRIABLE:
            raise failure(Api.WRITE_TXN_MARKERS, error_code, partition)
        problem = f"WriteTxnMarkers returned {error_name(error_code)}" if error_code else None
        return problem, error_code in _MAY_BE_WRITTEN

    async def end_by_pair(self, pairs: Mapping[str, PreparedTxnState], deadline_s: float, *, commit: bool) -> set[str]:
        """Send EndTxn for each id with its own pair, all at once; return the ids that were ended so."""
        located = await self._driver.coordinators(list(pairs), deadline_s)
        ended: set[str] = set()

        async def end(transactional_id: str, node_id: int) -> None:
            try:
                version = await self._driver.transaction_version(node_id, deadline_s)
                call = codec.end_by_pair(transactional_id, pairs[transactional_id], version, commit=commit)
                if await self._driver.request_once(node_id, call, deadline_s) == 0:
                    ended.add(transactional_id)
            except (NoResponseError, KafkaError) as error:
                _log.debug("the end of %s of %s: %s", pairs[transactional_id], transactional_id, error)

        await asyncio.gather(*(end(*each) for each in located.nodes.items()))
        return ended

    async def force_terminate(
        self, transactional_id: str, timeout_ms_for_2pc: int, deadline_s: float
    ) -> TerminatedTransaction:
        """Send InitProducerId while the id has an open transaction, and stop when it has ended.

        One request too many would leave the id Empty, which hides that a prepared transaction was aborted. So after a
        request without a response, the id is described again before the request is repeated.
        """
        found = now = await self.describe_transaction(transactional_id, deadline_s)
        backoff = self._driver.new_backoff()
        code: int | None = 0
        last_code = 0
        while now.state in _OPEN_OR_ENDING:
            if now.state == _ONGOING:
                timeout_ms = now.transaction_timeout_ms if now.has_timeout else timeout_ms_for_2pc
                # With KIP-939 the producer may hold a newer producer id and epoch, which is not described and is the
                # only one accepted.
                pair = None if code in _PAIR_REFUSED else (now.producer_id, now.producer_epoch)
                code = await self._abort_open_transaction(transactional_id, timeout_ms, pair, deadline_s)
                last_code = last_code if code is None else code
            if not await self._driver.pause(backoff, deadline_s):
                raise _not_terminated_in_time(now, last_code)
            try:
                now = await self.describe_transaction(transactional_id, deadline_s)
            except KafkaTimeoutError:
                raise _not_terminated_in_time(now, last_code) from None
        return TerminatedTransaction(found, now.producer_id, now.producer_epoch)

    async def _abort_open_transaction(
        self, transactional_id: str, timeout_ms: int, pair: tuple[int, int] | None, deadline_s: float
    ) -> int | None:
        """Send InitProducerId once; return its error code if it can be repeated, None if there was no response.

        The caller learns the effect from the next description of the id.
        """
        located = await self._driver.coordinators([transactional_id], deadline_s)
        if transactional_id in located.failed:
            raise located.failed[transactional_id]
        if transactional_id in located.not_yet:
            return None
        call = codec.init_producer_id(transactional_id, timeout_ms, pair)
        try:
            replies = await self._driver.request_once(located.nodes[transactional_id], call, deadline_s)
        except NoResponseError:
            return None
        code = replies[transactional_id].error_code
        may_repeat = error_class(Api.INIT_PRODUCER_ID, code) in RETRIABLE or (
            code in _PAIR_REFUSED and pair is not None
        )
        if code and not may_repeat:
            raise failure(Api.INIT_PRODUCER_ID, code, transactional_id)
        return code

    async def overwrite_end(self, seen: TransactionDescription, timeout_ms_for_2pc: int, deadline_s: float) -> None:
        """Send InitProducerId with the producer id and epoch of `seen`, which has no open transaction.

        It makes the coordinator forget how the last transaction ended. The broker refuses it if the id has been used
        since.
        """
        timeout_ms = seen.transaction_timeout_ms if seen.has_timeout else timeout_ms_for_2pc
        pair = seen.producer_id, seen.producer_epoch
        results = await self._driver.fulfil(
            [seen.transactional_id],
            lambda ids: self._driver.coordinators(ids, deadline_s),
            lambda _, ids: codec.init_producer_id(seen.transactional_id, timeout_ms, pair),
            deadline_s=deadline_s,
        )
        _ended(results, seen.transactional_id)


def _not_terminated_in_time(seen: TransactionDescription, code: int) -> KafkaTimeoutError:
    response = f" (InitProducerId returned {error_name(code)})" if code else ""
    return KafkaTimeoutError(
        f"transactional id {seen.transactional_id!r} was still {seen.state}{response} when the time was up; its open "
        "transaction may or may not be aborted: repeat the same call"
    )


def _marker(
    partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, commits: bool = False
) -> _Marker:
    """Return the request for an abort marker, or a commit marker.

    A partition shows -1 as the coordinator epoch of a producer without any marker. 0 is sent instead, which is not
    above any coordinator's epoch.
    """
    return codec.write_marker(
        partition,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=max(coordinator_epoch, 0),
        commits=commits,
    )


def _producer_with_open_transaction(
    producers: _Producers, partition: TopicPartition, start_offset: int
) -> ActiveProducer:
    by_start = {row.current_transaction_start_offset: row for row in producers}
    if start_offset in by_start:
        return by_start[start_offset]
    starts = sorted(offset for offset in by_start if offset is not None)
    opened = f"the open ones start at {', '.join(map(str, starts))}" if starts else "none is open"
    raise AdminError(
        f"no transaction is open on {name_of(partition)} since offset {start_offset}; {opened}; nothing was aborted"
    )


def _not_open(partition: TopicPartition, prepared: PreparedTxnState, row: ActiveProducer | None) -> AdminError:
    if row is None:
        seen = "the partition does not know its producer"
    elif row.current_transaction_start_offset is None:
        seen = "its producer has nothing open there"
    else:
        seen = (
            f"its producer has epoch {row.producer_epoch} there, and a marker would end another transaction too: let "
            "the owner of its transactional id end that one"
        )
    return AdminError(f"{prepared} is not open on {name_of(partition)} ({seen}); nothing was committed")


def _single(results: Results[Any, V], key: Any) -> V:
    """Return the result of the only key, or raise its error."""
    if key in results.failed:
        raise results.failed[key]
    return results.done[key]


def _ended(results: Results[Any, V], key: Any) -> V:
    """Return the result of a call that changes state, as `_single`; a timeout says that it may have taken effect."""
    try:
        return _single(results, key)
    except KafkaTimeoutError as error:
        raise KafkaTimeoutError(f"{error}; it may or may not have taken effect: repeat the same call") from None


def _whole(results: Results[K, V], done: str) -> dict[K, V]:
    """Return all results. Raise `IncompleteAnswerError` if some are missing, or the error of a single key itself."""
    if not results.done and len(results.failed) == 1:
        raise next(iter(results.failed.values()))
    if results.failed:
        raise _incomplete(results.done, results.failed, done)
    return results.done


def _incomplete(partial: object, failures: Mapping[Any, KafkaError], done: str) -> IncompleteAnswerError:
    reasons = "; ".join(dict.fromkeys(str(error) for error in failures.values()))
    return IncompleteAnswerError(f"not everything could be {done}: {reasons}", partial=partial, failures=failures)
