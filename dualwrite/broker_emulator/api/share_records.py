"""Records of share groups: acquired and acknowledged in a share session (KIP-932)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.share_groups import (
    acknowledge,
    is_member_id,
    leader_of,
    led_by_this_node,
    lock_duration_ms,
    node_endpoints,
    refused_records,
    requested_acknowledgements,
    require_share_group,
)
from dualwrite.broker_emulator.configs.effective import broker_value
from dualwrite.broker_emulator.error_codes import NO_ERROR, RefusedError
from dualwrite.broker_emulator.security.acl import AclOperation
from dualwrite.broker_emulator.share.leader import (
    CLOSE_EPOCH,
    OPEN_EPOCH,
    SessionError,
    SessionKey,
    SessionPartition,
    ShareSession,
)
from dualwrite.broker_emulator.share.led_partition import Fetched, LeaderError, LedPartition
from dualwrite.broker_emulator.share.share_partition import Wish
from dualwrite.broker_emulator.share.state import StateKey
from dualwrite.broker_emulator.slices import Pace, mapped

_BATCH_OPTIMIZED, _RECORD_LIMIT = 0, 1
_NOTHING = Fetched(b"", [])
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(slots=True)
class _Row:
    """The part of the response for one partition."""

    error: ErrorCode = NO_ERROR
    message: str | None = None
    acknowledge_error: ErrorCode = NO_ERROR
    acknowledge_message: str | None = None
    fetched: Fetched = _NOTHING


_Rows = dict[SessionPartition, _Row]


@dataclass(slots=True)
class _Targets:
    """The partitions of a session that can be fetched from, and the errors of the others."""

    led: dict[SessionPartition, LedPartition] = field(default_factory=dict)
    errors: dict[SessionPartition, ErrorCode] = field(default_factory=dict)


async def handle_share_fetch(call: NodeCall) -> Any:
    """Serve ShareFetch (key 78), versions 1-2.

    Acquires records of the partitions of a share session for a member of a share group (KIP-932), after the
    acknowledgements in the request.

    * Epoch 0 opens a session, in which acknowledgements are 42; each further request has the next epoch (123 otherwise,
      122 without a session) and the changes of the session. Epoch -1 closes it, and releases the member's records.
      Sessions beyond `group.share.max.share.sessions` are 133. The end of a connection closes the session that it
      opened last, and releases its records.
    * A response waits for records until MaxWait has passed, and for MinBytes; released records wake it too.
    * MaxRecords may be exceeded up to the end of a record batch. v2: not with acquire mode 1 (KIP-1206); a mode other
      than 0 and 1 is -1. BatchSize bounds the records acquired as one batch, again in whole record batches.
    * v2: a request with renewals (KIP-1222) fetches no records, so all its limits have to be 0 (42 otherwise).
    * Access: READ on the group (30) and on the topics (29).
    * Unknown topic id 100, unknown partition 3, partition of another leader 6 with a hint. A partition whose state the
      group coordinator has not initialized is -1, as in Kafka.
    * At level 0 of the feature `share.version` everything is 35.
    """
    request = call.request
    _check(call)
    if _is_renewal(request):
        limits = (request.max_wait // _MILLISECOND, request.min_bytes, request.max_bytes, request.max_records)
        if any(limits):
            return refuse_share_fetch(call, ErrorCode.invalid_request)
    acknowledgements = await requested_acknowledgements(request.topics)
    session = await _session(call, has_acknowledgements=bool(acknowledgements))
    if getattr(request, "share_acquire_mode", _BATCH_OPTIMIZED) not in (_BATCH_OPTIMIZED, _RECORD_LIMIT):
        return refuse_share_fetch(call, ErrorCode.unknown_server_error)
    rows: _Rows = {}
    pace = Pace()
    for name, batches in acknowledgements.items():
        await pace.keep()
        row = rows.setdefault(name, _Row())
        row.acknowledge_error, row.acknowledge_message = await acknowledge(call, name, batches)
    if request.share_session_epoch == CLOSE_EPOCH:
        await call.node.share_leader.release(session)
    elif not _is_renewal(request):
        await _fetch(call, session, rows)
    return await _response(call, call.new.ShareFetchableTopicResponse, rows)


def _check(call: NodeCall) -> None:
    """Check that the client may use the group, and names it and the member. Raises RefusedError."""
    request = call.request
    require_share_group(call, AclOperation.READ, request.group_id)
    if not request.group_id or not is_member_id(request.member_id):
        raise RefusedError(ErrorCode.invalid_request)


def _is_renewal(request: Any) -> bool:
    return bool(getattr(request, "is_renew_ack", False))


async def _session(call: NodeCall, *, has_acknowledgements: bool) -> ShareSession:
    """Return the session that the request opens, continues or closes. Raises SessionError."""
    request, sessions = call.request, call.node.share_leader.sessions
    key, epoch = SessionKey(request.group_id, request.member_id), request.share_session_epoch
    named = ((topic.topic_id, partition.partition_index) for topic in request.topics for partition in topic.partitions)
    added = await mapped(SessionPartition._make, named)
    if epoch == CLOSE_EPOCH:
        return sessions.close(key)
    if epoch == OPEN_EPOCH:
        if has_acknowledgements:
            raise SessionError(ErrorCode.invalid_request)
        most = int(broker_value(call.cluster.config, "group.share.max.share.sessions") or 0)
        return sessions.open(key, added, most=most, connection=call.connection)
    named = ((topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions)
    forgotten = await mapped(SessionPartition._make, named)
    return sessions.next(key, epoch, added, forgotten)


async def _fetch(call: NodeCall, session: ShareSession, rows: _Rows) -> None:
    """Add the records that the member acquires, when there are enough or the time is up."""
    request, loop = call.request, asyncio.get_running_loop()
    deadline_s = loop.time() + request.max_wait / timedelta(seconds=1)
    with call.node.share_leader.waiting(session) as woken:
        while True:
            woken.clear()
            targets = await _targets(call, session)
            is_late = loop.time() >= deadline_s
            is_over = is_late or bool(targets.errors) or await _has_enough(call, targets)
            acquired = await _acquire(call, targets) if is_over else {}
            if acquired or is_late or targets.errors or not targets.led:
                break
            timer = loop.call_at(deadline_s, woken.set)
            await woken.wait()
            timer.cancel()
    pace = Pace()
    for name, error in targets.errors.items():
        await pace.keep()
        rows.setdefault(name, _Row()).error = error
    for name, fetched in acquired.items():
        await pace.keep()
        rows.setdefault(name, _Row()).fetched = fetched


async def _targets(call: NodeCall, session: ShareSession) -> _Targets:
    targets = _Targets()
    pace = Pace()
    for name in session.in_turn():
        await pace.keep()
        partition, error = led_by_this_node(call, name)
        if partition is None:
            targets.errors[name] = error
            continue
        try:
            led = call.node.share_leader.share_partition(StateKey(session.key.group_id, *name), partition)
        except LeaderError as failed:
            targets.errors[name] = failed.error
            continue
        targets.led[name] = led
    return targets


async def _has_enough(call: NodeCall, targets: _Targets) -> bool:
    size, least = 0, max(call.request.min_bytes, 1)
    pace = Pace()
    for led in targets.led.values():
        await pace.keep()
        size += led.readable_bytes(least)
        if size >= least:
            return True
    return False


async def _acquire(call: NodeCall, targets: _Targets) -> dict[SessionPartition, Fetched]:
    request, leader = call.request, call.node.share_leader
    found: dict[SessionPartition, Fetched] = {}
    left = request.max_records
    most = max(request.max_bytes // max(len(targets.led), 1), 1)
    pace = Pace()
    for name, led in targets.led.items():
        await pace.keep()
        if left <= 0:
            break
        is_strict = getattr(request, "share_acquire_mode", _BATCH_OPTIMIZED) == _RECORD_LIMIT
        wish = Wish(request.member_id, left, max(request.batch_size, 1), is_strict)
        try:
            fetched = await led.fetch(wish, most)
        except LeaderError as failed:
            targets.errors[name] = failed.error
            leader.forget(StateKey(request.group_id, *name))
            continue
        if fetched.acquired:
            found[name] = fetched
            left -= sum(row.last_offset - row.first_offset + 1 for row in fetched.acquired)
    return found


async def _response(call: NodeCall, topic_type: Any, rows: _Rows) -> Any:
    """Build the response to a ShareFetch or, without records, a ShareAcknowledge."""
    new = call.new
    by_topic: dict[Any, list[Any]] = {}
    leaders: list[int] = []
    pace = Pace()
    for name, row in rows.items():
        await pace.keep()
        leader_id, leader_epoch = 0, 0
        if ErrorCode.not_leader_or_follower in (row.error, row.acknowledge_error):
            leader_id, leader_epoch = leader_of(call, name)
            leaders.append(leader_id)
        by_topic.setdefault(name.topic_id, []).append(
            new.PartitionData(
                partition_index=name.partition,
                error_code=row.error,
                error_message=row.message,
                acknowledge_error_code=row.acknowledge_error,
                acknowledge_error_message=row.acknowledge_message,
                current_leader=new.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch),
                records=row.fetched.records,
                acquired_records=tuple(new.AcquiredRecords(**acquired._asdict()) for acquired in row.fetched.acquired),
            )
        )
    return new.response(
        error_code=NO_ERROR,
        acquisition_lock_timeout=timedelta(milliseconds=lock_duration_ms(call)),
        responses=tuple(
            topic_type(topic_id=topic_id, partitions=tuple(partitions)) for topic_id, partitions in by_topic.items()
        ),
        node_endpoints=node_endpoints(call, leaders),
    )


refuse_share_fetch = refused_records


async def handle_share_acknowledge(call: NodeCall) -> Any:
    """Serve ShareAcknowledge (key 79), versions 1-2.

    Acknowledges records that a member of a share group has acquired, within its share session (KIP-932).

    * Session epoch 0 is 123, as only ShareFetch opens a session; no session 122; another epoch than the next 123. Epoch
      -1 closes the session and releases the member's records.
    * For each partition: offsets that no member has acquired 42 or 121, records of other members 121, bad batches 42;
      the acknowledgements of a partition take effect together, or not at all.
    * v2: renewals (KIP-1222), if the request announces them; otherwise they are 42.
    * Access: READ on the group (30) and on the topics (29).
    * Unknown topic id 100, unknown partition 3, partition of another leader 6 with a hint.
    * At level 0 of the feature `share.version` everything is 35.
    """
    request, sessions = call.request, call.node.share_leader.sessions
    _check(call)
    key, epoch = SessionKey(request.group_id, request.member_id), request.share_session_epoch
    if epoch == OPEN_EPOCH:
        return refuse_share_acknowledge(call, ErrorCode.invalid_share_session_epoch)
    closed = sessions.close(key) if epoch == CLOSE_EPOCH else None
    if closed is None:
        sessions.next(key, epoch)
    rows: _Rows = {}
    pace = Pace()
    for name, batches in (await requested_acknowledgements(request.topics)).items():
        await pace.keep()
        error, message = await acknowledge(call, name, batches)
        rows[name] = _Row(error, message)
    if closed is not None:
        await call.node.share_leader.release(closed)
    return await _response(call, call.new.ShareAcknowledgeTopicResponse, rows)


refuse_share_acknowledge = refused_records
