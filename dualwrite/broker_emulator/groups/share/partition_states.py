"""The share-partitions of a group whose state is initialized, exists, or is deleted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from dualwrite.broker_emulator.groups.consumer.topics import Topics
from dualwrite.broker_emulator.groups.share.group import ShareGroup, StateTopic

T = TypeVar("T")


def with_subscribed(group: ShareGroup, topics: Topics) -> ShareGroup:
    """Return the group with the subscribed partitions without state as initializing.

    If the state of one of them was being deleted, the deletion stops; its coordinator may have died.
    """
    added: dict[UUID, StateTopic] = {}
    for name in group.subscribed_topics:
        topic = topics.get(name)
        if topic is None:
            continue
        known = (group.initializing, group.initialized)
        done = frozenset().union(*(of[topic.topic_id].partitions for of in known if topic.topic_id in of))
        new = frozenset(range(topic.partitions)) - done
        if new:
            added[topic.topic_id] = StateTopic(topic.name, new)
    return with_initializing(group, added) if added else group


def with_initializing(group: ShareGroup, added: Mapping[UUID, StateTopic]) -> ShareGroup:
    """Return the group with these partitions, too, as initializing. Their topics are no longer being deleted."""
    initializing = dict(group.initializing)
    for topic_id, topic in added.items():
        so_far = initializing[topic_id].partitions if topic_id in initializing else frozenset()
        initializing[topic_id] = StateTopic(topic.name, so_far | topic.partitions)
    return replace(group, initializing=initializing, deleting=_except(group.deleting, initializing))


def with_initialized(group: ShareGroup, done: Mapping[UUID, StateTopic]) -> ShareGroup:
    """Return the group with partitions that have state now, except those whose state was deleted meanwhile."""
    initializing, initialized = dict(group.initializing), dict(group.initialized)
    for topic_id, topic in done.items():
        if topic_id not in initializing:
            continue
        waiting = initializing.pop(topic_id).partitions
        if waiting - topic.partitions:
            initializing[topic_id] = StateTopic(topic.name, waiting - topic.partitions)
        known = initialized[topic_id].partitions if topic_id in initialized else frozenset()
        initialized[topic_id] = StateTopic(topic.name, known | (waiting & topic.partitions))
    return replace(group, initializing=initializing, initialized=initialized)


def with_marks(
    group: ShareGroup, topic_ids: Iterable[UUID], counts: Mapping[UUID, int]
) -> tuple[ShareGroup, Mapping[UUID, StateTopic]]:
    """Return the group with the topics that have state marked as deleting, and the partitions of these topics.

    `counts` has the number of partitions of each existing topic.
    """
    found = {topic_id: _topic_with_state(group, topic_id, counts.get(topic_id, 0)) for topic_id in topic_ids}
    having = {topic_id: topic for topic_id, topic in found.items() if topic is not None}
    marked = replace(
        group,
        initializing=_except(group.initializing, having),
        initialized=_except(group.initialized, having),
        deleting={**group.deleting, **{topic_id: topic.name for topic_id, topic in having.items()}},
    )
    return marked, having


def without_marks(group: ShareGroup, deleted: Mapping[UUID, StateTopic]) -> ShareGroup:
    """Return the group without the marks of topics whose state is deleted."""
    return replace(group, deleting=_except(group.deleting, deleted))


def _except(topics: Mapping[UUID, T], removed: Mapping[UUID, StateTopic]) -> dict[UUID, T]:
    return {topic_id: topic for topic_id, topic in topics.items() if topic_id not in removed}


def _topic_with_state(group: ShareGroup, topic_id: UUID, count: int) -> StateTopic | None:
    """Return the partitions of a topic that have state or may have it; None if there are none."""
    of = [known[topic_id] for known in (group.initialized, group.initializing) if topic_id in known]
    partitions = frozenset().union(*(topic.partitions for topic in of))
    if topic_id in group.deleting:
        return StateTopic(group.deleting[topic_id], partitions | frozenset(range(count)))
    return StateTopic(of[0].name, partitions) if of else None
