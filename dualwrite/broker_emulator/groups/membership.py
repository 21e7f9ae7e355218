"""Decisions about JoinGroup, SyncGroup, Heartbeat, LeaveGroup and expired deadlines of classic groups. Pure.

Each function takes the group, the request, the current time in milliseconds and the settings, and returns the next
state of the group with the responses. The rules are those of Kafka's classic protocol with static members (KIP-345),
required member ids (KIP-394), and a leader that may skip the assignment (KIP-814).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.group import UNKNOWN_MEMBER_ID, Group, GroupState, Member
from dualwrite.broker_emulator.groups.member_requests import (
    GroupDecision,
    JoinDecision,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SyncDecision,
    SyncRequest,
    SyncResponse,
)
from dualwrite.broker_emulator.groups.rebalance import GroupSettings, Rebalance, join_response

# JoinGroup


def join(group: Group, request: JoinRequest, now_ms: int, settings: GroupSettings) -> JoinDecision:
    """Decide a JoinGroup, of a new member or of one that rejoins."""
    is_new = request.member_id == UNKNOWN_MEMBER_ID
    if not _has_room(group, request.member_id, settings):
        return _refuse_join(group.without((request.member_id,)), ErrorCode.group_max_size_reached, UNKNOWN_MEMBER_ID)
    if not group.supports(request.protocol_type, request.protocol_names):
        return _refuse_join(group, ErrorCode.inconsistent_group_protocol, request.member_id)
    change = Rebalance(group, now_ms, settings)
    return _join_new(change, request) if is_new else _join_known(change, request)


def _refuse_join(group: Group, error: ErrorCode, member_id: str) -> JoinDecision:
    return JoinDecision(GroupDecision(group=group), JoinResponse(error, member_id))


def _has_room(group: Group, member_id: str, settings: GroupSettings) -> bool:
    """Check `group.max.size` (KIP-389). In a rebalance, only members that rejoined count; the last ones are refused."""
    if group.is_in(GroupState.EMPTY):
        return True
    member = group.members.get(member_id)
    if group.is_in(GroupState.PREPARING_REBALANCE):
        waiting = sum(member.awaits_join for member in group.members.values())
        return (member is not None and member.awaits_join) or waiting < settings.max_size
    return member is not None or len(group.members) < settings.max_size


def _join_new(change: Rebalance, request: JoinRequest) -> JoinDecision:
    new_member_id = request.new_member_id
    if request.group_instance_id is not None:
        current = change.group.static_member_id(request.group_instance_id)
        if current is not None:
            return _join_as_replacement(change, request, current)
    elif request.requires_known_member_id:
        deadline_ms = change.now_ms + request.session_timeout_ms
        pending = {**change.group.pending_members, new_member_id: deadline_ms}
        return _refuse_join(replace(change.group, pending_members=pending), ErrorCode.member_id_required, new_member_id)
    return _add(change, request, new_member_id)


def _add(change: Rebalance, request: JoinRequest, member_id: str) -> JoinDecision:
    change.add_member(request, member_id)
    change.begin_or_continue()
    return JoinDecision(change.decision(), waits_as=member_id)


def _join_known(change: Rebalance, request: JoinRequest) -> JoinDecision:
    group, member_id = change.group, request.member_id
    if member_id in group.pending_members:
        if request.group_instance_id is not None:  # static members never get MEMBER_ID_REQUIRED
            return _refuse_join(group, ErrorCode.unknown_server_error, "")  # Kafka fails, and forgets the id
        return _add(change, request, member_id)
    error = group.member_error(member_id, request.group_instance_id)
    if error is not ErrorCode.none:
        return _refuse_join(group, error, member_id)
    if _keeps_generation(group, request):
        return JoinDecision(GroupDecision(group=group), join_response(group, member_id))
    change.rejoin(request, member_id)
    change.begin_or_continue()
    return JoinDecision(change.decision(), waits_as=member_id)


def _keeps_generation(group: Group, request: JoinRequest) -> bool:
    """Return whether a rejoining member just gets the current generation.

    It does if nothing changed, or if its last response was lost. A leader that rejoins a stable group needs a new
    assignment, for a reason known only to it.
    """
    if group.members[request.member_id].protocols != request.protocols:
        return False
    is_leader = group.leader == request.member_id
    return group.is_in(GroupState.COMPLETING_REBALANCE) or (group.is_in(GroupState.STABLE) and not is_leader)


def _join_as_replacement(change: Rebalance, request: JoinRequest, old_member_id: str) -> JoinDecision:
    """Replace a restarted static member, without a rebalance if the group is stable and the protocol stays."""
    before, member_id = change.group, request.new_member_id
    change.replace_static_member(old_member_id, member_id)
    change.rejoin(request, member_id)
    if change.group.is_in(GroupState.STABLE) and change.group.selected_protocol() == change.group.protocol_name:
        return JoinDecision(_replaced_silently(change, request, before), waits_as=member_id)
    if change.group.is_in(GroupState.PREPARING_REBALANCE):
        change.complete_if_all_joined()
    else:
        change.begin()
    return JoinDecision(change.decision(), waits_as=member_id)


def _replaced_silently(change: Rebalance, request: JoinRequest, before: Group) -> GroupDecision:
    member_id = request.new_member_id
    change.group = change.group.with_member(replace(change.group.members[member_id], awaits_join=False))
    if request.can_skip_assignment:
        change.joined[member_id] = join_response(change.group, member_id, skips_assignment=True)
    else:
        # The response names the former leader: a member that took itself for the leader would send an assignment that
        # the group does not expect.
        group, leader = change.group, before.leader or ""
        change.joined[member_id] = JoinResponse(
            ErrorCode.none, member_id, group.generation, group.protocol_type, group.protocol_name, leader
        )
    change.stores_group = True

    def refused(error: ErrorCode) -> GroupDecision:
        response = JoinResponse(
            error,
            UNKNOWN_MEMBER_ID,
            before.generation,
            before.protocol_type,
            before.protocol_name,
            before.leader or "",
        )
        return GroupDecision(group=before, joined={**change.joined, member_id: response}, synced=change.synced)

    return replace(change.decision(), if_refused=refused)


# SyncGroup


def sync(group: Group, request: SyncRequest, now_ms: int, settings: GroupSettings) -> SyncDecision:
    """Decide a SyncGroup; the leader's request has the assignments of all members."""
    error = _sync_error(group, request)
    if error is not ErrorCode.none:
        return SyncDecision(GroupDecision(group=group), SyncResponse(error))
    group = _not_pending_sync(group, request.member_id)
    member = group.members[request.member_id]
    if group.is_in(GroupState.STABLE):
        response = SyncResponse(ErrorCode.none, group.protocol_type, group.protocol_name, member.assignment)
        return SyncDecision(GroupDecision(group=group), response)
    change = Rebalance(group.with_member(replace(member, awaits_sync=True)), now_ms, settings)
    if group.leader != request.member_id:
        return SyncDecision(change.decision())
    return SyncDecision(_assign(change, dict(request.assignments)))


def _assign(change: Rebalance, assignments: dict[str, bytes]) -> GroupDecision:
    waiting = change.group
    change.assign(assignments)

    def refused(error: ErrorCode) -> GroupDecision:
        again = Rebalance(waiting, change.now_ms, change.settings)
        again.refuse_assignment(error)
        return again.decision()

    return replace(change.decision(), if_refused=refused)


def _sync_error(group: Group, request: SyncRequest) -> ErrorCode:
    error = group.member_error(request.member_id, request.group_instance_id)
    if error is not ErrorCode.none:
        return error
    if request.generation != group.generation:
        return ErrorCode.illegal_generation
    names = ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol_name))
    if any(None not in pair and pair[0] != pair[1] for pair in names):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.rebalance_in_progress if group.is_in(GroupState.PREPARING_REBALANCE) else ErrorCode.none


def _not_pending_sync(group: Group, member_id: str) -> Group:
    pending_sync = group.pending_sync - {member_id}
    return replace(group, pending_sync=pending_sync, sync_deadline_ms=group.sync_deadline_ms if pending_sync else None)


# Heartbeat


def heartbeat(
    group: Group, member_id: str, group_instance_id: str | None, generation: int, now_ms: int
) -> tuple[Group, ErrorCode]:
    """Decide a Heartbeat; the error tells the member whether it must join a rebalance."""
    error = group.member_error(member_id, group_instance_id)
    if error is ErrorCode.none and generation != group.generation:
        error = ErrorCode.illegal_generation
    if error is not ErrorCode.none:
        return group, error
    rebalances = group.is_in(GroupState.PREPARING_REBALANCE)
    return sign_of_life(group, member_id, now_ms), ErrorCode.rebalance_in_progress if rebalances else ErrorCode.none


def sign_of_life(group: Group, member_id: str, now_ms: int) -> Group:
    """Restart a member's session timeout."""
    return group.with_member(group.members[member_id].alive_at(now_ms))


# LeaveGroup


def leave(
    group: Group, leaving: Sequence[LeavingMember], now_ms: int, settings: GroupSettings
) -> tuple[GroupDecision, list[ErrorCode]]:
    """Remove members in one step; return an error for each."""
    change = Rebalance(group, now_ms, settings)
    present = _Present(group)
    errors = [present.leave(member) for member in leaving]
    change.remove(present.gone)
    if ErrorCode.none in errors and not change.group.is_in(GroupState.EMPTY):
        change.begin_or_continue()
    return change.decision(), errors


class _Present:
    """The remaining members of a group while its members leave one after the other.

    One request can name very many members, so each is found without a search through all of them.
    """

    __slots__ = ("_ids", "_instances", "_pending", "gone")

    def __init__(self, group: Group) -> None:
        self._pending = set(group.pending_members)
        self._ids = {member_id: member.group_instance_id for member_id, member in group.members.items()}
        self._instances = {instance: member_id for member_id, instance in self._ids.items() if instance is not None}
        self.gone: list[str] = []

    def leave(self, leaving: LeavingMember) -> ErrorCode:
        """Let a member leave, or return the error."""
        member_id, instance = leaving
        current = None if instance is None else self._instances.get(instance)
        if member_id == UNKNOWN_MEMBER_ID:
            if current is None:
                return ErrorCode.unknown_member_id
            member_id = current
        elif member_id not in self._pending:
            if current is not None and current != member_id:
                return ErrorCode.fenced_instance_id
            if member_id not in self._ids or (instance is not None and current is None):
                return ErrorCode.unknown_member_id
        self._pending.discard(member_id)
        left_instance = self._ids.pop(member_id, None)
        if left_instance is not None:
            del self._instances[left_instance]
        self.gone.append(member_id)
        return ErrorCode.none


# time


def after_load(group: Group, now_ms: int, settings: GroupSettings) -> GroupDecision:
    """Start the members' sessions after a new coordinator loaded the group; rebalance it if it is too large."""
    members = {member_id: member.alive_at(now_ms) for member_id, member in group.members.items()}
    change = Rebalance(replace(group, members=members), now_ms, settings)
    if len(members) > settings.max_size:
        change.begin()
    return change.decision()


def tick(group: Group, now_ms: int, settings: GroupSettings) -> GroupDecision:
    """Handle all deadlines that have passed, in their order."""
    change = Rebalance(group, now_ms, settings)
    while (due_ms := change.group.next_deadline_ms) is not None and due_ms <= now_ms:
        _handle_deadline(change, due_ms)
    return change.decision()


def _handle_deadline(change: Rebalance, due_ms: int) -> None:
    """Handle one of the deadlines at `due_ms`."""
    group = change.group
    if group.join_deadline_ms == due_ms:
        change.join_deadline_passed()
    elif group.sync_deadline_ms == due_ms:
        _remove_unsynced_members(change)
    else:
        pending = next((name for name, deadline_ms in group.pending_members.items() if deadline_ms == due_ms), None)
        if pending is not None:
            change.remove((pending,))
            change.member_gone(was_pending=True)
        else:
            _end_session(change, next(m for m in group.members.values() if m.session_deadline_ms == due_ms))


def _remove_unsynced_members(change: Rebalance) -> None:
    missing = [member_id for member_id in change.group.members if member_id in change.group.pending_sync]
    change.group = replace(change.group, sync_deadline_ms=None)
    change.remove(missing)
    if missing:
        change.begin()


def _end_session(change: Rebalance, member: Member) -> None:
    """Remove a member, unless it waits for other members. A new member is removed even then, as it may be gone."""
    if not member.is_new and (member.awaits_join or member.awaits_sync):
        change.group = change.group.with_member(replace(member, session_deadline_ms=None))
        return
    change.remove((member.member_id,))
    change.member_gone()
