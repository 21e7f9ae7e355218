"""The implementation of the admin calls, shared by threads and asyncio."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from dualwrite.client.admin import cluster_codec, codec, hanging_transactions
from dualwrite.client.admin.driver import AdminDriver, CallFor, Located, Results, failure, name_of
from dualwrite.client.admin.listing import Filters, list_transactions
from dualwrite.client.admin.results import (
    ActiveProducer,
    BrokerFeatures,
    ClusterDescription,
    HangingTransaction,
    TopicDescription,
    TopicIds,
    TransactionDescription,
    TransactionListing,
    TwoPhaseCommit,
)
from dualwrite.client.messages import ANY_NODE
from dualwrite.client.records.record import TopicPartition
from dualwrite.errors import (
    AdminError,
    Api,
    AuthenticationError,
    AuthorizationError,
    IncompleteAnswerError,
    KafkaError,
    KafkaTimeoutError,
    TransactionalIdNotFoundError,
    UnsupportedByBrokerError,
)

_NOT_LEADER: Final = 6
_DESCRIBED: Final = (0, 5)
"""The error codes with which a topic's id is valid: LEADER_NOT_AVAILABLE concerns only the topic's leaders."""
_TRANSACTIONAL_ID_NOT_FOUND: Final = 105

K = TypeVar("K")
V = TypeVar("V")

Producers = tuple[ActiveProducer, ...]


class HangingSearch(NamedTuple):
    """Where to search for hanging transactions, and from which age on."""

    topic: str | None
    partition: int | None
    broker_id: int | None
    max_transaction_timeout_ms: int


class AdminCalls:
    """Admin calls on a driver until a deadline, which is by the loop's clock."""

    def __init__(self, driver: AdminDriver, deadline_s: float) -> None:
        self._driver = driver
        self._deadline_s = deadline_s

    async def list_transactions(self, filters: Filters) -> tuple[TransactionListing, ...]:
        """List the transactional ids of all brokers."""
        return await list_transactions(self._driver, filters, self._deadline_s)

    async def describe_transactions(
        self, transactional_ids: Collection[str]
    ) -> dict[str, TransactionDescription | None]:
        """Describe ids by their coordinators; None for an id that they do not know."""
        results = await self._descriptions(transactional_ids)
        return _whole(results, "described")

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Describe one id. Raises `TransactionalIdNotFoundError` if it does not exist."""
        found = single(await self._descriptions([transactional_id]), transactional_id)
        if found is None:
            raise TransactionalIdNotFoundError(
                f"no coordinator knows the transactional id {transactional_id!r}: it was never used, or it expired",
                error_code=_TRANSACTIONAL_ID_NOT_FOUND,
            )
        return found

    async def _descriptions(self, transactional_ids: Collection[str]) -> Results[str, TransactionDescription | None]:
        results = await self._driver.fulfil(
            transactional_ids,
            lambda ids: self._driver.coordinators(ids, self._deadline_s),
            codec.describe_transactions,
            deadline_s=self._deadline_s,
        )
        done: dict[str, TransactionDescription | None] = dict(results.done)
        failed = dict(results.failed)
        for transactional_id, error in results.failed.items():
            if error.error_code == _TRANSACTIONAL_ID_NOT_FOUND:
                done[transactional_id] = None
                del failed[transactional_id]
        return Results({key: done[key] for key in transactional_ids if key in done}, failed)

    async def describe_producers(
        self, partitions: Collection[TopicPartition], broker_id: int | None
    ) -> dict[TopicPartition, Producers]:
        """Describe the producers of partitions, by their leaders or by one broker."""
        return _whole(await self.producers(partitions, broker_id), "described")

    async def producers(
        self, partitions: Collection[TopicPartition], broker_id: int | None
    ) -> Results[TopicPartition, Producers]:
        """Return the producers of each partition, or its error."""

        async def look_up(some: Sequence[TopicPartition]) -> Located[TopicPartition]:
            if broker_id is None:
                return await self._driver.leaders(some, self._deadline_s)
            await self._driver.metadata([], self._deadline_s)  # to learn that broker's address
            return Located(dict.fromkeys(some, broker_id), {}, {})

        return await self._driver.fulfil(
            partitions,
            look_up,
            lambda _, some: codec.describe_producers(some),
            deadline_s=self._deadline_s,
            final_codes=() if broker_id is None else (_NOT_LEADER,),
        )

    async def describe_cluster(self) -> ClusterDescription:
        """Describe the cluster by any broker that responds."""
        return (await self._driver.metadata([], self._deadline_s)).cluster

    async def describe_topic_ids(self, topics: Collection[str]) -> TopicIds:
        """Return the ids of topics by any broker that responds, without those that do not exist or may not be seen."""
        response = await self._driver.metadata(list(topics), self._deadline_s)
        found = {name: topic.topic_id for name, topic in response.topics.items() if topic.error_code in _DESCRIBED}
        return TopicIds(response.cluster.cluster_id, {name: each for name, each in found.items() if each is not None})

    async def describe_topics(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """Describe this client's rights on topics, and how their logs are cleaned. Creates no topic.

        A missing right to describe the topic's settings is no error: the policy is unknown then.
        """
        names = list(dict.fromkeys(topics))
        seen = (await self._driver.metadata(names, self._deadline_s, with_rights=True)).topics
        readable = {name: seen[name].is_readable for name in names if name in seen and not seen[name].error_code}
        settings = await self._of_any_broker(readable, lambda _, some: cluster_codec.describe_topic_settings(some))
        for error in settings.failed.values():
            if isinstance(error, KafkaTimeoutError | AuthenticationError):
                raise error
        unseen = {name: seen[name].error_code for name in names if name in seen and name not in readable}
        return {
            name: TopicDescription(
                readable.get(name),
                settings.done[name].cleanup_policy if name in settings.done else None,
                failure(Api.METADATA, unseen[name], name) if name in unseen else settings.failed.get(name),
                settings.done[name].most_age_ms if name in settings.done else None,
                is_writable=seen[name].is_writable if name in readable else None,
            )
            for name in names
        }

    async def creates_topics(self) -> bool | None:
        """Return whether each living broker lets producers create topics; None if this client may not query it."""
        results = await self._of_each_broker(lambda broker_id, _: cluster_codec.creates_topics(broker_id))
        if any(isinstance(error, AuthorizationError) for error in results.failed.values()):
            return None
        return all(_whole(results, "queried").values())

    async def describe_features(self) -> dict[int, BrokerFeatures]:
        """Describe the API versions and features of each living broker."""
        results = await self._of_each_broker(lambda broker_id, _: cluster_codec.api_versions(broker_id))
        return _whole(results, "queried")

    async def describe_two_phase_commit(self, transactional_id: str) -> dict[int, TwoPhaseCommit]:
        """Describe the two-phase commit of each living broker, by its response to a request that it must refuse."""
        results = await self._of_each_broker(lambda broker_id, _: codec.two_phase_commit(transactional_id, broker_id))
        for broker_id, error in list(results.failed.items()):
            if isinstance(error, UnsupportedByBrokerError):
                results.done[broker_id] = TwoPhaseCommit.NOT_OFFERED
                del results.failed[broker_id]
        return _whole(results, "queried")

    async def may_write_with(self, transactional_id: str) -> bool:
        """Return whether this client is allowed WRITE on an id, by the refusal of a request."""
        results = await self._of_any_broker([transactional_id], lambda _, ids: codec.right_to_write(ids[0]))
        return _whole(results, "queried")[transactional_id]

    async def _of_any_broker(self, keys: Collection[str], call_for: CallFor[str, V]) -> Results[str, V]:
        async def look_up(some: Sequence[str]) -> Located[str]:
            return Located(dict.fromkeys(some, ANY_NODE), {}, {})

        return await self._driver.fulfil(keys, look_up, call_for, deadline_s=self._deadline_s)

    async def _of_each_broker(self, call_for: CallFor[int, V]) -> Results[int, V]:
        cluster = await self.describe_cluster()

        async def look_up(broker_ids: Sequence[int]) -> Located[int]:
            return Located({broker_id: broker_id for broker_id in broker_ids}, {}, {})

        broker_ids = [broker.broker_id for broker in cluster.brokers]
        return await self._driver.fulfil(broker_ids, look_up, call_for, deadline_s=self._deadline_s)

    # ---- hanging transactions -------------------------------------------------------------------------------

    async def find_hanging(self, search: HangingSearch) -> tuple[HangingTransaction, ...]:
        """Find hanging transactions, by the rules of `hanging_transactions`."""
        partitions, failures = await self._partitions_of(search)
        producers = await self.producers(partitions, search.broker_id)
        failures |= producers.failed
        now_ms = int(time.time() * 1000)
        candidates = hanging_transactions.candidates(
            producers.done, now_ms=now_ms, max_transaction_timeout_ms=search.max_transaction_timeout_ms
        )
        ids, classified = await self._classify(candidates, failures)
        suspected = list(dict.fromkeys(transaction.topic_partition for transaction in classified.hanging))
        again = await self.producers(suspected, search.broker_id)
        failures |= again.failed
        for transaction in classified.undecided:
            partition = transaction.topic_partition
            failures.setdefault(
                partition, AdminError(f"open transactions on {name_of(partition)} could not be classified")
            )
        found = tuple(
            hanging_transactions.described(transaction, ids)
            for transaction in hanging_transactions.still_open(classified.hanging, again.done)
        )
        if failures:
            raise _incomplete(found, failures, "searched for hanging transactions")
        return found

    async def _classify(
        self, candidates: list[hanging_transactions.OpenTransaction], failures: dict[Any, KafkaError]
    ) -> tuple[dict[int, str], hanging_transactions.Classified]:
        if not candidates:
            return {}, hanging_transactions.Classified([], [])
        filters = Filters(producer_ids=tuple({transaction.producer.producer_id for transaction in candidates}))
        all_responded = True
        try:
            listed = await self.list_transactions(filters)
        except IncompleteAnswerError as error:
            all_responded = False
            listed = error.partial
            failures |= error.failures
        ids = {row.producer_id: row.transactional_id for row in listed}
        described = await self._descriptions(list(ids.values()))
        failures |= described.failed
        return ids, hanging_transactions.classify(
            candidates, ids, described.done, all_coordinators_responded=all_responded
        )

    async def _partitions_of(self, search: HangingSearch) -> tuple[list[TopicPartition], dict[Any, KafkaError]]:
        if search.topic is not None and search.partition is not None:
            return [TopicPartition(search.topic, search.partition)], {}
        metadata = await self._driver.metadata(None if search.topic is None else [search.topic], self._deadline_s)
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
            await self._check_broker(search.broker_id)
        return partitions, failures

    async def _check_broker(self, broker_id: int) -> None:
        """Raise if the broker does not exist: finding nothing there would look as if nothing hung."""
        living = [broker.broker_id for broker in (await self.describe_cluster()).brokers]
        if broker_id not in living:
            raise AdminError(
                f"broker {broker_id} has no replica of the partitions to search, and is not one of the living brokers "
                f"({', '.join(map(str, living))}); nothing was searched"
            )


def single(results: Results[Any, V], key: Any) -> V:
    """Return the result of the only key, or raise its error."""
    if key in results.failed:
        raise results.failed[key]
    return results.done[key]


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
