"""DeleteGroups (key 42), versions 0-3.

Deletes groups without members, with all their offsets, including those pending in transactions, and share state.

* v2 flexible; v3 has a message beside the error, which Kafka leaves empty for such groups (observed: 4.4.0). v3 is
  hidden by the profiles kafka-4.3 and kafka-3.9.
* Access: DELETE on the group (30).
* Unknown group 69; group with members 68; group of another node 16; while loading 14.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace


async def handle(call: NodeCall) -> Any:
    rows = []
    pace = Pace()
    for group_id in dict.fromkeys(call.request.groups_names):
        await pace.keep()
        rows.append(_row(call, group_id, await _delete(call, group_id)))
    return _response(call, rows)


async def _delete(call: NodeCall, group_id: str) -> ErrorCode:
    if not call.is_allowed(AclOperation.DELETE, ResourceType.GROUP, group_id):
        return ErrorCode.group_authorization_failed
    shard = group_shard(call, group_id, allow_empty_id=True)
    if isinstance(shard, ErrorCode):
        return shard
    return await shard.share.delete_group(group_id) if group_id in shard.share.groups else shard.delete_group(group_id)


def _row(call: NodeCall, group_id: str, error: ErrorCode) -> Any:
    return call.new.DeletableGroupResult(group_id=group_id, error_code=error)


def _response(call: NodeCall, rows: list[Any]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, results=tuple(rows))


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, [_row(call, group_id, error) for group_id in dict.fromkeys(call.request.groups_names)])
