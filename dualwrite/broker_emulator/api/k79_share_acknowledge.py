"""ShareAcknowledge (key 79), versions 1-2.

Acknowledges records that a member of a share group has acquired, within its share session (KIP-932).

* Session epoch 0 is 123, as only ShareFetch opens a session; no session 122; another epoch than the next 123. Epoch -1
  closes the session and releases the member's records.
* For each partition: offsets that no member has acquired 42 or 121, records of other members 121, bad batches 42; the
  acknowledgements of a partition take effect together, or not at all.
* v2: renewals (KIP-1222), if the request announces them; otherwise they are 42.
* Access: READ on the group (30) and on the topics (29).
* Unknown topic id 100, unknown partition 3, partition of another leader 6 with a hint.
* At level 0 of the feature `share.version` everything is 35.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.share_groups import (
    acknowledge,
    are_share_groups_on,
    is_member_id,
    leader_of,
    lock_duration_ms,
    node_endpoints,
    requested_acknowledgements,
)
from dualwrite.broker_emulator.api.share_groups import refused_records as refuse
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.sessions import (
    CLOSE_EPOCH,
    OPEN_EPOCH,
    SessionError,
    SessionKey,
    SessionPartition,
)
from dualwrite.broker_emulator.slices import Pace


async def handle(call: NodeCall) -> Any:
    request, sessions = call.request, call.node.share_leader.sessions
    if not are_share_groups_on(call):
        return refuse(call, ErrorCode.unsupported_version)
    if not call.is_allowed(AclOperation.READ, ResourceType.GROUP, request.group_id or ""):
        return refuse(call, ErrorCode.group_authorization_failed)
    if not request.group_id or not is_member_id(request.member_id):
        return refuse(call, ErrorCode.invalid_request)
    key, epoch = SessionKey(request.group_id, request.member_id), request.share_session_epoch
    if epoch == OPEN_EPOCH:
        return refuse(call, ErrorCode.invalid_share_session_epoch)
    try:
        closed = sessions.close(key) if epoch == CLOSE_EPOCH else None
        if closed is None:
            sessions.next(key, epoch)
    except SessionError as refused:
        return refuse(call, refused.error)
    results: dict[SessionPartition, tuple[ErrorCode, str | None]] = {}
    pace = Pace()
    for name, rows in (await requested_acknowledgements(request.topics)).items():
        await pace.keep()
        results[name] = await acknowledge(call, name, rows)
    if closed is not None:
        await call.node.share_leader.release(closed)
    return await _response(call, results)


async def _response(call: NodeCall, results: dict[SessionPartition, tuple[ErrorCode, str | None]]) -> Any:
    new = call.new
    by_topic: dict[Any, list[Any]] = {}
    leaders: list[int] = []
    pace = Pace()
    for name, (error, message) in results.items():
        await pace.keep()
        leader_id, leader_epoch = 0, 0
        if error is ErrorCode.not_leader_or_follower:
            leader_id, leader_epoch = leader_of(call, name)
            leaders.append(leader_id)
        by_topic.setdefault(name.topic_id, []).append(
            new.PartitionData(
                partition_index=name.partition,
                error_code=error,
                error_message=message,
                current_leader=new.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch),
            )
        )
    return new.response(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        acquisition_lock_timeout=timedelta(milliseconds=lock_duration_ms(call)),
        responses=tuple(
            new.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=tuple(rows))
            for topic_id, rows in by_topic.items()
        ),
        node_endpoints=node_endpoints(call, leaders),
    )
