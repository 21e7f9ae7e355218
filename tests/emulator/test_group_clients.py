"""librdkafka's members of classic groups that die, come back or are replaced.

Sessions and rebalances follow a clock that stands still until a test advances it, while the clients' heartbeats follow
real time: to end a member, a test silences it and advances the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, CloseBefore, Emulator, Fault
from dualwrite.broker_emulator.clock import VirtualClock
from tests.emulator.member_clients import PARTITIONS, SESSION_MS, Consumers


@pytest.fixture(params=[1, 3])
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    config = BrokerConfig(offsets_topic_num_partitions=5, transaction_state_log_num_partitions=5)
    with Emulator(nodes=request.param, config=config, clock=VirtualClock(), topics={"t": PARTITIONS}) as broker:
        yield broker


def group_of(emulator: Emulator) -> Any:
    return next((group for group in emulator.groups() if group.group_id == "g"), None)


def let_session_end(emulator: Emulator, name: str) -> None:
    """Advance the clock while the group has a member of this name, and no further: the others must survive."""
    if any(member.client_id == name for member in group_of(emulator).members.values()):
        emulator.advance_clock(500)


@pytest.fixture
def consumers(emulator: Emulator) -> Iterator[Consumers]:
    """Yield consumers: eager rebalances on one node, cooperative ones on several."""
    is_single = "," not in emulator.bootstrap_servers
    group = Consumers(
        emulator.bootstrap_servers, partition_assignment_strategy="range" if is_single else "cooperative-sticky"
    )
    yield group
    group.close()


def test_librdkafka_member_that_dies_is_missed_after_its_session(emulator: Emulator, consumers: Consumers) -> None:
    consumers.add("a")
    consumers.add("b")
    consumers.poll_until(consumers.is_shared)
    dead = consumers.members.pop("b")
    silence(emulator, "b")
    consumers.poll_until(consumers.is_shared, lambda: let_session_end(emulator, "b"))
    assert consumers.assignment() == {"a": list(range(PARTITIONS))}
    dead.close()


def silence(emulator: Emulator, client_id: str) -> Any:
    """Drop all requests of a client, as if it were killed by SIGKILL."""
    return emulator.faults.add(Fault(client_id=client_id, count=None, action=CloseBefore()))


def test_librdkafka_static_member_comes_back_without_a_rebalance(emulator: Emulator) -> None:
    consumers = Consumers(emulator.bootstrap_servers, partition_assignment_strategy="range")
    consumers.add("a", group_instance_id="instance-a")
    consumers.add("b", group_instance_id="instance-b")
    consumers.poll_until(consumers.is_shared)
    before, generation = consumers.assignment(), group_of(emulator).generation
    consumers.members.pop("b").close()  # a static member does not leave
    emulator.advance_clock(SESSION_MS // 2)
    consumers.add("b", group_instance_id="instance-b")
    consumers.poll_until(lambda: consumers.assignment() == before)
    assert group_of(emulator).generation == generation
    consumers.close()


def test_librdkafka_static_member_is_fenced_by_its_successor(emulator: Emulator) -> None:
    consumers = Consumers(
        emulator.bootstrap_servers, partition_assignment_strategy="range", group_instance_id="instance"
    )
    fenced = consumers.add("a")
    consumers.poll_until(consumers.is_shared)
    del consumers.members["a"]
    consumers.add("b")
    errors: list[str] = []

    def look() -> None:
        message = fenced.poll(0.02)
        if message is not None and message.error() is not None:
            errors.append(message.error().name())

    consumers.poll_until(lambda: bool(errors) and consumers.is_shared(), look)
    assert errors[0] == "_FATAL"
    fenced.close()
    consumers.close()
