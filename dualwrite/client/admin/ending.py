"""End transactions past their owners: by markers on one partition, by EndTxn with their pairs, by InitProducerId."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from dualwrite.client.admin import codec
from dualwrite.client.admin.calls import AdminCalls, Producers, single
from dualwrite.client.admin.driver import RETRIABLE, AdminDriver, Located, NoResponseError, failure, name_of
from dualwrite.client.admin.results import ActiveProducer, TerminatedTransaction, TransactionDescription
from dualwrite.client.error_texts import error_name
from dualwrite.client.late_log import log_guarded
from dualwrite.client.records.record import TopicPartition
from dualwrite.errors import (
    NETWORK_EXCEPTION,
    AdminError,
    Api,
    AuthorizationError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedByBrokerError,
    error_class,
)
from dualwrite.prepared_state import PreparedTxnState

_PAIR_REFUSED: Final = (47, 90)
_MAY_BE_WRITTEN: Final = (3, 6, 7, 13, 20, 56)
"""Error codes after which a marker may be in the log: UNKNOWN_TOPIC_OR_PARTITION and NOT_LEADER_OR_FOLLOWER (also of a
leader that lost the partition after it had written), REQUEST_TIMED_OUT, NETWORK_EXCEPTION,
NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_STORAGE_ERROR."""
_ONGOING: Final = "Ongoing"
_OPEN_OR_ENDING: Final = (_ONGOING, "PrepareCommit", "PrepareAbort")

K = TypeVar("K")

_Marker = codec.Call[dict[TopicPartition, codec.Reply[bool]]]

_log = logging.getLogger(__name__)


class TransactionEnds:
    """The admin calls that end transactions, until a deadline, which is by the loop's clock."""

    def __init__(self, driver: AdminDriver, deadline_s: float) -> None:
        self._driver = driver
        self._deadline_s = deadline_s
        self._calls = AdminCalls(driver, deadline_s)

    async def _producers(self, partition: TopicPartition) -> Producers:
        return single(await self._calls.producers([partition], None), partition)

    async def abort_by_ids(
        self, partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Send an abort marker; without a response, see `_abort`."""
        try:
            described = await self._producers(partition)
        except (UnsupportedByBrokerError, AuthorizationError):
            start_offset = None
        else:
            starts = (row.current_transaction_start_offset for row in described if row.producer_id == producer_id)
            start_offset = next(starts, None)
        marker = _marker(partition, producer_id, producer_epoch, coordinator_epoch)
        await self._abort(partition, marker, start_offset)

    async def commit_at(self, partition: TopicPartition, prepared: PreparedTxnState) -> None:
        """Send a commit marker for a prepared transaction that is open on the partition, until there is a response.

        A pair belongs to one prepared transaction only, so the marker may be sent again: a partition refuses it if the
        producer has begun another one there, and it changes nothing if none is open.
        """
        producers = await self._producers(partition)
        producer_id, producer_epoch = prepared.producer_id, prepared.producer_epoch
        row = next((each for each in producers if each.producer_id == producer_id), None)
        if row is None or row.current_transaction_start_offset is None or row.producer_epoch != producer_epoch:
            raise _not_open(partition, prepared, row)
        marker = _marker(partition, producer_id, producer_epoch, row.coordinator_epoch, commits=True)
        await self._repeat(partition, self._driver.leaders, marker)

    async def abort_at(self, partition: TopicPartition, start_offset: int) -> None:
        """Send an abort marker for the producer with a transaction open on the partition since that offset."""
        producers = await self._producers(partition)
        producer = _producer_with_open_transaction(producers, partition, start_offset)
        marker = _marker(partition, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)
        await self._abort(partition, marker, start_offset)

    async def _abort(self, partition: TopicPartition, marker: _Marker, start_offset: int | None) -> None:
        """Send an abort marker for the transaction that is open since that offset; None: none is, as far as is known.

        Before it is sent again, check whether that transaction is still open: with transaction.version 0 and 1 a new
        transaction has the same epoch, so a second marker would abort one that the producer may have begun meanwhile.
        """
        backoff = self._driver.new_backoff()
        was_sent = False
        while True:
            problem, sent_now = await self._try_to_abort(partition, marker)
            if problem is None:
                return
            was_sent |= sent_now
            if (was_sent and start_offset is None) or not await self._driver.pause(backoff, self._deadline_s):
                raise KafkaTimeoutError(
                    f"no response for {name_of(partition)} in time: {problem}; the transaction may or may not be "
                    "aborted: if its producer has begun no other, repeat the same call"
                )
            if start_offset is not None:
                producers = await self._producers(partition)
                if was_sent and all(row.current_transaction_start_offset != start_offset for row in producers):
                    return
                _producer_with_open_transaction(producers, partition, start_offset)

    async def _try_to_abort(self, partition: TopicPartition, marker: _Marker) -> tuple[str | None, bool]:
        """Send an abort marker; return why the outcome is unknown (None: aborted), and whether it may be there."""
        located = await self._driver.leaders([partition], self._deadline_s)
        if partition in located.failed:
            raise located.failed[partition]
        if partition in located.not_yet:
            return str(located.not_yet[partition]), False
        try:
            replies = await self._driver.request_once(located.nodes[partition], marker, self._deadline_s)
        except NoResponseError as error:
            return str(error), error.sent
        error_code = replies.get(partition, codec.Reply(NETWORK_EXCEPTION)).error_code
        if error_code and error_class(Api.WRITE_TXN_MARKERS, error_code) not in RETRIABLE:
            raise failure(Api.WRITE_TXN_MARKERS, error_code, partition)
        problem = f"WriteTxnMarkers returned {error_name(error_code)}" if error_code else None
        return problem, error_code in _MAY_BE_WRITTEN

    async def end_by_pair(self, pairs: Mapping[str, PreparedTxnState], *, commit: bool) -> set[str]:
        """Send EndTxn for each id with its own pair, all at once; return the ids that were ended so."""
        located = await self._driver.coordinators(list(pairs), self._deadline_s)
        ended: set[str] = set()

        async def end(transactional_id: str, node_id: int) -> None:
            try:
                version = await self._driver.transaction_version(node_id, self._deadline_s)
                call = codec.end_by_pair(transactional_id, pairs[transactional_id], version, commit=commit)
                if await self._driver.request_once(node_id, call, self._deadline_s) == 0:
                    ended.add(transactional_id)
            except (NoResponseError, KafkaError) as error:
                pair = pairs[transactional_id]
                log_guarded(_log, logging.DEBUG, "the end of %s of %s: %s", pair, transactional_id, error)

        await asyncio.gather(*(end(*each) for each in located.nodes.items()))
        return ended

    async def force_terminate(self, transactional_id: str, timeout_ms_for_2pc: int) -> TerminatedTransaction:
        """Send InitProducerId while the id has an open transaction, and stop when it has ended.

        One request too many would leave the id Empty, which hides that a prepared transaction was aborted. So after a
        request without a response, the id is described again before the request is repeated.
        """
        found = now = await self._calls.describe_transaction(transactional_id)
        backoff = self._driver.new_backoff()
        code: int | None = 0
        last_code = 0
        while now.state in _OPEN_OR_ENDING:
            if now.state == _ONGOING:
                timeout_ms = now.transaction_timeout_ms if now.has_timeout else timeout_ms_for_2pc
                # With KIP-939 the producer may hold a newer producer id and epoch, which is not described and is the
                # only one accepted.
                pair = None if code in _PAIR_REFUSED else (now.producer_id, now.producer_epoch)
                code = await self._abort_open_transaction(transactional_id, timeout_ms, pair)
                last_code = last_code if code is None else code
            if not await self._driver.pause(backoff, self._deadline_s):
                raise _not_terminated_in_time(now, last_code)
            try:
                now = await self._calls.describe_transaction(transactional_id)
            except KafkaTimeoutError:
                raise _not_terminated_in_time(now, last_code) from None
        return TerminatedTransaction(found, now.producer_id, now.producer_epoch)

    async def _abort_open_transaction(
        self, transactional_id: str, timeout_ms: int, pair: tuple[int, int] | None
    ) -> int | None:
        """Send InitProducerId once; return its error code if it can be repeated, None if there was no response.

        The caller learns the effect from the next description of the id.
        """
        located = await self._driver.coordinators([transactional_id], self._deadline_s)
        if transactional_id in located.failed:
            raise located.failed[transactional_id]
        if transactional_id in located.not_yet:
            return None
        call = codec.init_producer_id(transactional_id, timeout_ms, pair)
        try:
            replies = await self._driver.request_once(located.nodes[transactional_id], call, self._deadline_s)
        except NoResponseError:
            return None
        code = replies[transactional_id].error_code
        may_repeat = error_class(Api.INIT_PRODUCER_ID, code) in RETRIABLE or (
            code in _PAIR_REFUSED and pair is not None
        )
        if code and not may_repeat:
            raise failure(Api.INIT_PRODUCER_ID, code, transactional_id)
        return code

    async def overwrite_end(self, seen: TransactionDescription, timeout_ms_for_2pc: int) -> None:
        """Send InitProducerId with the producer id and epoch of `seen`, which has no open transaction.

        It makes the coordinator forget how the last transaction ended. The broker refuses it if the id has been used
        since.
        """
        timeout_ms = seen.transaction_timeout_ms if seen.has_timeout else timeout_ms_for_2pc
        call = codec.init_producer_id(seen.transactional_id, timeout_ms, (seen.producer_id, seen.producer_epoch))
        await self._repeat(seen.transactional_id, self._driver.coordinators, call)

    async def _repeat(
        self,
        key: K,
        look_up: Callable[[Sequence[K], float], Coroutine[Any, Any, Located[K]]],
        call: codec.Call[dict[K, codec.Reply[Any]]],
    ) -> None:
        """Send a call that changes state until there is a response; a timeout says that it may have taken effect."""
        results = await self._driver.fulfil(
            [key], lambda keys: look_up(keys, self._deadline_s), lambda *_: call, deadline_s=self._deadline_s
        )
        try:
            single(results, key)
        except KafkaTimeoutError as error:
            raise KafkaTimeoutError(f"{error}; it may or may not have taken effect: repeat the same call") from None


def _not_terminated_in_time(seen: TransactionDescription, code: int) -> KafkaTimeoutError:
    response = f" (InitProducerId returned {error_name(code)})" if code else ""
    return KafkaTimeoutError(
        f"transactional id {seen.transactional_id!r} was still {seen.state}{response} when the time was up; its open "
        "transaction may or may not be aborted: repeat the same call"
    )


def _marker(
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int | None,
    *,
    commits: bool = False,
) -> _Marker:
    """Return the request for an abort marker, or a commit marker.

    A partition shows no coordinator epoch, or -1, of a producer without any marker. 0 is sent instead, which is not
    above any coordinator's epoch.
    """
    return codec.write_marker(
        partition,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=max(coordinator_epoch or 0, 0),
        commits=commits,
    )


def _producer_with_open_transaction(
    producers: Producers, partition: TopicPartition, start_offset: int
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
