"""Verify or add partitions of a transaction at its coordinator before a write (KIP-890); named after Kafka's class.

Old clients register the partitions themselves, and the coordinator verifies that they did. New clients (Produce v12+,
TxnOffsetCommit v5+) leave it to the broker, and the coordinator adds the partitions to the transaction.

Each broker has at most one request per transactional id in flight, and one more queued behind it. When a third arrives,
`queue_errors` decides which of the two waiting ones is refused: only the newest producer can be valid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.cluster.cluster import NodeGoneError
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.broker_emulator.topics.topics import TopicPartition

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Cluster, ClusterNode


def queue_errors(queued_epoch: int, incoming_epoch: int) -> tuple[ErrorCode, ErrorCode]:
    """Return the errors for the queued and the incoming request; NONE for the request that stays queued."""
    if incoming_epoch < queued_epoch:
        return NO_ERROR, ErrorCode.invalid_producer_epoch
    if incoming_epoch > queued_epoch:
        return ErrorCode.invalid_producer_epoch, NO_ERROR
    return ErrorCode.network_exception, NO_ERROR


@dataclass(slots=True, eq=False)
class _Queued:
    """A request that waits for its turn; `turn` becomes NONE when it may be sent, or the error to respond with."""

    producer_epoch: int
    turn: asyncio.Future[ErrorCode]


class AddPartitionsToTxnManager:
    """The verifications and additions that one broker requests."""

    __slots__ = ("_cluster", "_in_flight", "_node_id")

    def __init__(self, node_id: int, cluster: Cluster) -> None:
        self._node_id = node_id
        self._cluster = cluster
        # transactional id with a request in flight -> the request queued behind it
        self._in_flight: dict[str, _Queued | None] = {}

    async def add_or_verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return an error for each partition: the coordinator's, 13 or 47 from the queue; 15 without a coordinator."""
        if transactional_id in self._in_flight:
            error = await self._wait_for_turn(transactional_id, producer_epoch)
            if error is not NO_ERROR:
                return dict.fromkeys(partitions, error)
        else:
            self._in_flight[transactional_id] = None
        began_ns = time.perf_counter_ns()
        try:
            errors = await self._request(transactional_id, producer_id, producer_epoch, partitions, add)
        finally:
            self._start_next(transactional_id)
        counters = self._cluster.nodes[self._node_id].counters
        counters.verifications.add(time.perf_counter_ns() - began_ns)
        for error in errors.values():
            if error is not NO_ERROR:
                counters.verification_failures += 1
        return errors

    async def _wait_for_turn(self, transactional_id: str, producer_epoch: int) -> ErrorCode:
        queued = self._in_flight[transactional_id]
        if queued is not None:
            for_queued, for_incoming = queue_errors(queued.producer_epoch, producer_epoch)
            if for_incoming is not NO_ERROR:
                return for_incoming
            if not queued.turn.done():
                queued.turn.set_result(for_queued)
        turn: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._in_flight[transactional_id] = _Queued(producer_epoch, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result() is NO_ERROR:
                self._start_next(transactional_id)
            raise

    def _start_next(self, transactional_id: str) -> None:
        queued = self._in_flight.pop(transactional_id)
        if queued is not None and not queued.turn.done():
            self._in_flight[transactional_id] = None
            queued.turn.set_result(NO_ERROR)

    async def _request(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        points = self._cluster.pause_points
        if points.active:
            await self._reach(PausePoint.BEFORE_VERIFICATION, transactional_id, producer_id, producer_epoch)
        node = self._cluster.transaction_coordinator(transactional_id)
        errors: Mapping[TopicPartition, ErrorCode]
        if node is None:
            errors = dict.fromkeys(partitions, ErrorCode.coordinator_not_available)
        elif add:
            work = node.transactions.add_partitions(
                transactional_id, producer_id, producer_epoch, partitions, transaction_version=2
            )
            error = await (work if node.node_id == self._node_id else self._response_of_peer(node, work))
            errors = dict.fromkeys(partitions, error)
        else:
            errors = node.transactions.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)
        if points.active:
            await self._reach(PausePoint.AFTER_VERIFICATION, transactional_id, producer_id, producer_epoch)
        return errors

    async def _reach(self, point: PausePoint, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        await self._cluster.pause_points.reach(
            point,
            node_id=self._node_id,
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )

    @staticmethod
    async def _response_of_peer(node: ClusterNode, work: Coroutine[Any, Any, ErrorCode]) -> ErrorCode:
        """Return the error of a coordinator on another node; NETWORK_EXCEPTION if that node dies meanwhile."""
        try:
            return await node.run_for_peer(work)
        except NodeGoneError:
            return ErrorCode.network_exception
