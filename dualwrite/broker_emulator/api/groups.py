"""What the group APIs share: finding a group, and durations as numbers."""

from __future__ import annotations

from datetime import timedelta

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import Call
from dualwrite.broker_emulator.groups.shard import GroupShard

_MILLISECOND = timedelta(milliseconds=1)


def group_shard(call: Call, group_id: str, *, allow_empty_id: bool = False) -> GroupShard | ErrorCode:
    """Where the group is kept on this node, or why it is not: 24 for the id "", 14, 16."""
    if group_id == "" and not allow_empty_id:
        return ErrorCode.invalid_group_id
    return call.node.groups.shard(group_id)


def milliseconds(duration: timedelta) -> int:
    """A duration of a request in whole milliseconds."""
    return duration // _MILLISECOND
