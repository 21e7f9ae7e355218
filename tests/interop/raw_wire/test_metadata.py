"""Metadata by name and by topic id, and the topics that it creates: one table of responses for every broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import pytest

from tests.emulator.api.raw_client import RawClient
from tests.interop.conftest import Broker
from tests.support.conditions import until
from tests.support.names import next_name

THE_NAME: Final = "<the topic's name>"
THE_ID: Final = UUID(int=1)
"""Stands for the id of the topic."""
ANOTHER_ID: Final = uuid4()


class Row(NamedTuple):
    """A topic of the response."""

    error: int
    name: str | None
    topic_id: UUID | None
    partitions: int


FOUND: Final = Row(0, THE_NAME, THE_ID, 1)
UNKNOWN_ID: Final = Row(100, None, ANOTHER_ID, 0)
NOT_A_NAME: Final = Row(17, "", None, 0)

SERVED: Final[dict[str, tuple[list[tuple[str | None, UUID | None]], list[Row]]]] = {
    "an id": ([(None, THE_ID)], [FOUND]),
    "an id with an empty name": ([("", THE_ID)], [FOUND]),
    "an id with its name": ([(THE_NAME, THE_ID)], [FOUND]),
    "an id with another name": ([("nonesuch", THE_ID)], [FOUND]),
    "an unknown id": ([(None, ANOTHER_ID)], [UNKNOWN_ID]),
    "an unknown id with an empty name": ([("", ANOTHER_ID)], [UNKNOWN_ID]),
    "an empty name": ([("", None)], [NOT_A_NAME]),
    "neither": ([(None, None)], [Row(-1, "", None, 0)]),
    "neither, beside a topic": ([(None, None), (THE_NAME, None)], [Row(-1, "", None, 0), Row(-1, THE_NAME, None, 0)]),
    "a name beside an id": ([("nonesuch", None), ("", THE_ID)], [FOUND]),
    "an id twice": ([("", THE_ID), ("", THE_ID)], [FOUND]),
    "a name twice": ([(THE_NAME, None), (THE_NAME, None)], [FOUND]),
}
"""Requests of v12 and later, as pairs of name and id, with the rows of their responses."""

BEFORE_IDS: Final[dict[str, tuple[list[tuple[str | None, UUID | None]], list[Row]]]] = {
    "an id": ([("", THE_ID)], [Row(42, "", THE_ID, 0)]),
    "an id with its name": ([(THE_NAME, THE_ID)], [Row(42, THE_NAME, THE_ID, 0)]),
    "an unknown id": ([("", ANOTHER_ID)], [Row(42, "", ANOTHER_ID, 0)]),
    "a name beside an id": ([("", THE_ID), (THE_NAME, None)], [Row(42, "", THE_ID, 0), Row(42, THE_NAME, None, 0)]),
    "an empty name": ([("", None)], [NOT_A_NAME]),
    "neither": ([(None, None)], [Row(42, "", None, 0)]),
    "neither, beside a topic": ([(None, None), (THE_NAME, None)], [Row(42, "", None, 0), Row(42, THE_NAME, None, 0)]),
}
"""The same for v10 and v11, which have the field and do not serve it (KIP-516)."""


class Topic(NamedTuple):
    """A topic with one partition, and a connection to its broker."""

    client: RawClient
    name: str
    topic_id: UUID

    def rows(self, version: int, requested: list[tuple[str | None, UUID | None]]) -> list[Row]:
        """Request topics; the topic's own name and id are shown as `THE_NAME` and `THE_ID`."""
        names, ids = {THE_NAME: self.name}, {THE_ID: self.topic_id}
        pairs = [
            (names.get(name or "", name), ids.get(topic_id or ANOTHER_ID, topic_id)) for name, topic_id in requested
        ]
        return [
            row._replace(
                name=THE_NAME if row.name == self.name else row.name,
                topic_id=THE_ID if row.topic_id == self.topic_id else row.topic_id,
            )
            for row in metadata(self.client, version, pairs)
        ]


def metadata(
    client: RawClient, version: int, requested: list[tuple[str | None, UUID | None]], *, creates: bool = False
) -> list[Row]:
    response = client.call(
        "metadata",
        version,
        topics=tuple({"name": name, "topic_id": topic_id} for name, topic_id in requested),
        allow_auto_topic_creation=creates,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )
    return [_row(topic) for topic in response.topics]


def _row(topic: Any) -> Row:
    return Row(int(topic.error_code), topic.name, getattr(topic, "topic_id", None), len(topic.partitions))


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture(scope="module")
def topic(client: RawClient) -> Topic:
    name = next_name("described")
    metadata(client, 9, [(name, None)], creates=True)
    until(lambda: metadata(client, 9, [(name, None)]) == [Row(0, name, None, 1)])
    return Topic(client, name, client.topic_id(name))


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("case", SERVED)
def test_topics_by_name_or_id(topic: Topic, version: int, case: str) -> None:
    requested, expected = SERVED[case]
    assert topic.rows(version, requested) == expected


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("case", BEFORE_IDS)
def test_ids_that_a_version_does_not_serve(topic: Topic, version: int, case: str) -> None:
    requested, expected = BEFORE_IDS[case]
    assert topic.rows(version, requested) == expected


@pytest.mark.parametrize("version", [3, 4, 9, 12])
def test_the_request_that_creates_a_topic_does_not_find_it_yet(client: RawClient, version: int) -> None:
    name = next_name("created")
    assert metadata(client, version, [(name, None)], creates=True) == [Row(3, name, None, 0)]
    until(lambda: metadata(client, 4, [(name, None)]) == [Row(0, name, None, 1)])


def test_a_name_like_another_is_never_created(client: RawClient) -> None:
    name = next_name("alike")
    metadata(client, 9, [(f"{name}.a_b", None)], creates=True)
    until(lambda: metadata(client, 9, [(f"{name}.a_b", None)]) == [Row(0, f"{name}.a_b", None, 1)])
    for _ in range(2):
        assert metadata(client, 9, [(f"{name}_a.b", None)], creates=True) == [Row(3, f"{name}_a.b", None, 0)]


def test_the_log_of_the_controllers_is_never_created(client: RawClient) -> None:
    name = "__cluster_metadata"
    for _ in range(2):
        assert metadata(client, 9, [(name, None)], creates=True) == [Row(3, name, None, 0)]
