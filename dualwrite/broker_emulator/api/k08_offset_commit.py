"""OffsetCommit (key 8), versions 2-10.

Stores offsets of a group outside of transactions; the commit of a member is also its heartbeat.

* v5 drops the retention time; v6 leader epoch (KIP-320); v7 group instance id; v8 flexible; v9 member epochs (KIP-848);
  v10 topic ids (KIP-516; unknown 100).
* Group of another node 16; while loading 14; unknown member 25, also a commit without a member while the group has
  members; wrong generation 22; replaced static member 82; member that waits for its assignment 27. A generation of an
  unknown group is 69 from v9 on, 22 before and in the profile kafka-3.9. The empty group id is a group.
* Access: READ on the group (30) and on the topics (29).
* Consumer groups (KIP-848): a future epoch, and an older one for a partition that the member has not owned since then
  (KIP-1251), is 113 (22 for a member of the classic protocol); below v9, members are 35.
* Unknown partition 3; metadata longer than `offset.metadata.max.bytes` 12. The other offsets are stored anyway.
* v10 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import OffsetsToCommit, group_shard, offset_response, offsets_to_commit
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.groups.offsets import Committer
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType

_UNKNOWN_GROUP_VERSION = 9


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.READ, ResourceType.GROUP, call.request.group_id):
        return await call.refused(ErrorCode.group_authorization_failed)
    offsets = await offsets_to_commit(call)
    error = await _commit(call, offsets) if offsets.concern_the_group else ErrorCode.none
    return await call.made(offset_response, call, "OffsetCommit", offsets.errors(error))


async def _commit(call: NodeCall, offsets: OffsetsToCommit) -> ErrorCode:
    request = call.request
    shard = group_shard(call, request.group_id, allow_empty_id=True)
    if isinstance(shard, ErrorCode):
        return shard
    committer = Committer(
        request.member_id, getattr(request, "group_instance_id", None), request.generation_id_or_member_epoch
    )
    error = await shard.commit(request.group_id, committer, offsets.valid, version=call.version)
    says_unknown = call.version >= _UNKNOWN_GROUP_VERSION and call.cluster.config.behaviours.unknown_group_has_own_error
    if error is ErrorCode.group_id_not_found and not says_unknown:
        return ErrorCode.illegal_generation
    return error


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return offset_response(call, "OffsetCommit", error)
