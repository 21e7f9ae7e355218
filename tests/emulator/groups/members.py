"""A group driven by pure decisions, applied as the coordinator's shell applies them: no sockets, logs or clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups import membership
from dualwrite.broker_emulator.groups.group import Group, Protocol
from dualwrite.broker_emulator.groups.member_requests import (
    GroupDecision,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)
from dualwrite.broker_emulator.groups.offsets import Committer, classic_commit_error
from dualwrite.broker_emulator.groups.rebalance import GroupSettings
from dualwrite.broker_emulator.groups.records import decode_group_value, encode_group_value

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = (Protocol("range", b"m"),)


class SimulatedGroup:
    """One group, its clock, and the responses that its members got."""

    def __init__(self, *, initial_delay_ms: int = 0, max_size: int = 100) -> None:
        self.group = Group(group_id="g", state_timestamp_ms=0)
        self.now_ms = 0
        self.settings = GroupSettings(initial_delay_ms, max_size)
        self.joined: dict[str, JoinResponse] = {}
        """The newest response to each member."""
        self.synced: dict[str, SyncResponse] = {}
        self.stored: bytes | None = None
        """The newest record of the group."""
        self.refuse_with: ErrorCode = ErrorCode.none
        """The log's error for records."""
        self._ids = 0

    def join(self, member_id: str = "", **values: Any) -> JoinResponse | None:
        """Join; return the response, or None if the request waits."""
        self._ids += 1
        request = JoinRequest(
            **{
                "member_id": member_id,
                "group_instance_id": None,
                "client_id": "client",
                "client_host": "/127.0.0.1",
                "rebalance_timeout_ms": REBALANCE_MS,
                "session_timeout_ms": SESSION_MS,
                "protocol_type": "consumer",
                "protocols": RANGE,
                "new_member_id": f"member-{self._ids}",
                "requires_known_member_id": False,
                "can_skip_assignment": True,
                **values,
            }
        )
        decided = membership.join(self.group, request, self.now_ms, self.settings)
        if decided.response is not None:
            self._carry_out(decided.decision)
            return decided.response
        self.joined.pop(decided.waits_as, None)
        self._carry_out(decided.decision)
        return self.joined.get(decided.waits_as)

    def answered(self, member_id: str = "", **values: Any) -> JoinResponse:
        """Join, by a request that does not wait."""
        response = self.join(member_id, **values)
        assert response is not None
        return response

    def add(self, **values: Any) -> str:
        """Join as a new member; return its id, even if the request waits."""
        before = set(self.group.members)
        response = self.join(**values)
        (new,) = {response.member_id} if response is not None else set(self.group.members) - before
        return new

    def sync(
        self, member_id: str, assignments: Mapping[str, bytes] | None = None, **values: Any
    ) -> SyncResponse | None:
        """Sync; return the response, or None if the request waits."""
        request = SyncRequest(
            **{
                "member_id": member_id,
                "group_instance_id": None,
                "generation": self.group.generation,
                "protocol_type": None,
                "protocol_name": None,
                "assignments": assignments or {},
                **values,
            }
        )
        decided = membership.sync(self.group, request, self.now_ms, self.settings)
        if decided.response is not None:
            self._carry_out(decided.decision)
            return decided.response
        self.synced.pop(member_id, None)
        self._carry_out(decided.decision)
        return self.synced.get(member_id)

    def sync_all(self) -> None:
        """Sync all members, the leader last, which assigns each member its own name."""
        assignments = {member_id: member_id.encode() for member_id in self.group.members}
        for member_id in sorted(self.group.members, key=lambda member_id: member_id == self.group.leader):
            self.sync(member_id, assignments if member_id == self.group.leader else None)

    def stable(self, count: int, **values: Any) -> list[str]:
        """Bring the group to a stable generation of so many members."""
        members = [self.add(**values) for _ in range(count)]
        for member_id in members:
            if not self.group.members[member_id].awaits_join:
                self.join(member_id, **{"protocols": self.group.members[member_id].protocols, **values})
        self.sync_all()
        return members

    def heartbeat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        self.group, error = membership.heartbeat(self.group, member_id, instance, generation, self.now_ms)
        return error

    def leave(self, *members: tuple[str, str | None]) -> list[ErrorCode]:
        leaving = [LeavingMember(*member) for member in members]
        decision, errors = membership.leave(self.group, leaving, self.now_ms, self.settings)
        self._carry_out(decision)
        return errors

    def commit(self, member_id: str, generation: int, instance: str | None = None, **values: Any) -> ErrorCode:
        committer = Committer(member_id, instance, generation)
        return classic_commit_error(self.group, committer, **{"transactional": False, **values})

    def advance(self, duration_ms: int) -> None:
        """Let time pass; each deadline is handled at its own time."""
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.group.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._tick()
        self.now_ms = end_ms

    def fail_over(self) -> None:
        """Another coordinator reads the group's record."""
        assert self.stored is not None
        group = decode_group_value("g", self.stored)
        self._carry_out(membership.after_load(group, self.now_ms, self.settings))

    def _tick(self) -> None:
        self._carry_out(membership.tick(self.group, self.now_ms, self.settings))

    def _carry_out(self, decision: GroupDecision) -> None:
        if decision.stores_group and self.refuse_with is not ErrorCode.none:
            decision = decision if decision.if_refused is None else decision.if_refused(self.refuse_with)
        elif decision.stores_group:
            self.stored = encode_group_value(decision.group)
        self.joined |= decision.joined
        self.synced |= decision.synced
        self.group = decision.group
        due_ms = self.group.next_deadline_ms
        if due_ms is not None and due_ms <= self.now_ms:
            self._tick()


def as_recorded(group: Group) -> Group:
    """Return a stable group without the parts that its record does not hold."""
    members = {
        member_id: replace(member, session_deadline_ms=None, protocols=member.protocols[:1])
        for member_id, member in group.members.items()
    }
    return replace(
        group,
        members=members,
        previous_state=group.state,
        pending_members={},
        pending_sync=frozenset(),
        sync_deadline_ms=None,
    )
