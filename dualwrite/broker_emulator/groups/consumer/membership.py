"""Decisions about ConsumerGroupHeartbeat (KIP-848), about expired deadlines, and after a load. Pure.

The heartbeat is a member's only request: with it, a member joins (epoch 0), leaves (-1, -2), subscribes, reports the
partitions that it owns, and keeps its session alive.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.change import DecisionContext, GroupChange
from dualwrite.broker_emulator.groups.consumer.group import (
    JOIN_EPOCH,
    LEAVE_STATIC_MEMBER_EPOCH,
    Assignment,
    ConsumerGroup,
    ConsumerMember,
    HeartbeatResponse,
    RegularExpression,
    known_instance,
)
from dualwrite.broker_emulator.groups.consumer.migration import Downgrade, Outcome, can_downgrade, to_classic
from dualwrite.broker_emulator.groups.consumer.regular_expressions import RegexChange, due_for_resolution
from dualwrite.broker_emulator.groups.consumer.states import MemberState


class HeartbeatRequest(NamedTuple):
    """A ConsumerGroupHeartbeat; fields unchanged since the last one are None (or -1)."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topics: frozenset[str] | None = None
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether all fields are set, as after an error; the response then has the assignment."""
        subscribes = self.subscribed_topics is not None or self.subscribed_regex is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None


class HeartbeatDecision(NamedTuple):
    """The changed group, and the response."""

    outcome: Outcome
    response: HeartbeatResponse
    resolves: frozenset[str] = frozenset()
    """Regular expressions to resolve now."""


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest, context: DecisionContext) -> HeartbeatDecision:
    """Decide a heartbeat by which a member joins or continues. Raises RefusedError."""
    check_room(group, request.member_id, context.settings.max_size)
    change = GroupChange(group, context)
    before = _member(change, request)
    after = _updated(before, request)
    assigned_before = before.assigned
    regex = RegexChange.of(change.group, before, after)
    names_changed = after.subscribed_topics != before.subscribed_topics
    is_resolved = regex is RegexChange.CHANGED_AND_RESOLVED
    default = context.settings.assignors[0]
    other_assignor = change.group.with_member(after).assignor(default) != change.group.assignor(default)
    change.update_member(after, bumps=names_changed or is_resolved or other_assignor)
    change.assign()
    after = change.reconcile(after.member_id, request.owned, resubscribes=names_changed or regex.is_any)
    resolves = due_for_resolution(change.group, context)
    change.group = replace(
        change.group.with_member(alive_at(after, context.now_ms, context.settings.session_timeout_ms)),
        is_resolving=change.group.is_resolving or bool(resolves),
    )
    tells_assignment = (
        request.member_epoch == JOIN_EPOCH or request.is_full or after.assigned.keys() != assigned_before.keys()
    )
    response = HeartbeatResponse(
        after.member_id,
        after.member_epoch,
        context.settings.heartbeat_interval_ms,
        frozenset(after.assigned) if tells_assignment else None,
    )
    return HeartbeatDecision(change.group, response, resolves)


def alive_at(member: ConsumerMember, now_ms: int, session_timeout_ms: int) -> ConsumerMember:
    """Return the member with a new session timeout."""
    return replace(member, session_deadline_ms=now_ms + session_timeout_ms)


def check_room(group: ConsumerGroup, member_id: str, max_size: int) -> None:
    """Check `group.consumer.max.size`. Raises RefusedError (81)."""
    if len(group.members) >= max_size and member_id not in group.members:
        raise RefusedError(
            ErrorCode.group_max_size_reached,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


# the member that sends it


def _member(change: GroupChange, request: HeartbeatRequest) -> ConsumerMember:
    """Return the member before this heartbeat: a known one, a new one, or a restarted static one."""
    joins = request.member_epoch == JOIN_EPOCH
    if request.instance_id is None:
        member = _dynamic_member(change.group, request.member_id, joins=joins)
        _check_epoch(member, request)
        return member
    present = change.group.static_member(request.instance_id)
    if not joins:
        member = known_instance(present, request.member_id, request.instance_id)
        _check_epoch(member, request)
        return member
    if present is None:
        return _dynamic_member(change.group, request.member_id, joins=True)
    if not present.is_away and not present.is_classic:
        raise RefusedError(
            ErrorCode.unreleased_instance_id,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group because "
            f"the instance id is owned by {present.member_id} member.",
        )
    return change.replace_static_member(present, request.member_id)


def _dynamic_member(group: ConsumerGroup, member_id: str, *, joins: bool) -> ConsumerMember:
    if joins and member_id not in group.members:
        return ConsumerMember(member_id=member_id)
    return group.known_member(member_id)


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """Check that a member sends its epoch, or the previous one if it may have missed a response; else fence it."""
    received, known = request.member_epoch, member.member_epoch
    if received in (JOIN_EPOCH, known):
        return
    missed_response = received == member.previous_epoch and request.owned is not None
    if received < known and missed_response and request.owned is not None and request.owned <= member.assigned.keys():
        return
    raise RefusedError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {'greater' if received > known else 'smaller'} member epoch ({received}) "
        f"than the one known by the group coordinator ({known}). The member must abandon all its partitions and "
        "rejoin.",
    )


def _updated(member: ConsumerMember, request: HeartbeatRequest) -> ConsumerMember:
    """Return the member updated by the request, which also moves a classic member to the new protocol."""
    timeout_ms, topics, regex = request.rebalance_timeout_ms, request.subscribed_topics, request.subscribed_regex
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
        subscribed_topics=member.subscribed_topics if topics is None else topics,
        subscribed_regex=member.subscribed_regex if regex is None else regex,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
        join_deadline_ms=None,
        sync_deadline_ms=None,
    )


# --- leaving and time ------------------------------------------------------------------------------------------------


def leave(group: ConsumerGroup, request: HeartbeatRequest, context: DecisionContext) -> HeartbeatDecision:
    """Decide a heartbeat by which a member leaves for good (-1) or, if it is static, temporarily (-2).

    Raises RefusedError.
    """
    response = HeartbeatResponse(request.member_id, request.member_epoch)
    if request.instance_id is None:
        member = group.known_member(request.member_id)
    else:
        member = known_instance(group.static_member(request.instance_id), request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_STATIC_MEMBER_EPOCH:
            change = GroupChange(group, context)
            kept = dict.fromkeys(member.assigned, 0)  # its successor may commit with any epoch
            away = replace(member, member_epoch=LEAVE_STATIC_MEMBER_EPOCH, assigned=kept, revoking={})
            change.step_to(group.with_member(away))
            return HeartbeatDecision(change.group, response)
    return HeartbeatDecision(remove_members(group, [member.member_id], context), response)


def remove_members(group: ConsumerGroup, member_ids: Collection[str], context: DecisionContext) -> Outcome:
    """Remove members. The others get new targets with their next heartbeats, or become a classic group again."""
    if can_downgrade(group, member_ids, context.settings):
        return Downgrade(to_classic(group, context, without=member_ids), rebalances=True)
    change = GroupChange(group, context)
    change.remove(member_ids)
    return change.group


def tick(group: ConsumerGroup, context: DecisionContext) -> Outcome:
    """Remove the members whose deadlines have passed, in the order of the deadlines."""
    outcome: Outcome = group
    while isinstance(outcome, ConsumerGroup):
        due_ms = outcome.next_deadline_ms
        if due_ms is None or due_ms > context.now_ms:
            break
        late = next(member.member_id for member in outcome.members.values() if due_ms in member.deadlines)
        outcome = remove_members(outcome, [late], context)
    return outcome


def after_load(group: ConsumerGroup, context: DecisionContext) -> ConsumerGroup:
    """Restart sessions and rebalance timeouts after a new coordinator loaded the group."""
    members = {member_id: _after_load(member, context) for member_id, member in group.members.items()}
    expressions = {
        regex: RegularExpression(found.topics, -1, found.timestamp_ms)
        for regex, found in group.regular_expressions.items()
    }
    return replace(group, members=members, regular_expressions=expressions)


def _after_load(member: ConsumerMember, context: DecisionContext) -> ConsumerMember:
    classic = member.classic
    session_ms = context.settings.session_timeout_ms if classic is None else classic.session_timeout_ms
    must_revoke = member.state is MemberState.UNREVOKED_PARTITIONS and classic is None
    return replace(
        member,
        session_deadline_ms=context.now_ms + session_ms,
        rebalance_deadline_ms=context.now_ms + member.rebalance_timeout_ms if must_revoke else None,
    )
