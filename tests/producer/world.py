"""A broker of one profile, its producers, and the result as other clients see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from dualwrite.broker_emulator import BrokerConfig, Emulator, Fault, FaultHandle, Profile
from dualwrite.broker_emulator.faults.actions import Action
from dualwrite.producer import Producer
from tests.interop.wire import Wire, wait_for
from tests.support.conditions import until
from tests.support.topics import read_topic

PROFILES = [Profile.KIP_939, Profile.KAFKA_4_3, Profile.KAFKA_3_9]


def on_profile(profile: Profile, *others: Any, id: str = "") -> ParameterSet:
    """Return the parameters of a case; on the profile between the other two, it is for `make proof` alone."""
    marks = [pytest.mark.proof] if profile is Profile.KAFKA_4_3 else []
    return pytest.param(profile, *others, id=f"{profile.value}{id}", marks=marks)


GROUP = "readers"


class World:
    """One test's broker. Producers use two-phase commit where the profile has all of it."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.faults = emulator.faults
        self.profile = emulator.config.profile
        self.two_phase_commit = self.profile is Profile.KIP_939
        self.made: list[Producer] = []

    def producer(self, transactional_id: str | None = "tid", **settings: Any) -> Producer:
        """Return a producer with short back-offs; not initialised."""
        defaults: dict[str, Any] = {"max_block_ms": 60_000, "retry_backoff_ms": 5, "reconnect_backoff_ms": 5}
        defaults |= {"linger_ms": 0}
        if transactional_id is not None:
            defaults |= {"transactional_id": transactional_id}
            defaults |= {"transaction_two_phase_commit_enable": self.two_phase_commit}
        producer = Producer(bootstrap_servers=self.emulator.bootstrap_servers, **defaults | settings)
        self.made.append(producer)
        return producer

    def ready(self, transactional_id: str = "tid", **settings: Any) -> Producer:
        """Return an initialised producer."""
        producer = self.producer(transactional_id, **settings)
        producer.init_transactions()
        return producer

    def commit(self, producer: Producer) -> None:
        """As a dual write does it, where there is two-phase commit."""
        if self.two_phase_commit:
            producer.complete_transaction(producer.prepare_transaction())
        else:
            producer.commit_transaction()

    def run(self, producer: Producer, *values: str) -> None:
        """Commit each value in a transaction of its own."""
        for value in values:
            producer.begin_transaction()
            producer.send("orders", value, partition=0)
            self.commit(producer)

    def fault(self, api: str, action: Action, **selectors: Any) -> FaultHandle:
        """Disturbs the producers, not the checks afterwards."""
        return self.faults.add(Fault(api=api, action=action, client_id="dualwrite", **selectors))

    # ---- observations ---------------------------------------------------------------------------------------

    def committed(self, topic: str = "orders") -> list[str]:
        """Return the values that confluent-kafka reads with read_committed, once no transaction is being ended."""
        self.settle()
        return [value for _, value in read_topic(self.emulator.bootstrap_servers, topic)]

    def settle(self) -> None:
        """Wait until decided transactions are complete: a commit returns when it is decided."""
        until(lambda: not any(state.startswith("Prepare") for state in self.states().values()))

    def states(self) -> dict[str, str]:
        """Return the state of every transactional id, by ListTransactions."""
        states: dict[str, str] = {}
        for node in self.emulator.living_nodes:
            with self._wire(node) as wire:
                code, _, listed = wait_for(lambda: wire.list_transactions(version=1), lambda answer: answer[0] != 14)
                assert code == 0
            states |= {transactional_id: state for transactional_id, (_, state) in listed.items()}
        return states

    def _wire(self, node: int) -> Wire:
        return Wire(self.emulator.bootstrap_servers.split(",")[node])

    def nothing_is_open(self) -> bool:
        """Whether every transaction is over, once decided ones are complete."""
        self.settle()
        return all(state in ("Empty", "CompleteCommit", "CompleteAbort") for state in self.states().values())

    def offset(self, topic: str = "inputs") -> int:
        """Return the offset that the group has committed, -1 for none."""
        self.settle()
        with self._wire(self.emulator.coordinator(group=GROUP)) as wire:
            wire.wait_for_coordinator(GROUP, 0)
            code, offset = wire.offset_fetch(GROUP, topic, require_stable=True)
            assert code == 0
        return offset

    def close(self) -> None:
        """Let all producers go."""
        for producer in self.made:
            producer.close(timeout_s=0)


@contextmanager
def world_of(profile: Profile, *, nodes: int = 1, **settings: Any) -> Iterator[World]:
    """Start a broker of that profile; `settings` are the emulator's."""
    with Emulator(
        nodes=nodes, topics={"orders": 2, "inputs": 1}, config=BrokerConfig(profile=profile), **settings
    ) as emulator:
        world = World(emulator)
        yield world
        world.faults.clear()
        world.close()
