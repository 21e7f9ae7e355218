"""The steps of a rebalance, from the first joining member to the last assignment. Pure.

A `Rebalance` collects the changes of one decision about one group: it starts from a group, goes through steps, and ends
as a `GroupDecision`.

Waiting JoinGroups get their response when every member has joined or the rebalance timeout (the longest of the
members') has passed; members that did not join are removed, except static ones (KIP-345). An empty group's first
rebalance waits `group.initial.rebalance.delay.ms`, longer if more members join meanwhile (KIP-134).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.group import UNKNOWN_MEMBER_ID, Group, GroupState, InitialDelay, Member
from dualwrite.broker_emulator.groups.member_requests import (
    GroupDecision,
    JoinedMember,
    JoinRequest,
    JoinResponse,
    SyncResponse,
)

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a new member's first JoinGroup may wait; without an id, it cannot send heartbeats."""


class GroupSettings(NamedTuple):
    """The settings that decisions about groups depend on."""

    initial_rebalance_delay_ms: int
    max_size: int


@dataclass(slots=True)
class Rebalance:
    """The changes of one decision about one group."""

    group: Group
    now_ms: int
    settings: GroupSettings
    joined: dict[str, JoinResponse] = field(default_factory=dict)
    synced: dict[str, SyncResponse] = field(default_factory=dict)
    stores_group: bool = False

    def decision(self) -> GroupDecision:
        """Return the decision of the steps so far."""
        return GroupDecision(group=self.group, joined=self.joined, synced=self.synced, stores_group=self.stores_group)

    # members

    def add_member(self, request: JoinRequest, member_id: str) -> None:
        """Add a new member, whose JoinGroup waits."""
        if self.group.is_in(GroupState.PREPARING_REBALANCE) and self.group.initial_delay is not None:
            self.group = replace(self.group, initial_delay=self.group.initial_delay._replace(member_came=True))
        if not self.group.members:
            self.group = replace(self.group, protocol_type=request.protocol_type, leader=member_id)
        group = self.group
        pending = {other: deadline for other, deadline in group.pending_members.items() if other != member_id}
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            awaits_join=True,
            session_deadline_ms=self.now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
        )
        self.group = replace(group, pending_members=pending).with_member(member)

    def rejoin(self, request: JoinRequest, member_id: str) -> None:
        """Update a rejoining member, whose JoinGroup waits."""
        self.group = self.group.with_member(
            replace(
                self.group.members[member_id],
                protocols=request.protocols,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                session_timeout_ms=request.session_timeout_ms,
                awaits_join=True,
            )
        )

    def replace_static_member(self, old_member_id: str, new_member_id: str) -> None:
        """Give a restarted static member its new id; requests that wait under the old id are fenced."""
        old = self.group.members[old_member_id]
        fenced = ErrorCode.fenced_instance_id
        if old.awaits_join:
            self.joined[old_member_id] = JoinResponse(fenced, old_member_id)
        if old.awaits_sync:
            self.synced[old_member_id] = SyncResponse(fenced)
        new = replace(old, member_id=new_member_id, is_new=False, awaits_join=False, awaits_sync=False)
        group = self.group
        leader = new_member_id if group.leader == old_member_id else group.leader
        members = {member_id: member for member_id, member in group.members.items() if member_id != old_member_id}
        self.group = replace(
            group,
            leader=leader,
            members={**members, new_member_id: new.alive_at(self.now_ms)},
            pending_sync=group.pending_sync - {old_member_id},
        )

    def remove(self, member_ids: Collection[str]) -> None:
        """Remove members; their waiting requests get UNKNOWN_MEMBER_ID, after which they rejoin."""
        for member_id in member_ids:
            member = self.group.members.get(member_id)
            if member is not None and member.awaits_join:
                self.joined[member_id] = JoinResponse(ErrorCode.unknown_member_id, UNKNOWN_MEMBER_ID)
            if member is not None and member.awaits_sync:
                self.synced[member_id] = SyncResponse(ErrorCode.unknown_member_id)
        self.group = self.group.without(member_ids)

    # phases

    def begin_or_continue(self) -> None:
        """Rebalance after a member joined, left or changed; complete a running rebalance if all have joined."""
        if self.group.can_rebalance:
            self.begin()
        else:
            self.complete_if_all_joined()

    def begin(self) -> None:
        """Start a rebalance: all members have to rejoin."""
        group, now_ms = self.group, self.now_ms
        if group.is_in(GroupState.COMPLETING_REBALANCE):
            self._fail_assignment(SyncResponse(ErrorCode.rebalance_in_progress))
        is_first = group.is_in(GroupState.EMPTY)
        self.group = replace(
            self.group.to(GroupState.PREPARING_REBALANCE, now_ms), pending_sync=frozenset(), sync_deadline_ms=None
        )
        if is_first:
            delay_ms = self.settings.initial_rebalance_delay_ms
            self._delay(InitialDelay(delay_ms, max(self.group.rebalance_timeout_ms - delay_ms, 0)))
        elif self.group.all_members_joined:
            self.complete_join()
        else:
            self.group = replace(self.group, join_deadline_ms=now_ms + self.group.rebalance_timeout_ms)

    def complete_if_all_joined(self) -> None:
        """Complete the join phase if no member is missing; an empty group's first rebalance waits for its delay."""
        group = self.group
        is_waiting = group.is_in(GroupState.PREPARING_REBALANCE) and group.initial_delay is None
        if is_waiting and group.all_members_joined:
            self.complete_join()

    def member_gone(self, *, was_pending: bool = False) -> None:
        """Rebalance after a member was removed. A pending member only had an id, so it has nothing to reassign."""
        if self.group.is_in(GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            if not was_pending:
                self.begin()
        elif self.group.is_in(GroupState.PREPARING_REBALANCE) and self.group.all_members_joined:
            self.complete_join()

    def join_deadline_passed(self) -> None:
        """End the join phase, or extend a first rebalance's delay if more members joined during it."""
        delay = self.group.initial_delay
        if delay is None or not delay.member_came or delay.remaining_ms == 0:
            self.complete_join()
            return
        delay_ms = min(self.settings.initial_rebalance_delay_ms, delay.remaining_ms)
        self._delay(InitialDelay(delay_ms, max(delay.remaining_ms - delay.delay_ms, 0)))

    def _delay(self, delay: InitialDelay) -> None:
        self.group = replace(self.group, initial_delay=delay, join_deadline_ms=self.now_ms + delay.delay_ms)

    def complete_join(self) -> None:
        """End the join phase: remove members that did not join, and start the next generation."""
        self.group = replace(self.group, join_deadline_ms=None, initial_delay=None)
        self.group = self.group.without(
            member_id
            for member_id, member in self.group.members.items()
            if not member.awaits_join and member.group_instance_id is None
        )
        if not self.group.members:
            self._become_empty()
        elif self._elect_leader():
            self._next_generation()
        else:  # only static members, none of which joined: keep waiting until their sessions end
            deadline_ms = self.now_ms + max(self.group.rebalance_timeout_ms, 1)  # 0 would make `tick` loop forever
            self.group = replace(self.group, join_deadline_ms=deadline_ms)

    def _elect_leader(self) -> bool:
        """Keep the leader if it joined, else choose the first member that joined. Return False if none joined."""
        members = self.group.members
        leader = members.get(self.group.leader or "")
        if leader is None or not leader.awaits_join:
            leader = next((member for member in members.values() if member.awaits_join), None)
        if leader is None:
            return False
        self.group = replace(self.group, leader=leader.member_id)
        return True

    def _become_empty(self) -> None:
        group = self.group.to(GroupState.EMPTY, self.now_ms)
        self.group = replace(group, generation=group.generation + 1, protocol_name=None).with_subscribed_topics()
        self.stores_group = True

    def _next_generation(self) -> None:
        group = replace(
            self.group.to(GroupState.COMPLETING_REBALANCE, self.now_ms),
            generation=self.group.generation + 1,
            protocol_name=self.group.selected_protocol(),
            pending_sync=frozenset(self.group.members),
            sync_deadline_ms=self.now_ms + self.group.rebalance_timeout_ms,
        )
        waiting = [member.member_id for member in group.members.values() if member.awaits_join]
        members = {
            member_id: replace(member.alive_at(self.now_ms), awaits_join=False, is_new=False)
            for member_id, member in group.members.items()
        }
        self.group = replace(group, members=members).with_subscribed_topics()
        for member_id in waiting:
            self.joined[member_id] = join_response(self.group, member_id)

    # assignments

    def assign(self, assignments: dict[str, bytes]) -> None:
        """Apply the leader's assignment, which makes the generation stable. Members that it omits get an empty one."""
        members = {
            member_id: replace(member, assignment=assignments.get(member_id, b""))
            for member_id, member in self.group.members.items()
        }
        group = replace(self.group, members=members).to(GroupState.STABLE, self.now_ms)
        self.group = group
        self._respond_to_waiting_syncs(
            {
                member.member_id: SyncResponse(
                    ErrorCode.none, group.protocol_type, group.protocol_name, assignment=member.assignment
                )
                for member in members.values()
            }
        )
        self.stores_group = True

    def refuse_assignment(self, error: ErrorCode) -> None:
        """Fail all waiting SyncGroups and rebalance, as the leader's assignment could not be stored."""
        self._fail_assignment(SyncResponse(error))
        self.begin_or_continue()

    def _fail_assignment(self, response: SyncResponse) -> None:
        """Clear all assignments and send `response` to all waiting SyncGroups."""
        members = {member_id: replace(member, assignment=b"") for member_id, member in self.group.members.items()}
        self.group = replace(self.group, members=members)
        self._respond_to_waiting_syncs(dict.fromkeys(members, response))

    def _respond_to_waiting_syncs(self, responses: dict[str, SyncResponse]) -> None:
        """Send responses to waiting SyncGroups and restart the members' sessions, which may have ended meanwhile."""
        members = dict(self.group.members)
        for member_id, member in self.group.members.items():
            if member.awaits_sync:
                self.synced[member_id] = responses[member_id]
                members[member_id] = replace(member.alive_at(self.now_ms), awaits_sync=False)
        self.group = replace(self.group, members=members)


def join_response(group: Group, member_id: str, *, skips_assignment: bool = False) -> JoinResponse:
    """Return a member's response for the current generation; the leader's response lists all members."""
    is_leader = group.leader == member_id
    return JoinResponse(
        ErrorCode.none,
        member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        skip_assignment=skips_assignment and is_leader,
        members=_members_for_leader(group) if is_leader else (),
    )


def _members_for_leader(group: Group) -> tuple[JoinedMember, ...]:
    return tuple(
        JoinedMember(member.member_id, member.group_instance_id, member.metadata(group.protocol_name))
        for member in group.members.values()
    )
