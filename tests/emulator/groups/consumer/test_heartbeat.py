"""The coordinator's decisions about heartbeats, expired deadlines and changed topics, case by case."""

from __future__ import annotations

from dualwrite.broker_emulator.groups.consumer.group import NOTHING, HeartbeatResponse
from dualwrite.broker_emulator.groups.consumer.states import (
    ConsumerGroupState,
)

from .members import SETTINGS, Coordinator, partitions


def granted(response: HeartbeatResponse | int) -> HeartbeatResponse:
    assert isinstance(response, HeartbeatResponse)
    return response


def test_a_full_group_accepts_only_its_members() -> None:
    group = Coordinator(settings=SETTINGS._replace(max_size=1))
    group.heartbeat("m1", 0)
    assert group.tried("m2", 0) == 81
    assert granted(group.tried("m1", 0)).member_epoch == 2


def test_assignments_can_be_put_off() -> None:
    group = Coordinator(settings=SETTINGS._replace(assignment_interval_ms=1_000))
    assert group.heartbeat("m1", 0).assignment == partitions("a", 0, 1, 2, 3)
    waiting = group.heartbeat("m2", 0)
    assert (waiting.member_epoch, waiting.assignment, group.consumers.group_epoch) == (2, NOTHING, 3)
    assert group.consumers.state is ConsumerGroupState.ASSIGNING
    group.pass_time(999)
    assert group.heartbeat("m2", 2).member_epoch == 2
    group.pass_time(1)
    assert group.heartbeat("m2", 2).member_epoch == 3


def test_expressions_are_resolved_after_the_response_and_refreshed_later() -> None:
    group = Coordinator()
    first = group.heartbeat("m1", 0, subscribed_topics=None, subscribed_regex="[ab]")
    assert (first.member_epoch, first.assignment, group.consumers.group_epoch) == (1, NOTHING, 2)
    assert group.heartbeat("m1", 1).assignment == partitions("a", 0, 1, 2, 3) | partitions("b", 0, 1, 2)
    group.change_topic("b", None)
    group.change_topic("c", 1)
    assert group.heartbeat("m1", 2).assignment == partitions("a", 0, 1, 2, 3)  # deleted topics are revoked at once
    group.settle()
    group.heartbeat("m1", 3, subscribed_regex="[abc]")
    assert group.consumers.regular_expressions.keys() == {"[abc]"}
    group.settle()
    assert frozenset(group.member("m1").assigned) == partitions("a", 0, 1, 2, 3) | partitions("c", 0)
    group.change_topic("b", 1)
    group.pass_time(10_000)
    group.settle()
    assert not frozenset(group.member("m1").assigned) & partitions("b", 0)
    group.pass_time(1)
    group.settle()
    assert frozenset(group.member("m1").assigned) >= partitions("b", 0)
