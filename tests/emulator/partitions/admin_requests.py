"""The requests of this folder, in their newest versions, and their responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.emulator.api.raw_client import RawClient, milliseconds

_TIMEOUT = milliseconds(10_000)
PREFERRED, UNCLEAN = 0, 1


class Outcome(NamedTuple):
    """The error of one topic, partition or entity."""

    error: int
    message: str | None = None


class Move(NamedTuple):
    """One reassignment under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def create_topic(client: RawClient, name: str, assignments: Sequence[Sequence[int]]) -> None:
    given = tuple({"partition_index": index, "broker_ids": tuple(nodes)} for index, nodes in enumerate(assignments))
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": given, "configs": ()}
    response = client.call("create_topics", 7, topics=(topic,), timeout=_TIMEOUT, validate_only=False)
    assert response.topics[0].error_code == 0, response


def create_partitions(
    client: RawClient,
    topics: Mapping[str, int] | Sequence[tuple[str, int]],
    assignments: Sequence[Sequence[int]] | None = None,
    *,
    validate_only: bool = False,
) -> dict[str, Outcome]:
    given = None
    if assignments is not None:
        given = tuple({"broker_ids": tuple(nodes)} for nodes in assignments)
    counts = topics.items() if isinstance(topics, Mapping) else topics
    wanted = tuple({"name": name, "count": count, "assignments": given} for name, count in counts)
    response = client.call("create_partitions", 3, topics=wanted, timeout=_TIMEOUT, validate_only=validate_only)
    return {row.name: Outcome(int(row.error_code), row.error_message) for row in response.results}


def elect(
    client: RawClient, kind: int, partitions: Mapping[str, Sequence[int]] | None
) -> dict[tuple[str, int], Outcome]:
    named = None
    if partitions is not None:
        named = tuple({"topic": topic, "partitions": tuple(each)} for topic, each in partitions.items())
    response = client.call("elect_leaders", 2, election_type=kind, topic_partitions=named, timeout=_TIMEOUT)
    return {
        (topic.topic, row.partition_id): Outcome(int(row.error_code), row.error_message)
        for topic in response.replica_election_results
        for row in topic.partition_result
    }


def reassign(
    client: RawClient, topic: str, partition: int, replicas: Sequence[int] | None, *, may_change_factor: bool = True
) -> Outcome:
    nodes = None if replicas is None else tuple(replicas)
    row = {"partition_index": partition, "replicas": nodes}
    response = client.call(
        "alter_partition_reassignments",
        1,
        topics=({"name": topic, "partitions": (row,)},),
        timeout=_TIMEOUT,
        allow_replication_factor_change=may_change_factor,
    )
    assert response.error_code == 0
    answered = response.responses[0].partitions[0]
    return Outcome(int(answered.error_code), answered.error_message)


def reassignments(client: RawClient, partitions: Mapping[str, Sequence[int]] | None = None) -> list[Move]:
    named = None
    if partitions is not None:
        named = tuple({"name": topic, "partition_indexes": tuple(each)} for topic, each in partitions.items())
    response = client.call("list_partition_reassignments", 0, topics=named, timeout=_TIMEOUT)
    assert response.error_code == 0
    return [
        Move(topic.name, row.partition_index, row.replicas, row.adding_replicas, row.removing_replicas)
        for topic in response.topics
        for row in topic.partitions
    ]


def describe(client: RawClient, topics: Sequence[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    begin = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    names = tuple({"name": name} for name in topics)
    return client.call("describe_topic_partitions", 0, topics=names, response_partition_limit=limit, cursor=begin)


def log_dirs(client: RawClient, partitions: Mapping[str, Sequence[int]] | None = None, version: int = 4) -> Any:
    named = None
    if partitions is not None:
        named = tuple({"topic": topic, "partitions": tuple(each)} for topic, each in partitions.items())
    return client.call("describe_log_dirs", version, topics=named)


def move_to_directory(client: RawClient, path: str, topic: str, partition: int) -> int:
    named = ({"name": topic, "partitions": (partition,)},)
    response = client.call("alter_replica_log_dirs", 2, dirs=({"path": path, "topics": named},))
    return int(response.results[0].partitions[0].error_code)


def alter_quotas(
    client: RawClient,
    entity: Sequence[tuple[str, str | None]],
    changes: Sequence[tuple[str, float | None]],
    *,
    times: int = 1,
    validate_only: bool = False,
) -> Outcome:
    entry = {
        "entity": tuple({"entity_type": kind, "entity_name": name} for kind, name in entity),
        "ops": tuple({"key": key, "value": float(value or 0), "remove": value is None} for key, value in changes),
    }
    response = client.call("alter_client_quotas", 1, entries=(entry,) * times, validate_only=validate_only)
    (row,) = response.entries
    return Outcome(int(row.error_code), row.error_message)


def describe_quotas(
    client: RawClient, components: Sequence[tuple[str, int, str | None]], *, strict: bool = False
) -> tuple[Outcome, dict[str, dict[str, float]]]:
    """The quotas that are set, by entity as text."""
    wanted = tuple({"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components)
    response = client.call("describe_client_quotas", 1, components=wanted, strict=strict)
    found = {
        ", ".join(sorted(f"{part.entity_type} {part.entity_name}" for part in entry.entity)): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or ()
    }
    return Outcome(int(response.error_code), response.error_message), found
