"""Members of the classic protocol in a consumer group: when a Heartbeat or SyncGroup tells them to join again."""

from __future__ import annotations

from dualwrite.broker_emulator.groups.consumer.states import ConsumerGroupState
from dualwrite.broker_emulator.groups.consumer_protocol import NamedPartitions, read_assignment
from dualwrite.broker_emulator.groups.member_requests import JoinResponse, SyncResponse

from .members import SETTINGS, Coordinator, partitions

A = frozenset("a")
NOTHING: NamedPartitions = frozenset()


def joined(group: Coordinator, member_id: str, owned: NamedPartitions = NOTHING) -> int:
    """Join with a subscription to topic "a"; return the generation."""
    response = group.join(member_id, A, owned)
    assert isinstance(response, JoinResponse)
    return response.generation


def synced(group: Coordinator, member_id: str, generation: int) -> NamedPartitions:
    response = group.sync(member_id, generation)
    assert isinstance(response, SyncResponse)
    assert response.error == 0
    return read_assignment(response.assignment).partitions


def named(*indexes: int) -> NamedPartitions:
    return frozenset(("a", index) for index in indexes)


def settled() -> tuple[Coordinator, int]:
    """Return a group of m1 and the classic member c1, each with two partitions, and the generation of c1."""
    group = Coordinator(settings=SETTINGS._replace(session_timeout_ms=30_000, allows_downgrade=False))
    group.heartbeat("m1", 0)
    joined(group, "c1")
    group.heartbeat("m1", 2)
    group.heartbeat("m1", 2, owned=partitions("a", 0, 1))
    generation = joined(group, "c1")
    assert synced(group, "c1", generation) == named(2, 3)
    assert group.consumers.state is ConsumerGroupState.STABLE
    return group, generation


def test_a_classic_member_alone_keeps_a_deleted_topic_until_it_joins() -> None:
    """Kafka looks for changed topics when a member joins or sends a heartbeat of the new protocol, and only then."""
    group, generation = settled()
    group.heartbeat("m1", -1)
    assert group.classic_heartbeat("c1", generation) == 0
    group.change_topic("a", None)
    assert group.classic_heartbeat("c1", generation) == 0
    assert group.member("c1").assigned.keys() == partitions("a", 2, 3)
    generation = joined(group, "c1", named(2, 3))
    assert synced(group, "c1", generation) == NOTHING
    assert not group.member("c1").assigned
    assert group.consumers.state is ConsumerGroupState.STABLE
    assert group.classic_heartbeat("c1", generation) == 0
