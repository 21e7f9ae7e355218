"""Fakes around a coordinator: a state log and partition leaders with scripted responses."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.pause_points import PausePoints
from dualwrite.broker_emulator.transactions.ports import Marker
from dualwrite.broker_emulator.transactions.producer_ids import ProducerIdBlocks, ProducerIdManager
from dualwrite.broker_emulator.transactions.service import TransactionCoordinator

DEADLINE_S = 60.0


@dataclass
class FakeStateLog:
    """Appends at once with NONE, unless `responses` holds errors or `gate` is closed."""

    records: defaultdict[int, list[tuple[bytes, bytes | None]]] = field(default_factory=lambda: defaultdict(list))
    responses: list[ErrorCode] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def append(self, partition: int, key: bytes, value: bytes | None) -> ErrorCode:
        await self.gate.wait()
        response = self.responses.pop(0) if self.responses else ErrorCode.none
        if response is ErrorCode.none:
            self.records[partition].append((key, value))
        return response

    def replay(self, partition: int, apply: Callable[[bytes, bytes | None], None]) -> None:
        for key, value in list(self.records[partition]):
            apply(key, value)


@dataclass
class FakeLeaders:
    """Takes every marker with NONE, unless `responses` holds other codes for the partition."""

    sent: list[tuple[TopicPartition, Marker]] = field(default_factory=list)
    responses: defaultdict[TopicPartition, list[ErrorCode | None]] = field(default_factory=lambda: defaultdict(list))
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def send(self, topic_partition: TopicPartition, marker: Marker) -> ErrorCode | None:
        self.sent.append((topic_partition, marker))
        await self.gate.wait()
        responses = self.responses[topic_partition]
        return responses.pop(0) if responses else ErrorCode.none


class FakeCluster:
    """One state log and its coordinator; must be made inside the loop."""

    def __init__(self, **config: Any) -> None:
        self.config = BrokerConfig(transaction_state_log_num_partitions=1, **config)
        self.clock = VirtualClock(start_ms=1_000_000)
        self.log = FakeStateLog()
        self.leaders = FakeLeaders()
        self.pause_points = PausePoints()
        self.blocks = ProducerIdBlocks()

    def coordinator(self) -> TransactionCoordinator:
        """Return the coordinator of the one state partition."""
        coordinator = TransactionCoordinator(
            node_id=0,
            config=self.config,
            clock=self.clock,
            log=self.log,
            producer_ids=ProducerIdManager(self.blocks),
            markers=self.leaders,
            pause_points=self.pause_points,
        )
        coordinator.load_partition(0, 0)
        return coordinator


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


async def until_state(coordinator: TransactionCoordinator, transactional_id: str, state: str) -> None:
    await until(lambda: coordinator.describe(transactional_id).state == state)
