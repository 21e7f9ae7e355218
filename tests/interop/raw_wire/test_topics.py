"""CreateTopics and DeleteTopics: one table of responses for every broker, with Apache Kafka's codes and sentences."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import pytest

from tests.interop.wire import Wire

_CHARACTERS = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
_POSITIVE = "Number of partitions was set to an invalid non-positive value."
_COPIES = "Replication factor must be larger than 0, or -1 to use the default value."
_TOO_MANY_COPIES = (
    "Unable to replicate the partition 9 time(s): The target replication factor of 9 cannot be reached because only 1 "
    "broker(s) are registered or some brokers have all their log directories cordoned."
)
_MANUAL = "A manual partition assignment was specified, but {} was not set to -1."

_numbers = itertools.count(1)


class New(NamedTuple):
    """A topic to be created, with the response."""

    error: int
    message: str | None
    name: str = "a-new-one"
    partitions: int = 1
    replicas: int = 1
    assigned: tuple[tuple[int, tuple[int, ...]], ...] = ()
    times: int = 1


CREATED: Final = {
    "as it should be": New(0, None),
    "no partitions": New(37, _POSITIVE, partitions=0),
    "fewer than no partitions": New(37, _POSITIVE, partitions=-2),
    "no copies": New(38, _COPIES, replicas=0),
    "more copies than nodes": New(38, _TOO_MANY_COPIES, replicas=9),
    "too many partitions": New(44, "Excessively large number of partitions per request.", partitions=20_000),
    "no name": New(17, "Topic name is invalid: the empty string is not allowed", ""),
    "two dots": New(17, "Topic name is invalid: '..' is not allowed", ".."),
    "a slash": New(17, f"Topic name is invalid: 'a/b' {_CHARACTERS}", "a/b"),
    "a long name": New(
        17, f"Topic name is invalid: the length of '{'a' * 250}' is longer than the max allowed length 249", "a" * 250
    ),
    "the log of the controllers": New(
        42, "Creation of internal topic __cluster_metadata is prohibited.", "__cluster_metadata"
    ),
    "twice": New(42, "Duplicate topic name.", times=2),
    "partitions and their copies": New(42, _MANUAL.format("numPartitions"), replicas=-1, assigned=((0, (1,)),)),
    "their number and copies": New(42, _MANUAL.format("replication factor"), partitions=-1, assigned=((0, (1,)),)),
    "a partition left out": New(
        39,
        "partitions should be a consecutive 0-based integer sequence",
        partitions=-1,
        replicas=-1,
        assigned=((1, (1,)),),
    ),
    "a partition twice": New(
        39,
        "Found multiple manual partition assignments for partition 0",
        partitions=-1,
        replicas=-1,
        assigned=((0, (1,)), (0, (1,))),
    ),
}


@pytest.mark.parametrize("case", CREATED.values(), ids=CREATED)
def test_topics_that_are_created(wire: Wire, case: New) -> None:
    topic = {
        **{"name": case.name, "num_partitions": case.partitions, "replication_factor": case.replicas, "configs": []},
        "assignments": [{"partition_index": index, "broker_ids": list(to)} for index, to in case.assigned],
    }
    answer = wire.ask("CreateTopics", 7, topics=[topic] * case.times, timeout_ms=10_000, validate_only=True)
    assert [(row.error_code, row.error_message) for row in answer.topics] == [(case.error, case.message)]


ORDINARY: Mapping[str, Any] = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}


def test_names_alike(wire: Wire, topic: str) -> None:
    """'.' and '_' collide in the names of metrics."""

    def create(name: str, *, only_check: bool = False) -> tuple[int, str | None]:
        topics = [{"name": name, **ORDINARY}]
        (row,) = wire.ask("CreateTopics", 7, topics=topics, timeout_ms=10_000, validate_only=only_check).topics
        return row.error_code, row.error_message

    existing = f"{topic}.a_b"
    assert create(existing) == (0, None)
    for name in (f"{topic}_a_b", f"{topic}.a.b", f"{topic}_a.b"):
        assert create(name, only_check=True) == (17, f"Topic '{name}' collides with existing topic: {existing}")
    assert create(existing, only_check=True) == (36, f"Topic '{existing}' already exists.")
    assert create(f"{topic}-a_b", only_check=True) == (0, None)


def delete(wire: Wire, *named: tuple[str | None, UUID | None]) -> list[tuple[bool, bool, int, str | None]]:
    """The rows: whether they have a name and an id, and their errors."""
    topics = [{"name": name, "topic_id": topic_id} for name, topic_id in named]
    answer = wire.ask("DeleteTopics", 6, topics=topics, timeout_ms=10_000)
    return [
        (row.name is not None, bool(row.topic_id and row.topic_id.int), row.error_code, row.error_message)
        for row in answer.responses
    ]


@pytest.fixture
def created(wire: Wire) -> tuple[str, Any]:
    """A topic of this test's own, with its id."""
    name = f"to-be-deleted-{next(_numbers)}-{uuid4()}"
    topics = [{"name": name, **ORDINARY}]
    answer = wire.ask("CreateTopics", 7, topics=topics, timeout_ms=10_000, validate_only=False)
    return name, answer.topics[0].topic_id


def test_topics_that_are_not_clearly_named_are_not_deleted(wire: Wire, created: tuple[str, Any]) -> None:
    name, topic_id = created
    for named, answer in (
        ([(name, None)] * 2, (True, False, 42, "Duplicate topic name.")),
        ([(None, topic_id)] * 2, (False, True, 42, "Duplicate topic id.")),
        (
            [(name, None), (None, topic_id)],
            (True, True, 42, "The provided topic name maps to an ID that was already supplied."),
        ),
        ([(name, topic_id)], (True, True, 42, "You may not specify both topic name and topic id.")),
        ([(None, None)], (False, False, 42, "Neither topic name nor id were specified.")),
        ([(None, uuid4())], (False, True, 100, "This server does not host this topic ID.")),
        ([("no-such-topic", None)], (True, False, 3, "This server does not host this topic-partition.")),
    ):
        assert delete(wire, *named) == [answer]
    assert delete(wire, (None, topic_id)) == [(True, True, 0, None)]
