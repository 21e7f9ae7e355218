"""The assignors: balance, stickiness and completeness for any members and topics, and Kafka's order of ranges."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.groups.consumer.assignors import (
    ASSIGNORS,
    Assignor,
    Subscriber,
    assign_range,
    assign_uniform,
)
from dualwrite.broker_emulator.groups.consumer.group import Assignment
from tests.support.proof_only import examples

from .members import partitions, topic_id

A, B, C = (topic_id(name) for name in "abc")


def indexes(target: Assignment, topic: uuid.UUID = A) -> list[int]:
    return sorted(name.partition for name in target if name.topic_id == topic)


def subscriber(
    name: str, *topics: uuid.UUID, target: Assignment = frozenset(), instance: str | None = None
) -> Subscriber:
    return Subscriber(name, instance, frozenset(topics), target)


def test_static_members_come_first_in_the_order_of_their_instances() -> None:
    members = [subscriber("a", A), subscriber("z", A, instance="1"), subscriber("y", A, instance="2")]
    targets = assign_range(members, {A: 3})
    assert {name: indexes(target) for name, target in targets.items()} == {"z": [0], "y": [1], "a": [2]}


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Subscriber], dict[uuid.UUID, int]]:
    """Any members, subscriptions and former targets, some of them out of date."""
    counts = {topic: draw(st.integers(0, 5)) for topic in draw(st.sets(st.sampled_from([A, B, C])))}
    every = [name for letter in "abc" for name in sorted(partitions(letter, *range(6)))]
    owners = draw(st.lists(st.integers(0, 6), min_size=len(every), max_size=len(every)))
    homogeneous = draw(st.booleans())
    topics = draw(st.sets(st.sampled_from([A, B, C])))
    members = [
        Subscriber(
            f"m{number}",
            draw(st.sampled_from([None, f"i{number}"])),
            frozenset(topics if homogeneous else draw(st.sets(st.sampled_from([A, B, C])))),
            frozenset(name for name, owner in zip(every, owners, strict=True) if owner == number),
        )
        for number in range(draw(st.integers(0, 5)))
    ]
    return members, counts


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
@settings(max_examples=examples(100), deadline=None)
@given(group=groups())
def test_every_partition_with_a_subscriber_is_assigned_once(
    assignor: Assignor, group: tuple[list[Subscriber], dict[uuid.UUID, int]]
) -> None:
    members, counts = group
    targets = assignor(members, counts)
    assert targets.keys() == {member.member_id for member in members}
    assigned = Counter(name for target in targets.values() for name in target)
    wanted = {topic for member in members for topic in member.topic_ids}
    expected = {name for letter in "abc" for name in partitions(letter, *range(counts.get(topic_id(letter), 0)))}
    assert assigned == Counter(name for name in expected if name.topic_id in wanted)
    for member in members:
        assert {name.topic_id for name in targets[member.member_id]} <= member.topic_ids


@settings(max_examples=examples(100), deadline=None)
@given(group=groups())
def test_uniform_is_as_even_as_can_be_and_does_not_move_without_need(
    group: tuple[list[Subscriber], dict[uuid.UUID, int]],
) -> None:
    members, counts = group
    targets = assign_uniform(members, counts)
    by_id = {member.member_id: member for member in members}
    for giver, target in targets.items():
        for taker, other in targets.items():
            if any(name.topic_id in by_id[taker].topic_ids for name in target):
                assert len(target) <= len(other) + 1, (giver, taker)
    again = [member._replace(target=targets[member.member_id]) for member in members]
    assert assign_uniform(again, counts) == targets
