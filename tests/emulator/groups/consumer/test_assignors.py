"""The assignors: balance, stickiness and completeness for any members and topics, and Kafka's order of ranges."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker_emulator.groups.consumer.assignors import (
    ASSIGNORS,
    Assignor,
    Subscriber,
    assign_range,
    assign_uniform,
)
from dualwrite.broker_emulator.groups.consumer.group import Assignment

from .members import partitions, topic_id

A, B, C = (topic_id(name) for name in "abc")


def indexes(target: Assignment, topic: uuid.UUID = A) -> list[int]:
    return sorted(name.partition for name in target if name.topic_id == topic)


def subscriber(
    name: str, *topics: uuid.UUID, target: Assignment = frozenset(), instance: str | None = None
) -> Subscriber:
    return Subscriber(name, instance, frozenset(topics), target)


def test_ranges_are_neighbours_and_the_first_get_one_more() -> None:
    targets = assign_range([subscriber("m2", A, B), subscriber("m1", A, B)], {A: 5, B: 2})
    assert (indexes(targets["m1"]), indexes(targets["m2"])) == ([0, 1, 2], [3, 4])
    assert (indexes(targets["m1"], B), indexes(targets["m2"], B)) == ([0], [1])


def test_static_members_come_first_in_the_order_of_their_instances() -> None:
    members = [subscriber("a", A), subscriber("z", A, instance="1"), subscriber("y", A, instance="2")]
    targets = assign_range(members, {A: 3})
    assert {name: indexes(target) for name, target in targets.items()} == {"z": [0], "y": [1], "a": [2]}


def test_a_range_with_different_subscriptions_counts_subscribers_only() -> None:
    targets = assign_range([subscriber("m1", A), subscriber("m2", A, B), subscriber("m3", B)], {A: 3, B: 3})
    assert {name: (indexes(t), indexes(t, B)) for name, t in targets.items()} == {
        "m1": ([0, 1], []),
        "m2": ([2], [0, 1]),
        "m3": ([], [2]),
    }


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


@given(partition_count=st.integers(1, 30), before=st.integers(1, 6), after=st.integers(1, 6))
def test_a_group_that_grows_or_shrinks_moves_as_few_as_possible(partition_count: int, before: int, after: int) -> None:
    members = [subscriber(f"m{number}", A) for number in range(before)]
    targets = assign_uniform(members, {A: partition_count})
    grown = [subscriber(f"m{number}", A, target=targets.get(f"m{number}", frozenset())) for number in range(after)]
    moved = assign_uniform(grown, {A: partition_count})
    kept = sum(len(moved[name] & target) for name, target in targets.items() if name in moved)
    least, more = divmod(partition_count, after)
    sizes = sorted((len(targets[f"m{number}"]) for number in range(min(before, after))), reverse=True)
    assert kept == sum(min(size, least + (place < more)) for place, size in enumerate(sizes))
