"""Members of the classic protocol in a consumer group, while it migrates (KIP-848). Pure.

They join, sync and send heartbeats as usual and do not notice that the coordinator assigns: JoinGroup gets its response
at once, there is no leader, and SyncGroup returns the partitions that the coordinator assigned to the member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.change import DecisionContext, GroupChange
from dualwrite.broker_emulator.groups.consumer.group import (
    ClassicMetadata,
    ConsumerGroup,
    ConsumerMember,
    known_instance,
)
from dualwrite.broker_emulator.groups.consumer.membership import check_room, remove_members
from dualwrite.broker_emulator.groups.consumer.migration import (
    Downgrade,
    Outcome,
    assignment_bytes,
    by_topic_id,
    to_classic,
)
from dualwrite.broker_emulator.groups.consumer.states import MemberState
from dualwrite.broker_emulator.groups.consumer_protocol import (
    MalformedError,
    Subscription,
    read_subscription,
    read_version,
)
from dualwrite.broker_emulator.groups.group import UNKNOWN_MEMBER_ID
from dualwrite.broker_emulator.groups.member_requests import (
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)

# JoinGroup


class ClassicJoinDecision(NamedTuple):
    """The changed group, and the response."""

    outcome: Outcome
    response: JoinResponse


def join(group: ConsumerGroup, request: JoinRequest, context: DecisionContext) -> ClassicJoinDecision:
    """Decide a JoinGroup, of a new member or of one that rejoins. Raises RefusedError."""
    is_unknown = request.member_id == UNKNOWN_MEMBER_ID
    member_id = request.new_member_id if is_unknown else request.member_id
    check_room(group, member_id, context.settings.max_size)
    if not group.supports_classic(request.protocol_type, request.protocol_names):
        raise RefusedError(ErrorCode.inconsistent_group_protocol, f"Member {member_id}'s protocols are not supported.")
    if is_unknown and request.group_instance_id is None and request.requires_known_member_id:
        return ClassicJoinDecision(group, JoinResponse(ErrorCode.member_id_required, member_id))
    subscription = _subscription(request, context)
    former = group.static_member(request.group_instance_id)
    downgrades = former is not None and _is_last_of_new_protocol(group, former, context)
    change = GroupChange(group, context)
    before = _member(change, request, member_id, former)
    after = _updated(before, request, subscription)
    resubscribes = (after.subscribed_topics, after.subscribed_regex) != (
        before.subscribed_topics,
        before.subscribed_regex,
    )
    change.update_member(after, bumps=resubscribes)
    if not downgrades:
        change.assign()
    if not (downgrades and resubscribes):
        owned = by_topic_id(subscription.owned, context.topics)
        after = change.reconcile(member_id, owned, resubscribes=resubscribes)
    response = _join_response(after, request)
    if downgrades:
        # Kafka converts the group as it was, so that a bump of its epoch is lost (observed: 4.4.0)
        classic = to_classic(replace(change.group, group_epoch=group.group_epoch), context)
        return ClassicJoinDecision(Downgrade(classic, rebalances=resubscribes), response)
    change.step_to(change.group.with_member(_expected_to_sync(after, request, context.now_ms)))
    return ClassicJoinDecision(change.group, response)


def _subscription(request: JoinRequest, context: DecisionContext) -> Subscription:
    """Read the subscription from the first protocol: all protocols of a consumer have the same topics."""
    try:
        return read_subscription(request.protocols[0].metadata)
    except MalformedError as error:
        is_refused = context.settings.refuses_malformed
        code = ErrorCode.inconsistent_group_protocol if is_refused else ErrorCode.unknown_server_error
        raise RefusedError(code, f"Member {request.member_id!r} joins with a malformed subscription.") from error


def _is_last_of_new_protocol(group: ConsumerGroup, former: ConsumerMember, context: DecisionContext) -> bool:
    """Return whether a static member that joins with the classic protocol was the last member of the new protocol."""
    if former.is_classic:
        return False
    others = [member for member in group.members.values() if member is not former]
    if not all(member.is_classic for member in others):
        return False
    return context.settings.allows_downgrade and len(group.members) <= context.settings.classic_max_size


def _member(change: GroupChange, request: JoinRequest, member_id: str, former: ConsumerMember | None) -> ConsumerMember:
    known = change.group.members.get(member_id)
    if request.group_instance_id is None:
        return ConsumerMember(member_id=member_id) if known is None else known
    if request.member_id != UNKNOWN_MEMBER_ID:
        return known_instance(former, member_id, request.group_instance_id)
    return ConsumerMember(member_id=member_id) if former is None else change.replace_static_member(former, member_id)


def _updated(member: ConsumerMember, request: JoinRequest, subscription: Subscription) -> ConsumerMember:
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        subscribed_topics=subscription.topics,
        subscribed_regex="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicMetadata(request.session_timeout_ms, request.protocols),
        rebalance_deadline_ms=None,
    )


def _join_response(member: ConsumerMember, request: JoinRequest) -> JoinResponse:
    return JoinResponse(
        ErrorCode.none,
        member.member_id,
        generation=member.member_epoch,
        protocol_type="consumer",
        protocol_name=request.protocols[0].name,
    )


def _expected_to_sync(member: ConsumerMember, request: JoinRequest, now_ms: int) -> ConsumerMember:
    return replace(
        member,
        join_deadline_ms=None,
        session_deadline_ms=now_ms + request.session_timeout_ms,
        sync_deadline_ms=now_ms + request.rebalance_timeout_ms,
    )


# SyncGroup and Heartbeat


def sync(group: ConsumerGroup, request: SyncRequest, context: DecisionContext) -> tuple[ConsumerGroup, SyncResponse]:
    """Decide a SyncGroup: the response has the member's assignment. Raises RefusedError."""
    member, classic = _classic_member(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation)
    names = ((request.protocol_type, "consumer"), (request.protocol_name, classic.protocols[0].name))
    if any(said is not None and said != known for said, known in names):
        raise RefusedError(
            ErrorCode.inconsistent_group_protocol,
            f"The protocol of member {member.member_id} is not the one in the response to its JoinGroup.",
        )
    if _has_newer_target(group, member) and member.state is not MemberState.UNREVOKED_PARTITIONS:
        return _awaiting_join(group, member, context), SyncResponse(ErrorCode.rebalance_in_progress)
    version = read_version(classic.protocols[0].metadata)
    assignment = assignment_bytes(frozenset(member.assigned), context.topics, version)
    member = replace(_alive(member, classic, context), sync_deadline_ms=None)
    response = SyncResponse(ErrorCode.none, request.protocol_type, request.protocol_name, assignment)
    return group.with_member(member), response


def heartbeat(
    group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation: int, context: DecisionContext
) -> tuple[ConsumerGroup, ErrorCode]:
    """Decide a Heartbeat; the error tells the member whether to rejoin. Raises RefusedError.

    As in Kafka, it neither checks for changed topics nor makes a new target assignment: both happen when a member
    joins, or when a member of the new protocol sends a heartbeat.
    """
    member, classic = _classic_member(group, member_id, group_instance_id)
    _check_generation(member, generation)
    alive = _alive(member, classic, context)
    if not _has_to_join(group, member):
        return group.with_member(alive), ErrorCode.none
    return _awaiting_join(group, alive, context), ErrorCode.rebalance_in_progress


def _has_to_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether there is a newer target, or the member has to revoke partitions or get released ones."""
    if _has_newer_target(group, member) or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member)


def _has_newer_target(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether there is a newer target. A newer group epoch alone is no reason to rejoin (KAFKA-20272)."""
    return member.member_epoch < group.assignment_epoch


def _alive(member: ConsumerMember, classic: ClassicMetadata, context: DecisionContext) -> ConsumerMember:
    return replace(member, session_deadline_ms=context.now_ms + classic.session_timeout_ms)


def _awaiting_join(group: ConsumerGroup, member: ConsumerMember, context: DecisionContext) -> ConsumerGroup:
    """Start the member's rebalance timeout for rejoining, unless it is running."""
    if member.join_deadline_ms is None:
        member = replace(member, join_deadline_ms=context.now_ms + member.rebalance_timeout_ms)
    return group.with_member(member)


def _classic_member(
    group: ConsumerGroup, member_id: str, group_instance_id: str | None
) -> tuple[ConsumerMember, ClassicMetadata]:
    """Return the member and its classic metadata.

    Raises RefusedError: 25 for an unknown member or a member of the new protocol, 82 for a replaced static member.
    """
    if group_instance_id is None:
        member = group.known_member(member_id)
    else:
        member = known_instance(group.static_member(group_instance_id), member_id, group_instance_id)
    if member.classic is None:
        raise RefusedError(ErrorCode.unknown_member_id, f"Member {member.member_id} does not use the classic protocol.")
    return member, member.classic


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.member_epoch:
        raise RefusedError(
            ErrorCode.illegal_generation,
            f"The request generation id {generation} is not equal to the member epoch {member.member_epoch} of "
            f"member {member.member_id}.",
        )


# LeaveGroup


def leave(
    group: ConsumerGroup, leaving: Sequence[LeavingMember], context: DecisionContext
) -> tuple[Outcome, list[ErrorCode]]:
    """Decide a LeaveGroup: remove members in one step; return an error for each."""
    gone: dict[str, None] = {}
    errors: list[ErrorCode] = []
    instances = {member.instance_id: name for name, member in group.members.items() if member.instance_id is not None}
    for member in leaving:
        member_id, error = _leaving_id(group, instances, member)
        errors.append(error)
        if error is ErrorCode.none:
            gone[member_id] = None
    return (remove_members(group, tuple(gone), context) if gone else group), errors


def _leaving_id(group: ConsumerGroup, instances: Mapping[str, str], leaving: LeavingMember) -> tuple[str, ErrorCode]:
    """Return the id of a leaving member, and its error. Administrators may remove members of either protocol.

    A request can name very many members, so this neither searches the group nor raises errors.
    """
    member_id, instance = leaving
    present = member_id if instance is None else instances.get(instance)
    if present is None or present not in group.members:
        return member_id, ErrorCode.unknown_member_id
    if member_id not in (UNKNOWN_MEMBER_ID, present):
        return member_id, ErrorCode.fenced_instance_id
    return present, ErrorCode.none
