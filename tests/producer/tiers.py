"""A broker of each tier, and prepared transactions on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.guarantee import Tier
from dualwrite.participant import ParticipantProducer
from dualwrite.prepared_state import PreparedTxnState
from tests.support.conditions import until
from tests.support.topics import read_topic, wait_until_settled

TIERS: Final[dict[Tier, BrokerConfig]] = {
    Tier.KEEP_PREPARED: BrokerConfig(),
    Tier.STORED_PAIR: BrokerConfig(
        profile=Profile.KAFKA_4_3, unstable_api_versions_enable=True, transaction_two_phase_commit_enable=True
    ),
    Tier.BOUNDED: BrokerConfig(profile=Profile.KAFKA_4_3),
    Tier.BOUNDED_V1: BrokerConfig(profile=Profile.KAFKA_3_9),
}

BOUNDED: Final = [Tier.BOUNDED, Tier.BOUNDED_V1]

BY_STORED_PAIR: Final = [Tier.STORED_PAIR, *BOUNDED]

LONG_AFTER_MS: Final = 3_600_000


class StillBroker:
    """A broker whose clock stands still."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    def settle(self) -> None:
        wait_until_settled(self.emulator)

    def abort_by_timeout(self) -> None:
        """Let the broker abort transactions that have been open for too long."""
        self.emulator.advance_clock(LONG_AFTER_MS)
        until(lambda: not any(t.state == "Ongoing" for t in self.emulator.transactions()))
        self.settle()


class World(StillBroker):
    """One broker of one tier, and any number of producers."""

    def __init__(self, emulator: Emulator, tier: Tier) -> None:
        super().__init__(emulator)
        self.tier = tier
        self.made: list[ParticipantProducer] = []

    def producer(self, **settings: Any) -> ParticipantProducer:
        defaults: dict[str, Any] = {
            "max_block_ms": 60_000,
            "retry_backoff_ms": 5,
            "linger_ms": 0,
            "transactional_id": "tid",
        }
        defaults |= {"transaction_two_phase_commit_enable": True, "accept_bounded_guarantee": True}
        producer = ParticipantProducer(bootstrap_servers=self.emulator.bootstrap_servers, **defaults | settings)
        self.made.append(producer)
        return producer

    def ready(self, **settings: Any) -> ParticipantProducer:
        producer = self.producer(**settings)
        producer.init_transactions()
        return producer

    def recovering(self, **settings: Any) -> ParticipantProducer:
        producer = self.producer(**settings)
        producer.init_transactions(keep_prepared_txn=True)
        return producer

    def prepared(self, value: str = "v", transactional_id: str = "tid") -> PreparedTxnState:
        """Prepare by a process that is gone now."""
        return self.prepare(self.ready(transactional_id=transactional_id), value)

    def prepare(self, producer: ParticipantProducer, value: str = "v") -> PreparedTxnState:
        producer.begin_transaction()
        producer.send("orders", value, partition=0)
        return producer.prepare_transaction()

    def commit(self, producer: ParticipantProducer, value: str) -> PreparedTxnState:
        state = self.prepare(producer, value)
        producer.complete_transaction(state)
        return state

    def committed(self) -> list[str]:
        self.settle()
        return [value for _, value in read_topic(self.emulator.bootstrap_servers, "orders")]

    def described(self, transactional_id: str = "tid") -> tuple[str, int, int]:
        (transaction,) = [t for t in self.emulator.transactions() if t.transactional_id == transactional_id]
        return transaction.state, transaction.producer_id, transaction.producer_epoch


@contextmanager
def world_of(tier: Tier, config: BrokerConfig | None = None) -> Iterator[World]:
    with Emulator(topics={"orders": 2, "inputs": 1}, config=config or TIERS[tier], clock=VirtualClock()) as emulator:
        world = World(emulator, tier)
        yield world
        for producer in world.made:
            producer.close(timeout_s=0)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_of(request.param) as made:
        yield made


def on(*tiers: Tier) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("world", tiers, ids=[tier.name for tier in tiers], indirect=True)


every_tier = on(*Tier)

by_stored_pair = on(*BY_STORED_PAIR)

bounded = on(*BOUNDED)
