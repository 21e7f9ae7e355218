"""Read the end of a prepared transaction, and its records, from the log of a cluster. For one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

from dualwrite.client.admin.calls import AdminCalls
from dualwrite.client.admin.driver import (
    UNKNOWN_TOPIC,
    AdminDriver,
    AdminTransport,
    Located,
    Results,
    leaders_in,
    name_of,
)
from dualwrite.client.admin.results import TopicDescription
from dualwrite.client.log import codec
from dualwrite.client.log.codec import Fetched
from dualwrite.client.log.repair_search import RepairSearch
from dualwrite.client.log.transaction_end import (
    EndSearch,
    HeadSearch,
    Next,
    PartitionEnd,
    RecordSearch,
    Search,
    TransactionEnd,
    first_record_of,
)
from dualwrite.client.records.batch_reading import StoredRecord
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.client.wire.cluster import ClusterSettings
from dualwrite.config import ProducerConfig
from dualwrite.errors import (
    KafkaTimeoutError,
    KafkaUnreachableError,
    NoMarkerError,
    OutcomeUnknown,
    RecordsGoneError,
)
from dualwrite.prepared_state import PreparedTxnState

ResultT = TypeVar("ResultT")

UNKNOWN_FOR_S: Final = 3.0
"""How long brokers must say that a topic does not exist before it counts as deleted: a broker that has just started, or
is cut off from the controller, does not know all topics."""
SHOWN_WITHIN_MS: Final = 3_000
"""How long a newly elected leader may not show a marker that it has (its high watermark lags behind)."""


class LogReader:
    """Reads partitions, over the connections of producers with the same settings. Changes nothing.

    Each call raises KafkaUnreachableError after `unreachable.timeout.ms`: the caller may hold the lock of a row.
    """

    def __init__(self, config: ProducerConfig, loop: asyncio.AbstractEventLoop) -> None:
        settings = ClusterSettings.of(config)
        self._transactional_id = config.transactional_id or ""
        self._transport = AdminTransport(settings, loop, unreachable_timeout_ms=config.unreachable_timeout_ms)
        self._driver = AdminDriver(settings, self._transport)
        self._leaders: dict[TopicPartition, int] = {}

    async def close(self) -> None:
        """Release the connections."""
        await self._transport.close()

    async def end_of(self, manifest: Manifest, timeout_ms: int, *, is_over: bool = False) -> TransactionEnd:
        """Return how the transaction ended in each partition; see `ParticipantProducer.end_of`."""
        searches = [EndSearch(part, manifest.prepared_state) for part in manifest.partitions]
        try:
            if not searches:
                await self._look_up(manifest, (), asyncio.get_running_loop().time() + timeout_ms / 1000)
            ends = await self._run(manifest, searches, timeout_ms, is_over=is_over)
            found = dict(zip(manifest.partitions, ends, strict=True))
            torn = await self._torn_inside(manifest, found, timeout_ms)
        except KafkaUnreachableError:
            raise
        except KafkaTimeoutError as error:
            raise self._end_unknown(manifest, searches, error) from error
        return TransactionEnd(
            {each: end for part in found for each, end in torn.get(part, {part: found[part]}).items()}
        )

    async def cluster_id(self, timeout_ms: int) -> str:
        """Return the id of the cluster; see `ParticipantProducer.cluster_id`."""
        metadata = await self._driver.metadata([], asyncio.get_running_loop().time() + timeout_ms / 1000)
        return metadata.cluster.cluster_id or ""

    async def _torn_inside(
        self, manifest: Manifest, found: Mapping[PartitionManifest, PartitionEnd], timeout_ms: int
    ) -> dict[PartitionManifest, Mapping[PartitionManifest, PartitionEnd]]:
        """Return the partitions in which the last record is committed and the first one is not, each in its two parts.

        An operator who aborts in a partition while the transaction is being written tears it so.
        """
        prepared = manifest.prepared_state
        parts = [part for part, end in found.items() if end is PartitionEnd.COMMITTED and part.record_count > 1]
        firsts = [EndSearch(first_record_of(part), prepared) for part in parts]
        ends = await self._run(manifest, firsts, timeout_ms)
        torn = [part for part, end in zip(parts, ends, strict=True) if end is PartitionEnd.ABORTED]
        heads = [HeadSearch(part, prepared) for part in torn]
        return dict(zip(torn, await self._run(manifest, heads, timeout_ms), strict=True))

    async def records_of(
        self, manifest: Manifest, partitions: Collection[PartitionManifest], timeout_ms: int
    ) -> list[StoredRecord]:
        """Return the records of the transaction in those partitions; see `ParticipantProducer.records_of`."""
        searches = [RecordSearch(part, manifest.prepared_state) for part in partitions]
        found = await self._run(manifest, searches, timeout_ms)
        for part, records in zip(partitions, found, strict=True):
            if len(records) != part.record_count:
                raise self._records_gone(manifest, part, len(records))
        return [record for records in found for record in records]

    async def repair_of(
        self,
        manifest: Manifest,
        parts: Collection[PartitionManifest],
        undecided: PreparedTxnState,
        timeout_ms: int,
        others: Collection[PreparedTxnState] = (),
    ) -> PreparedTxnState | None:
        """Return the transaction that published an aborted one again; see `ParticipantProducer.repair_of`."""
        part, records = await self._telling(manifest, parts, timeout_ms)
        rest = [each for each in parts if each != part]
        refuted = set(others)
        while True:
            search = RepairSearch(part, manifest.prepared_state, records, undecided, lambda pair: pair not in refuted)
            (pair,) = await self._run(manifest, [search], timeout_ms)
            if pair is None or pair.producer_id == manifest.prepared_state.producer_id:
                return pair
            if await self._has_all(manifest, rest, pair, undecided, timeout_ms):
                return pair
            refuted.add(pair)  # of another program, which has written the same records in that partition

    async def _telling(
        self, manifest: Manifest, parts: Collection[PartitionManifest], timeout_ms: int
    ) -> tuple[PartitionManifest, list[StoredRecord]]:
        """Return the partition in which to look for a repair, with the aborted records that are left in it.

        That is the smallest one with records, whose timestamps are the producer's if there is such a partition.
        """
        best: tuple[PartitionManifest, list[StoredRecord]] | None = None
        ordered = sorted(parts, key=lambda each: each.record_count)
        for part in ordered:
            search = RecordSearch(part, manifest.prepared_state)
            (records,) = await self._run(manifest, [search], timeout_ms)
            if records and not search.has_broker_time:
                return part, records
            if records and best is None:
                best = part, records
        return best or (ordered[0], [])

    async def _has_all(
        self,
        manifest: Manifest,
        parts: Collection[PartitionManifest],
        pair: PreparedTxnState,
        undecided: PreparedTxnState,
        timeout_ms: int,
    ) -> bool:
        """Return whether the transaction of `pair` has the aborted records of each partition that still has any."""
        for part in parts:
            (records,) = await self._run(manifest, [RecordSearch(part, manifest.prepared_state)], timeout_ms)
            search = RepairSearch(part, manifest.prepared_state, records, undecided, pair.__eq__, is_pinned=True)
            if records and await self._run(manifest, [search], timeout_ms) == [None]:
                return False
        return True

    async def describe_topics(self, topics: Collection[str], timeout_ms: int) -> dict[str, TopicDescription]:
        """Return whether topics can be read, and how their logs are cleaned; see the producer."""
        self._transport.retry_refused()
        calls = AdminCalls(self._driver, asyncio.get_running_loop().time() + timeout_ms / 1000)
        return await calls.describe_topics(topics)

    # ---- searches -------------------------------------------------------------------------------------------

    async def _run(
        self, manifest: Manifest, searches: Sequence[Search[ResultT]], timeout_ms: int, *, is_over: bool = False
    ) -> list[ResultT]:
        """Fetch until each search has a result; return them in the same order.

        `is_over`: give up `SHOWN_WITHIN_MS` after only markers are left to find, and no log has one.
        """
        self._transport.retry_refused()
        deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        by_partition = {_partition_of(search): search for search in searches}
        found: dict[TopicPartition, ResultT] = {}
        unknown_since_s: dict[TopicPartition, float] = {}
        left = dict(by_partition)
        backoff = self._driver.new_backoff()
        watched_until_s = deadline_s
        while left:
            results = await self._fetch(manifest, left, deadline_s)
            now_s = asyncio.get_running_loop().time()
            steps = _steps(left, results, unknown_since_s, now_s)
            found |= {where: step for where, step in steps.items() if not isinstance(step, Next)}
            left = {where: search for where, search in left.items() if where not in found}
            if not left or Next.FETCH in steps.values():
                continue
            is_watched = is_over and all(_has_no_marker(search) for search in left.values())
            watched_until_s = min(watched_until_s, now_s + SHOWN_WITHIN_MS / 1000) if is_watched else deadline_s
            if not await self._driver.pause(backoff, watched_until_s):
                raise KafkaTimeoutError(", ".join(_standing(search) for search in left.values()))
        return [found[where] for where in by_partition]

    async def _fetch(
        self, manifest: Manifest, searches: Mapping[TopicPartition, Search[ResultT]], deadline_s: float
    ) -> Results[TopicPartition, Fetched]:
        """Fetch once for each search, from the leaders."""
        together = [where for where, search in searches.items() if not search.alone]
        groups = [[where] for where, search in searches.items() if search.alone]
        for read_committed in (True, False):
            groups.append([where for where in together if searches[where].read_committed is read_committed])
        known, self._leaders = self._leaders, {}

        async def look_up(partitions: Sequence[TopicPartition]) -> Located[TopicPartition]:
            nodes = {where: known.pop(where) for where in partitions if where in known}
            located = Located[TopicPartition](nodes, {}, {})
            if missing := [where for where in partitions if where not in nodes]:
                located = await self._look_up(manifest, missing, deadline_s)
            nodes = {**nodes, **located.nodes}
            self._leaders |= nodes
            return located._replace(nodes=nodes)

        def call_for(_: int, partitions: Sequence[TopicPartition]) -> codec.FetchCall:
            offsets = {where: searches[where].offset for where in partitions}
            return codec.fetch(offsets, read_committed=searches[partitions[0]].read_committed)

        fetches = [self._driver.fulfil(group, look_up, call_for, deadline_s=deadline_s) for group in groups if group]
        results = Results[TopicPartition, Fetched]({}, {})
        for done, failed in await asyncio.gather(*fetches):
            results.done.update(done)
            results.failed.update(failed)
        return results

    async def _look_up(
        self, manifest: Manifest, partitions: Sequence[TopicPartition], deadline_s: float
    ) -> Located[TopicPartition]:
        """Look up leaders, in the cluster in which the transaction was prepared."""
        topics = list(dict.fromkeys(where.topic for where in partitions))
        metadata = await self._driver.metadata(topics, deadline_s)
        cluster_id = metadata.cluster.cluster_id
        if cluster_id and manifest.is_elsewhere(cluster_id):
            raise manifest.elsewhere(cluster_id, self._transactional_id)
        return leaders_in(metadata, partitions)

    # ---- texts ----------------------------------------------------------------------------------------------

    def _name(self, manifest: Manifest) -> str:
        whose = f" of transactional id {self._transactional_id!r}" if self._transactional_id else ""
        return f"the prepared transaction {manifest.prepared_state}{whose}"

    def _end_unknown(
        self, manifest: Manifest, searches: Sequence[EndSearch], error: KafkaTimeoutError
    ) -> OutcomeUnknown:
        """Return the error for an end that the log does not show in time."""
        whose = {"transactional_id": self._transactional_id, "prepared_state": str(manifest.prepared_state)}
        told = (
            f"the log does not show yet how {self._name(manifest)} ended: {error}. Nothing was changed; repeat the call"
        )
        unmarked = tuple((each.part.topic, each.part.partition) for each in searches if each.has_no_marker)
        if not unmarked:
            return OutcomeUnknown(told, **whose)
        return NoMarkerError(
            f"{told}. If its coordinator has nothing to end, it hangs (KAFKA-20734) and holds up everything behind it "
            f"in the partition: `dualwrite transactions find-hanging --topic {unmarked[0][0]} "
            "--max-transaction-timeout 0` shows it",
            **whose,
            partitions=unmarked,
        )

    def _records_gone(self, manifest: Manifest, part: PartitionManifest, count: int) -> RecordsGoneError:
        return RecordsGoneError(
            f"{self._name(manifest)} was aborted, and of its {part.record_count} record(s) at the offsets "
            f"{part.first_offset} to {part.last_offset} of {part.topic}-{part.partition} the log has {count}: the "
            "rest was deleted or compacted, or Kafka lost it, so they cannot be published again. Nothing was changed; "
            "publish the missing records from the database, then continue with init_transactions() or, for a dual "
            f"write, with `dualwrite recover --acknowledge-lost {self._transactional_id} --apply`",
            transactional_id=self._transactional_id,
            prepared_state=str(manifest.prepared_state),
        )


def _partition_of(search: Search[ResultT]) -> TopicPartition:
    return TopicPartition(search.part.topic, search.part.partition)


def _steps(
    searches: Mapping[TopicPartition, Search[ResultT]],
    results: Results[TopicPartition, Fetched],
    unknown_since_s: dict[TopicPartition, float],
    now_s: float,
) -> dict[TopicPartition, ResultT | Next]:
    """Return the results of the fetches. Raises the error of a failed one, unless the topic does not exist.

    `unknown_since_s` is kept from one round to the next: since when each topic has not existed.
    """
    steps: dict[TopicPartition, ResultT | Next] = {}
    for where, error in results.failed.items():
        if error.error_code != UNKNOWN_TOPIC:
            raise error
        is_gone = now_s - unknown_since_s.setdefault(where, now_s) >= UNKNOWN_FOR_S
        steps[where] = searches[where].without_topic() if is_gone else Next.WAIT
    for where, fetched in results.done.items():
        unknown_since_s.pop(where, None)
        steps[where] = searches[where].take(fetched)
    return steps


def _has_no_marker(search: Search[ResultT]) -> bool:
    return isinstance(search, EndSearch) and search.has_no_marker


def _standing(search: Search[ResultT]) -> str:
    what = "no marker ends it yet" if isinstance(search, EndSearch) else "not all of it can be read yet"
    return f"{name_of(_partition_of(search))}: {what}, up to offset {search.offset}"
