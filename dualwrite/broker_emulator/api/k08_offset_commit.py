"""OffsetCommit (key 8), versions 2-10.

Stores offsets of a group, outside of transactions.

* v5 drops the retention time; v6 leader epoch (KIP-320); v7 group instance id; v8 flexible; v9 member epochs
  (KIP-848); v10 topic ids (KIP-516; unknown 100).
* Not this node's group 16; a generation of a group without members 22, a member of it 25. Group "" is a group.
* Unknown partition 3; metadata longer than `offset.metadata.max.bytes` 12. The rest is stored all the same.
* v10 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.offsets import offset_response, offsets_to_commit
from dualwrite.broker_emulator.api.registry import Api, Call, register
from dualwrite.broker_emulator.config import Profile


async def handle(call: Call) -> Any:
    request, groups = call.request, call.node.groups
    error = groups.check(request.group_id, request.generation_id_or_member_epoch, request.member_id)
    if error is not ErrorCode.none:
        return refuse(call, error)
    offsets, errors = offsets_to_commit(call)
    error = groups.commit(request.group_id, offsets)
    return offset_response(call, "OffsetCommit", {**errors, **dict.fromkeys(offsets, error)})


def refuse(call: Call, error: ErrorCode) -> Any:
    return offset_response(call, "OffsetCommit", error)


register(
    Api(
        key=8,
        schema_name="offset_commit",
        min_version=2,
        max_version=10,
        handle=handle,
        refuse=refuse,
        newest={Profile.KAFKA_3_9: 9},
    )
)
