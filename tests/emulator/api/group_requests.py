"""Requests of members of groups, and of their administrators."""

from __future__ import annotations

import struct
from typing import Any

from tests.emulator.api.raw_client import RawClient, milliseconds

SESSION_MS = 10_000

SUBSCRIPTION = struct.pack(">hih1si", 0, 1, 1, b"t", -1)


def join_fields(version: int, group_id: str = "g", member_id: str = "", **values: Any) -> dict[str, Any]:
    defaults = {
        "group_id": group_id,
        "member_id": member_id,
        "session_timeout": milliseconds(SESSION_MS),
        "rebalance_timeout": milliseconds(60_000),
        "protocol_type": "consumer",
        "protocols": ({"name": "range", "metadata": SUBSCRIPTION},),
    }
    return {**defaults, **values}


def join(client: RawClient, group_id: str = "g", member_id: str = "", *, version: int = 9, **values: Any) -> Any:
    """Join, and join again with the id that a new member is given."""
    answer = client.call("join_group", version, **join_fields(version, group_id, member_id, **values))
    if answer.error_code == 79:
        return join(client, group_id, answer.member_id, version=version, **values)
    return answer


def sync_fields(joined: Any, version: int = 5) -> dict[str, Any]:
    """Return the fields of a SyncGroup request; the leader assigns every member its own name."""
    assignments = tuple(
        {"member_id": member.member_id, "assignment": member.member_id.encode()} for member in joined.members
    )
    member = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
    return {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": assignments}


def sync(client: RawClient, joined: Any, *, version: int = 5, **values: Any) -> Any:
    return client.call("sync_group", version, **{**sync_fields(joined, version), **values})


def heartbeat(client: RawClient, member: Any, *, group_id: str = "g", version: int = 4, **values: Any) -> int:
    fields = {"group_id": group_id, "generation_id": member.generation_id, "member_id": member.member_id}
    return int(client.call("heartbeat", version, **{**fields, **values}).error_code)


def leave(client: RawClient, *members: tuple[str, str | None], version: int = 5, group_id: str = "g") -> list[int]:
    if version < 3:
        return [int(client.call("leave_group", version, group_id=group_id, member_id=members[0][0]).error_code)]
    leaving = tuple({"member_id": name, "group_instance_id": instance} for name, instance in members)
    response = client.call("leave_group", version, group_id=group_id, members=leaving)
    assert response.error_code == 0
    return [int(member.error_code) for member in response.members]


def describe(client: RawClient, group_id: str = "g", *, version: int = 6) -> Any:
    response = client.call("describe_groups", version, groups=(group_id,), include_authorized_operations=False)
    return response.groups[0]


def listed(client: RawClient, **filters: Any) -> list[tuple[str, str, str, str]]:
    response = client.call("list_groups", 5, **{"states_filter": (), "types_filter": (), **filters})
    assert response.error_code == 0
    return [(row.group_id, row.protocol_type, row.group_state, row.group_type) for row in response.groups]


def delete(client: RawClient, *groups: str) -> list[int]:
    response = client.call("delete_groups", 2, groups_names=groups)
    assert [row.group_id for row in response.results] == list(groups)
    return [int(row.error_code) for row in response.results]


def delete_offset(client: RawClient, topic: str, group_id: str = "g", partition: int = 0) -> tuple[int, list[int]]:
    partitions = ({"partition_index": partition},)
    topics = ({"name": topic, "partitions": partitions},)
    response = client.call("offset_delete", 0, group_id=group_id, topics=topics)
    return int(response.error_code), [int(row.error_code) for part in response.topics for row in part.partitions]
