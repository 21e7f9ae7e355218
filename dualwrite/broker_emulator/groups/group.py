"""A group of the classic protocol as one immutable value, with its states, the valid steps between them, and queries.

Deadlines are part of the value, in the clock's milliseconds, so that the effects of time on a group can be decided from
the group and the current time alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE, read_subscribed_topics


class GroupState(StrEnum):
    """A group's state; the value is the name that the APIs show."""

    EMPTY = "Empty"
    """No members, only offsets. Groups that only commit offsets are always in this state."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to join or rejoin."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation, waiting for its leader's assignment."""
    STABLE = "Stable"
    """Every member can have its assignment."""
    DEAD = "Dead"
    """Deleted, expired, or moved to another coordinator. Groups in this state are not kept."""


VALID_PREVIOUS_STATES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(
        {
            GroupState.EMPTY,
            GroupState.PREPARING_REBALANCE,
            GroupState.COMPLETING_REBALANCE,
            GroupState.STABLE,
        }
    ),
}
"""The states from which each state may be entered."""


UNKNOWN_MEMBER_ID = ""
"""The member id of a client without one."""


class Protocol(NamedTuple):
    """An assignment protocol that a member supports, in order of preference; the metadata is for the leader."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of a group."""

    member_id: str
    group_instance_id: str | None
    """Set for a static member (KIP-345)."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    """Whether its first JoinGroup has no response yet, so that it does not know its generation."""
    awaits_join: bool = False
    awaits_sync: bool = False
    session_deadline_ms: int | None = None
    """When it is removed from the group unless it sends a request; None while no request is expected."""

    def metadata(self, protocol: str | None) -> bytes:
        """Return its metadata for a protocol; empty if it does not support it."""
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")

    def alive_at(self, now_ms: int) -> Member:
        """Return the member with a new session timeout, as after any of its requests."""
        return replace(self, session_deadline_ms=now_ms + self.session_timeout_ms)


class InitialDelay(NamedTuple):
    """The wait of an empty group's first rebalance for more members (KIP-134)."""

    delay_ms: int
    """The running delay."""
    remaining_ms: int
    """How much longer it may be extended if new members join meanwhile."""
    member_came: bool = False


class InvalidTransitionError(Exception):
    """The table of states does not allow a transition: a bug in this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group at one moment. Mappings are never changed in place; members are in the order in which they joined."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.DEAD
    generation: int = 0
    protocol_type: str | None = None
    """None for a group that never had members and only commits offsets (a "simple" group)."""
    protocol_name: str | None = None
    leader: str | None = None
    state_timestamp_ms: int | None = None
    """When the state was entered; None if it was loaded from an old record without the time."""
    members: Mapping[str, Member] = field(default_factory=dict)
    pending_members: Mapping[str, int] = field(default_factory=dict)
    """Ids sent with MEMBER_ID_REQUIRED and not used yet (KIP-394), and when each expires."""
    pending_sync: frozenset[str] = frozenset()
    """Members of this generation that have not sent SyncGroup yet."""
    join_deadline_ms: int | None = None
    sync_deadline_ms: int | None = None
    initial_delay: InitialDelay | None = None
    subscribed_topics: frozenset[str] | None = None
    """Topics of this generation's members; None if their metadata cannot be read."""

    # queries

    def is_in(self, *states: GroupState) -> bool:
        return self.state in states

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def can_rebalance(self) -> bool:
        return self.state in VALID_PREVIOUS_STATES[GroupState.PREPARING_REBALANCE]

    @property
    def all_members_joined(self) -> bool:
        return not self.pending_members and all(member.awaits_join for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for its members: their longest timeout."""
        return max(0, *(member.rebalance_timeout_ms for member in self.members.values()), 0)

    @property
    def next_deadline_ms(self) -> int | None:
        """The earliest deadline (see `membership.tick`); None if there is none."""
        return min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterator[int]:
        yield from (at for at in (self.join_deadline_ms, self.sync_deadline_ms) if at is not None)
        yield from self.pending_members.values()
        for member in self.members.values():
            if member.session_deadline_ms is not None:
                yield member.session_deadline_ms

    def static_member_id(self, group_instance_id: str) -> str | None:
        """Return the current member id of a static instance."""
        for member in self.members.values():
            if member.group_instance_id == group_instance_id:
                return member.member_id
        return None

    def supports(self, protocol_type: str, names: frozenset[str]) -> bool:
        """Return whether a member with these protocols can join: all members must have one of them in common.

        During a rebalance there may be no members, only ids that were sent with MEMBER_ID_REQUIRED (KIP-394).
        """
        if self.state is GroupState.EMPTY:
            return protocol_type != "" and bool(names)
        return self.protocol_type == protocol_type and bool(names & self.common_protocols() if self.members else names)

    def common_protocols(self) -> frozenset[str]:
        """Return the protocols that every member supports."""
        spoken = [frozenset(protocol.name for protocol in member.protocols) for member in self.members.values()]
        return frozenset.intersection(*spoken) if spoken else frozenset()

    def selected_protocol(self) -> str:
        """Return the protocol for the next generation: each member votes for the common protocol that it prefers.

        On a tie, the first to get a vote wins; in Kafka, the order of a hash table decides.
        """
        common = self.common_protocols()
        votes = Counter(
            next(protocol.name for protocol in member.protocols if protocol.name in common)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def member_error(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Check that a request comes from a member: else 25, or 82 if another member has its static instance."""
        if group_instance_id is not None:
            current = self.static_member_id(group_instance_id)
            if current is not None and current != member_id:
                return ErrorCode.fenced_instance_id
            if current is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether the members consume a topic; True for consumers whose subscriptions cannot be read."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

    # changes

    def to(self, state: GroupState, now_ms: int) -> Group:
        """Return the group in another state. Raises InvalidTransitionError if the table does not allow it."""
        if self.state not in VALID_PREVIOUS_STATES[state]:
            raise InvalidTransitionError(f"group {self.group_id!r} cannot go from {self.state} to {state}")
        return replace(self, state=state, previous_state=self.state, state_timestamp_ms=now_ms)

    def with_member(self, member: Member) -> Group:
        """Return the group with a member added or updated."""
        return replace(self, members={**self.members, member.member_id: member})

    def without(self, member_ids: Iterable[str]) -> Group:
        """Return the group without some members, pending or not. If the leader is gone, the first one left leads."""
        gone = frozenset(member_ids)
        members = {member_id: member for member_id, member in self.members.items() if member_id not in gone}
        pending = {member_id: at for member_id, at in self.pending_members.items() if member_id not in gone}
        leader = next(iter(members), None) if self.leader in gone else self.leader
        pending_sync = self.pending_sync - gone
        return replace(self, members=members, pending_members=pending, leader=leader, pending_sync=pending_sync)

    def with_protocol(self, name: str) -> Group:
        """Return the group with a protocol selected, and the topics that its members' metadata subscribes to."""
        return replace(self, protocol_name=name).with_subscribed_topics()

    def with_subscribed_topics(self) -> Group:
        """Return the group with its members' topics, read from their metadata for the selected protocol."""
        return replace(self, subscribed_topics=self._read_subscribed_topics())

    def _read_subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: frozenset[str] = frozenset()
        for member in self.members.values():
            subscribed = read_subscribed_topics(member.metadata(self.protocol_name))
            if subscribed is None:
                return None
            topics |= subscribed
        return topics
