"""Topics: list, create, add partitions, delete."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.cluster.topics import Topic, why_not_a_topic_name
from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.errors import as_conflict, bad_request, conflict, not_found
from dualwrite.broker_emulator.control.shapes import AtLeast, AtMost
from dualwrite.broker_emulator.text import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A new topic. Without a replication factor every node has a replica."""

    name: str
    partitions: Annotated[int, AtLeast(1), AtMost(10_000)] = 1
    replication_factor: Annotated[int, AtLeast(1)] | None = None
    configs: Annotated[dict[str, str] | None, "By Kafka's names, such as cleanup.policy."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCount:
    """The new number of partitions of a topic."""

    count: Annotated[int, AtMost(10_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A topic."""

    name: str
    topic_id: str
    partitions: int
    is_internal: bool
    configs: Annotated[dict[str, str | None], "The topic's own settings."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList:
    """All topics, by name."""

    topics: tuple[TopicView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPath:
    """A topic by its name."""

    topic: str


def _view(topic: Topic) -> TopicView:
    return TopicView(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=len(topic.partitions),
        is_internal=topic.is_internal,
        configs=dict(topic.configs),
    )


def find(controlled: ControlledEmulator, name: str) -> Topic:
    """Return a topic. Raises ControlError if it does not exist."""
    topics = controlled.cluster.topics
    if name not in topics:
        known = sorted(topic.name for topic in topics.values() if not topic.is_internal)
        raise not_found(f"there is no topic {name!r}{did_you_mean(name, known)}", known)
    return topics[name]


async def list_all(controlled: ControlledEmulator) -> TopicList:
    topics = controlled.cluster.topics
    return TopicList(topics=tuple(_view(topics[name]) for name in sorted(topics)))


async def show(controlled: ControlledEmulator, path: TopicPath) -> TopicView:
    return _view(find(controlled, path.topic))


async def create(controlled: ControlledEmulator, body: NewTopic) -> TopicView:
    problem = why_not_a_topic_name(body.name)
    if problem is not None:
        raise bad_request(problem)
    cluster = controlled.cluster
    async with cluster.changes:
        if body.name in cluster.topics:
            raise conflict(f"there is already a topic {body.name!r}")
        creation = cluster.topic_creation(
            body.name, body.partitions, configs=body.configs, replication_factor=body.replication_factor
        )
        try:
            return _view(await cluster.changes.make(creation))
        except ValueError as error:
            raise bad_request(str(error)) from None


async def create_partitions(controlled: ControlledEmulator, path: TopicPath, body: NewCount) -> TopicView:
    changes = controlled.cluster.changes
    async with changes:
        topic = find(controlled, path.topic)
        with as_conflict():
            await changes.make(controlled.operations.partition_creation(topic.name, body.count))
        return _view(topic)


async def delete(controlled: ControlledEmulator, path: TopicPath) -> TopicView:
    changes = controlled.cluster.changes
    async with changes:
        topic = find(controlled, path.topic)
        if topic.is_internal:
            raise conflict(f"{topic.name} belongs to the coordinators and cannot be deleted")
        view = _view(topic)
        await changes.make(controlled.cluster.topic_deletion(topic.name))
        return view


_ONE = "/v1/topics/{topic}"
_ERRORS = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)

ENDPOINTS = (
    Endpoint("GET", "/v1/topics", list_all, "All topics"),
    Endpoint("POST", "/v1/topics", create, "Create a topic", (HTTPStatus.CONFLICT,), HTTPStatus.CREATED),
    Endpoint("GET", _ONE, show, "One topic", (HTTPStatus.NOT_FOUND,)),
    Endpoint("PUT", _ONE + "/partitions", create_partitions, "Add partitions to a topic", _ERRORS),
    Endpoint("DELETE", _ONE, delete, "Delete a topic", _ERRORS),
)
