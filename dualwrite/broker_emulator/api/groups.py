"""Groups in requests: found, described, listed, deleted."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.group import AnyGroup, Assignment, ConsumerGroup, HeartbeatResponse
from dualwrite.broker_emulator.groups.consumer.topics import by_id_and_index
from dualwrite.broker_emulator.groups.group import Group, GroupState, Member
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.groups.share.group import ShareGroup
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR, AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, Steps, mapped, selected

_MILLISECOND = timedelta(milliseconds=1)


def group_shard(call: NodeCall, group_id: str, *, allow_empty_id: bool = False) -> GroupShard:
    """Return this node's shard of the group.

    Raises RefusedError: 24 for the id "", 14 while loading, 16 on another node.
    """
    shard = call.node.groups.shard(group_id) if group_id or allow_empty_id else ErrorCode.invalid_group_id
    if isinstance(shard, ErrorCode):
        raise RefusedError(shard)
    return shard


def milliseconds(duration: timedelta) -> int:
    """Return a duration in whole milliseconds."""
    return duration // _MILLISECOND


# --- groups with heartbeats (KIP-848, KIP-932) ------------------------------------------------------------------------


def refused_heartbeat(call: NodeCall, error: ErrorCode, message: str | None = None) -> Any:
    """Build the response to a refused heartbeat."""
    return call.new.response(
        error_code=error,
        error_message=message,
        member_id=None,
        member_epoch=0,
        heartbeat_interval=timedelta(0),
        assignment=None,
    )


def accepted_heartbeat(call: NodeCall, answer: HeartbeatResponse) -> Any:
    """Build the response to an accepted heartbeat."""
    return call.new.response(
        error_code=ErrorCode.none,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=timedelta(milliseconds=answer.heartbeat_interval_ms),
        assignment=None if answer.assignment is None else _assignment(call, answer.assignment),
    )


HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."


def may_describe_all(call: NodeCall, topic_ids: Iterable[uuid.UUID]) -> bool:
    """Return whether the client may describe each of the topics that still exist."""
    topics = (call.cluster.topic_by_id(topic_id) for topic_id in topic_ids)
    return all(
        call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name, is_logged=False)
        for topic in topics
        if topic is not None
    )


async def require_descriptions(call: NodeCall, topics: Sequence[str]) -> None:
    """Raise RefusedError unless the client may describe all of the topics."""
    pace = Pace()
    for name in topics if call.cluster.authorizer else ():
        await pace.keep()
        call.require(AclOperation.DESCRIBE, ResourceType.TOPIC, name)


def described_assignment(call: NodeCall, assignment: Assignment) -> Steps[Any]:
    """Describe the partitions of a member, one topic per step; deleted topics are omitted."""
    rows = []
    for topic_id, indexes in _by_topic(assignment).items():
        topic = call.cluster.topic_by_id(topic_id)
        if topic is not None:
            row = call.new.TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=tuple(indexes))
            rows.append(row)
        yield
    return call.new.Assignment(topic_partitions=tuple(rows))


def _by_topic(assignment: Assignment) -> dict[uuid.UUID, list[int]]:
    by_topic: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(assignment, key=by_id_and_index):
        by_topic.setdefault(topic_id, []).append(index)
    return by_topic


def _assignment(call: NodeCall, assignment: Assignment) -> Any:
    topics = tuple(
        call.new.TopicPartitions(topic_id=topic_id, partitions=tuple(indexes))
        for topic_id, indexes in _by_topic(assignment).items()
    )
    return call.new.Assignment(topic_partitions=topics)


def undescribed_group(call: NodeCall, group_id: str, error: ErrorCode, message: str | None = None) -> Any:
    """Build the part of a response for a group that is not described."""
    return call.new.DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
        authorized_operations=NOT_ASKED_FOR,
    )


def refuse_group_descriptions(call: NodeCall, error: ErrorCode) -> Any:
    """Build the response to a refused ConsumerGroupDescribe or ShareGroupDescribe."""
    return described_groups(call, [undescribed_group(call, group_id, error) for group_id in call.request.group_ids])


def described_groups(call: NodeCall, rows: list[Any]) -> Any:
    """Build the response that describes groups."""
    return call.new.response(groups=tuple(rows))


_UNKNOWN_GROUP_VERSION = 6


async def handle_describe_groups(call: NodeCall) -> Any:
    """Serve DescribeGroups (key 15), versions 0-6.

    State, protocol and members of groups.

    * v3 authorized operations (KIP-430); v4 group instance ids (KIP-345); v5 flexible; v6 an unknown group, or one of
      KIP-848, is 69 with a message (KIP-1043). Before, it is Dead without an error.
    * Only a stable group has metadata; while it rebalances, members have their last assignment (kafka-3.9: none).
    * Group of another node 16; while loading 14.
    * Access: DESCRIBE on the group (30).
    * v6 is hidden by the profile kafka-3.9.
    """
    return described_groups(call, await mapped(lambda group_id: _describe(call, group_id), call.request.groups))


def _describe(call: NodeCall, group_id: str) -> Any:
    try:
        call.require(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
        shard = group_shard(call, group_id, allow_empty_id=True)
    except RefusedError as refused:
        return _described(call, group_id, error_code=refused.error)
    group = shard.groups.get(group_id)
    if shard.has_share_group(group_id) or isinstance(group, ConsumerGroup):
        return _unknown(call, group_id, f"Group {group_id} is not a classic group.")
    if group is None:
        return _unknown(call, group_id, f"Group {group_id} not found.")
    return _described(
        call,
        group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if group.is_in(GroupState.STABLE) else "",
        members=tuple(_member(call, group, member) for member in group.members.values()),
    )


def _member(call: NodeCall, group: Group, member: Member) -> Any:
    is_stable = group.is_in(GroupState.STABLE)
    shows_last = call.cluster.config.behaviours.assignments_outlast_generations
    return call.new.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
        member_assignment=member.assignment if is_stable or shows_last else b"",
    )


def _unknown(call: NodeCall, group_id: str, message: str) -> Any:
    if call.version < _UNKNOWN_GROUP_VERSION:
        return _described(call, group_id, group_state=GroupState.DEAD)
    return _described(
        call,
        group_id,
        error_code=ErrorCode.group_id_not_found,
        error_message=message,
        group_state=GroupState.DEAD,
    )


def _described(call: NodeCall, group_id: str, **values: Any) -> Any:
    is_requested = getattr(call.request, "include_authorized_operations", False)
    is_included = is_requested and values.get("error_code", ErrorCode.none) is ErrorCode.none
    operations = call.authorized_operations(ResourceType.GROUP, group_id) if is_included else NOT_ASKED_FOR
    defaults = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
        "authorized_operations": operations,
    }
    return call.new.DescribedGroup(group_id=group_id, **{**defaults, **values})


def refuse_describe_groups(call: NodeCall, error: ErrorCode) -> Any:
    rows = [_described(call, group_id, error_code=error) for group_id in call.request.groups]
    return described_groups(call, rows)


async def handle_list_groups(call: NodeCall) -> Any:
    """Serve ListGroups (key 16), versions 0-5.

    The groups that this node coordinates; clients send it to every node.

    * v3 flexible; v4 filter by state (KIP-518); v5 filter by type (KIP-848). Filters ignore case; an unknown state or
      type matches no group.
    * Access: without DESCRIBE on the cluster, only groups that the client may DESCRIBE are listed.
    * While groups of this node are loading, the response is 14.
    """
    groups = call.node.groups
    if groups.is_loading:
        return await call.refused(ErrorCode.coordinator_load_in_progress)
    states = _lowered(getattr(call.request, "states_filter", ()))
    types = _lowered(getattr(call.request, "types_filter", ()))
    listed: list[AnyGroup | ShareGroup] = [group for shard in groups.shards() for group in shard.groups.values()]
    listed += [group for shard in groups.shards() for group in shard.share.groups.values()]
    shows_all = call.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER, is_logged=False)

    def is_wanted(group: AnyGroup | ShareGroup) -> bool:
        is_named = (not states or group.state.lower() in states) and (not types or _type(group) in types)
        return is_named and (shows_all or _is_shown(call, group))

    wanted = await selected(is_wanted, listed)
    rows = await mapped(lambda group: _listed_row(call, group), wanted)
    return call.new.response(error_code=ErrorCode.none, groups=tuple(rows))


def _type(group: AnyGroup | ShareGroup) -> str:
    if isinstance(group, ShareGroup):
        return "share"
    return "consumer" if isinstance(group, ConsumerGroup) else "classic"


def _is_shown(call: NodeCall, group: AnyGroup | ShareGroup) -> bool:
    return call.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id, is_logged=False)


def _lowered(names: Any) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in names)


def _listed_row(call: NodeCall, group: AnyGroup | ShareGroup) -> Any:
    return call.new.ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state,
        group_type=_type(group),
    )


def refuse_list_groups(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, groups=())


async def handle_delete_groups(call: NodeCall) -> Any:
    """Serve DeleteGroups (key 42), versions 0-3.

    Deletes groups without members, with all their offsets, including those pending in transactions, and share state.

    * v2 flexible; v3 has a message beside the error, which Kafka leaves empty for such groups (observed: 4.4.0). v3 is
      hidden by the profiles kafka-4.3 and kafka-3.9.
    * Access: DELETE on the group (30).
    * Unknown group 69; group with members 68; group of another node 16; while loading 14.
    """
    errors: dict[str, ErrorCode] = {}
    pace = Pace()
    for group_id in dict.fromkeys(call.request.groups_names):
        await pace.keep()
        try:
            errors[group_id] = await _delete(call, group_id)
        except RefusedError as refused:
            errors[group_id] = refused.error
    return _deleted(call, errors)


async def _delete(call: NodeCall, group_id: str) -> ErrorCode:
    call.require(AclOperation.DELETE, ResourceType.GROUP, group_id)
    shard = group_shard(call, group_id, allow_empty_id=True)
    if shard.has_share_group(group_id):
        return await shard.share.delete_group(group_id)
    return shard.offsets.delete_group(group_id)


def _deleted(call: NodeCall, errors: Mapping[str, ErrorCode]) -> Any:
    new = call.new.DeletableGroupResult
    return call.new.response(results=tuple(new(group_id=group_id, error_code=errors[group_id]) for group_id in errors))


def refuse_delete_groups(call: NodeCall, error: ErrorCode) -> Any:
    return _deleted(call, dict.fromkeys(call.request.groups_names, error))
