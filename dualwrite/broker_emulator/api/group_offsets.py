"""Offsets of groups fetched and deleted."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import allowed_topic, topic_reference
from dualwrite.broker_emulator.groups.offsets import GroupOffsets, delete_offsets_error, fetch_error
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, Steps, at_once, in_slices
from dualwrite.broker_emulator.topics.topics import TopicPartition

_MANY_GROUPS_VERSION = 8
_MEMBER_VERSION = 9
_TOPIC_ID_VERSION = 10


async def handle_offset_fetch(call: NodeCall) -> Any:
    """Serve OffsetFetch (key 9), versions 1-10.

    Committed offsets of one group or, from v8 on, of several.

    * v2 top-level error, and null topics for all of them; v5 leader epoch; v6 flexible; v7 RequireStable (KIP-447): a
      partition with an offset pending in a transaction is 88; v8 several groups (KIP-709); v9 member ids and epochs
      (KIP-848); v10 topic ids (KIP-516).
    * Access: DESCRIBE on the group (30) and on the topics (29); if all offsets are requested, those of forbidden topics
      are omitted.
    * From v9 on, a consumer group (KIP-848) checks the member that the request names: unknown 25, another epoch 113 (22
      for a member of the classic protocol).
    * Without an offset: offset -1, metadata "", no error. Without RequireStable: the last committed offset, even if a
      newer one is pending.
    * v10 is hidden by the profile kafka-3.9.
    """
    request = call.request
    if call.version >= _MANY_GROUPS_VERSION:
        pace = Pace()
        groups = []
        for group in request.groups:
            await pace.keep()
            groups.append(await _group_in_slices(call, group, _offsets_for_member(call, group)))
        return _many(call, groups)
    found = _offsets(call, request.group_id)
    topics = await in_slices(_topics(call, request.topics, found, "")) if _has_rows(call, found) else ()
    return _single(call, topics, found)


async def _group_in_slices(call: NodeCall, group: Any, found: _Found) -> Any:
    """Return the row of a group, pausing for other requests if it has very many partitions."""
    if isinstance(found, ErrorCode):
        return _group(call, group, found)
    topics = await in_slices(_topics(call, group.topics, found, "s"))
    return call.new.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=ErrorCode.none)


_Found = GroupOffsets | ErrorCode
"""The offsets of a group, or the error."""


def _offsets(call: NodeCall, group_id: str) -> _Found:
    """Return a snapshot of the offsets: while a long response is made, a transaction may commit others."""
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
        return ErrorCode.group_authorization_failed
    shard = call.node.groups.shard(group_id)
    return shard if isinstance(shard, ErrorCode) else shard.offsets.table.of_group(group_id)


def _offsets_for_member(call: NodeCall, group: Any) -> _Found:
    """Return the offsets or, from v9 on, the error of the member that the request names (KIP-848)."""
    found = _offsets(call, group.group_id)
    shard = call.node.groups.shard(group.group_id)
    if isinstance(found, ErrorCode) or isinstance(shard, ErrorCode) or call.version < _MEMBER_VERSION:
        return found
    error = fetch_error(shard.groups.get(group.group_id), group.member_id, group.member_epoch)
    return found if error is ErrorCode.none else error


def _has_rows(call: NodeCall, found: _Found) -> bool:
    """Return whether the response for one group names partitions: in v1, only they have an error."""
    return not isinstance(found, ErrorCode) or call.version == 1


def _single(call: NodeCall, topics: tuple[Any, ...], found: _Found) -> Any:
    error = found if isinstance(found, ErrorCode) else ErrorCode.none
    return call.new.response(topics=topics, error_code=error)


def _group(call: NodeCall, group: Any, error: ErrorCode) -> Any:
    return call.new.OffsetFetchResponseGroup(group_id=group.group_id, topics=(), error_code=error)


def _many(call: NodeCall, groups: list[Any]) -> Any:
    return call.new.response(groups=tuple(groups))


def _topics(call: NodeCall, requested: Any, found: _Found, suffix: str) -> Steps[tuple[Any, ...]]:
    """Make the rows of one group. `suffix` is "s" in the response for several groups, whose types have other names."""
    new = vars(call.new)
    topic_type, partition_type = new[f"OffsetFetchResponseTopic{suffix}"], new[f"OffsetFetchResponsePartition{suffix}"]
    rows = _all_of_group(call, found) if requested is None else _requested(call, requested)
    topics = []
    for reference, names, topic_error in rows:
        partitions = []
        for name in names:
            offset = _offset(call, name, topic_error or found)
            partitions.append(partition_type(partition_index=name.partition, **offset))
            yield
        topics.append(topic_type(**reference, partitions=tuple(partitions)))
        yield
    return tuple(topics)


_Row = tuple[dict[str, Any], Iterable[TopicPartition], ErrorCode]


def _requested(call: NodeCall, requested: Iterable[Any]) -> Iterable[_Row]:
    for element in requested:
        topic, error = allowed_topic(call, element, AclOperation.DESCRIBE)
        name = topic.name if topic is not None else getattr(element, "name", "")
        names = map(partial(TopicPartition, name), element.partition_indexes)
        if error is ErrorCode.unknown_topic_or_partition:
            error = ErrorCode.none  # by name, an unknown topic has no offset
        yield topic_reference(element), names, error


def _all_of_group(call: NodeCall, found: _Found) -> Iterable[_Row]:
    by_topic: dict[str, list[TopicPartition]] = {}
    for name in () if isinstance(found, ErrorCode) else found.partitions():
        by_topic.setdefault(name.topic, []).append(name)
    for topic_name, names in by_topic.items():
        topic = call.cluster.topics.get(topic_name)
        if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, topic_name):
            continue
        if topic is not None or call.version < _TOPIC_ID_VERSION:
            topic_id = None if topic is None else topic.topic_id
            yield {"name": topic_name, "topic_id": topic_id}, names, ErrorCode.none


def _offset(call: NodeCall, name: TopicPartition, found: _Found) -> dict[str, Any]:
    error, committed = ErrorCode.none, None
    if isinstance(found, ErrorCode):
        error = found
    elif getattr(call.request, "require_stable", False) and found.is_unstable(name):
        error = ErrorCode.unstable_offset_commit
    else:
        committed = found.committed(name)
    if committed is None:
        return {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": "", "error_code": error}
    return {
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": ErrorCode.none,
    }


def refuse_offset_fetch(call: NodeCall, error: ErrorCode) -> Any:
    if call.version >= _MANY_GROUPS_VERSION:
        return _many(call, [_group(call, group, error) for group in call.request.groups])
    topics = at_once(_topics(call, call.request.topics, error, "")) if _has_rows(call, error) else ()
    return _single(call, topics, error)


def refuse_offset_fetch_partitions(call: NodeCall, error: ErrorCode) -> Any:
    if call.version < _MANY_GROUPS_VERSION:
        rows = at_once(_topics(call, call.request.topics, error, ""))
        return call.new.response(topics=rows, error_code=ErrorCode.none)
    return _many(
        call,
        [
            call.new.OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=at_once(_topics(call, group.topics, error, "s")),
                error_code=ErrorCode.none,
            )
            for group in call.request.groups
        ],
    )


_Errors = dict[TopicPartition, ErrorCode]


async def handle_offset_delete(call: NodeCall) -> Any:
    """Serve OffsetDelete (key 47), version 0.

    Deletes offsets of a group (KIP-496).

    * Empty group id 24; unknown group 69; group of another node 16; while loading 14; a group whose members are not
      consumers 68.
    * Access: DELETE on the group (30), READ on the topics (29).
    * Unknown partition 3; a topic that the members subscribe to 86. An offset that does not exist is no error.
    """
    group_id = call.request.group_id
    call.require(AclOperation.DELETE, ResourceType.GROUP, group_id)
    shard = group_shard(call, group_id)
    error = delete_offsets_error(shard.groups.get(group_id))
    if error is not ErrorCode.none:
        return await call.refused(error)
    errors = await _errors(call, shard)
    error = shard.offsets.delete(group_id, [name for name, error in errors.items() if error is ErrorCode.none])
    return await call.made(_response, call, error, {} if error is not ErrorCode.none else errors)


async def _errors(call: NodeCall, shard: GroupShard) -> _Errors:
    group = shard.groups[call.request.group_id]
    errors: _Errors = {}
    pace = Pace()
    for topic in call.request.topics:
        await pace.keep()
        is_allowed = call.is_allowed(AclOperation.READ, ResourceType.TOPIC, topic.name)
        for partition in topic.partitions:
            await pace.keep()
            name = TopicPartition(topic.name, partition.partition_index)
            if not is_allowed:
                errors[name] = ErrorCode.topic_authorization_failed
            elif call.cluster.partition(*name) is None:
                errors[name] = ErrorCode.unknown_topic_or_partition
            elif group.is_subscribed_to(topic.name):
                errors[name] = ErrorCode.group_subscribed_to_topic
            else:
                errors[name] = ErrorCode.none
    return errors


def _response(call: NodeCall, error: ErrorCode, errors: _Errors) -> Any:
    new = call.new
    return new.response(
        error_code=error,
        topics=tuple(
            new.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    new.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=errors[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in call.request.topics
            if errors
        ),
    )


def refuse_offset_delete(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, error, {})
