"""A consumer group (KIP-848) as one immutable value, with queries on it.

Three epochs drive it. The group epoch is incremented by every change that affects the assignment; the assignment epoch
is the group epoch for which the target assignment was made; a member's epoch is the assignment epoch that it has
reached. Deadlines are part of the value, in the clock's milliseconds, as in the classic `Group`.
"""

from __future__ import annotations

import base64
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.states import ConsumerGroupState, MemberState
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.groups.group import Group, Protocol

JOIN_EPOCH = 0
"""The epoch that a member sends to join, or to rejoin after it was fenced."""
LEAVE_EPOCH = -1
"""The epoch that a member sends to leave for good."""
LEAVE_STATIC_MEMBER_EPOCH = -2
"""The epoch that a static member sends to leave temporarily; it keeps this epoch until it returns."""

FIRST_EPOCH = 1
"""Epoch of a new group, as in Kafka 4.4. Members at this epoch have no partitions yet and wait for their first."""

Assignment = frozenset[TopicIdPartition]
NOTHING: Assignment = frozenset()


def new_member_id() -> str:
    """Return an id for a member without one, in the format of Kafka's UUIDs."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


class HeartbeatResponse(NamedTuple):
    """Response to an accepted heartbeat."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """None if it has no assignment."""


class ClassicMetadata(NamedTuple):
    """The metadata of a member that uses the classic protocol (online migration)."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


class RegularExpression(NamedTuple):
    """The topics that a regular expression matches, as last resolved."""

    topics: frozenset[str]
    version: int
    """The version of the cluster's topics at that time; -1 if another coordinator resolved it."""
    timestamp_ms: int


class ConsumerGroupSettings(NamedTuple):
    """The settings that decisions about a consumer group depend on."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_size: int
    assignment_interval_ms: int
    regex_refresh_interval_ms: int
    allows_upgrade: bool
    allows_downgrade: bool
    assignors: tuple[str, ...]
    """The names that members may request; the first is the default."""
    classic_max_size: int
    refuses_malformed: bool = True
    """Whether an unreadable subscription of the classic protocol gets error 23 (KAFKA-20662) instead of -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member of a consumer group."""

    member_id: str
    instance_id: str | None = None
    """Set for a static member."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topics: frozenset[str] = frozenset()
    subscribed_regex: str = ""
    server_assignor: str | None = None
    classic: ClassicMetadata | None = None
    """Set for a member that uses the classic protocol."""

    member_epoch: int = 0
    previous_epoch: int = -1
    """A member that sends this epoch may have missed the response with the newer epoch."""
    state: MemberState = MemberState.STABLE
    assigned: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """Its partitions, with the epoch since which it has each (KIP-1251)."""
    revoking: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """Partitions that it has to revoke; until it has, no other member may get them."""

    session_deadline_ms: int | None = None
    rebalance_deadline_ms: int | None = None
    """The deadline for revoking its partitions."""
    join_deadline_ms: int | None = None
    """The deadline for a member of the classic protocol to rejoin."""
    sync_deadline_ms: int | None = None
    """The deadline for a member of the classic protocol to send SyncGroup."""

    @property
    def is_classic(self) -> bool:
        return self.classic is not None

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that left temporarily."""
        return self.member_epoch == LEAVE_STATIC_MEMBER_EPOCH

    def is_at(self, epoch: int) -> bool:
        """Return whether it has all of its partitions in the target assignment of `epoch`."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    @property
    def owned(self) -> Iterator[TopicIdPartition]:
        """The partitions that no other member may have: its own, and those that it has not revoked yet."""
        yield from self.assigned
        yield from self.revoking

    @property
    def metadata(self) -> tuple[object, ...]:
        """The fields of its member record (key 5)."""
        return (
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.subscribed_topics,
            self.subscribed_regex,
            self.server_assignor,
            self.classic,
        )

    @property
    def current(self) -> tuple[object, ...]:
        """The fields of its current assignment's record (key 8)."""
        return (self.member_epoch, self.previous_epoch, self.state, self.assigned, self.revoking)

    @property
    def deadlines(self) -> Iterator[int]:
        for at in (
            self.session_deadline_ms,
            self.rebalance_deadline_ms,
            self.join_deadline_ms,
            self.sync_deadline_ms,
        ):
            if at is not None:
                yield at


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """A group at one moment. Mappings are never changed in place; members are in the order in which they joined."""

    group_id: str
    group_epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    """Hash of the topics at the last bump of the group epoch; see `topics.metadata_hash`."""
    assignment_epoch: int = FIRST_EPOCH
    assignment_timestamp_ms: int = 0
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)
    targets: Mapping[str, Assignment] = field(default_factory=dict)
    """The target assignment, by member id."""
    regular_expressions: Mapping[str, RegularExpression] = field(default_factory=dict)
    """The members' resolved regular expressions."""
    is_resolving: bool = False
    """Whether regular expressions are being resolved now."""
    topics_version: int = -1
    """The version of the cluster's topics at the last check; -1 before this coordinator's first check."""

    # queries

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_at(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def protocol_type(self) -> str:
        return "consumer"

    def target(self, member_id: str) -> Assignment:
        """Return a member's target assignment."""
        return self.targets.get(member_id, NOTHING)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the member that now has a static instance id."""
        if instance_id is None:
            return None
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def known_member(self, member_id: str) -> ConsumerMember:
        """Return the member. Raises RefusedError (25) if the id is unknown."""
        member = self.members.get(member_id)
        if member is None:
            raise RefusedError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def owners(self) -> dict[TopicIdPartition, str]:
        """Return the owner of each partition: the member that has it, or has not revoked it yet."""
        return {name: member.member_id for member in self.members.values() for name in member.owned}

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics that a member subscribes to, by name or by a resolved regular expression."""
        expression = self.regular_expressions.get(member.subscribed_regex) if member.subscribed_regex else None
        return member.subscribed_topics if expression is None else member.subscribed_topics | expression.topics

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The subscribed topics of all members."""
        return frozenset().union(*(self.topics_of(member) for member in self.members.values()))

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether any member subscribes to a topic."""
        return any(topic in self.topics_of(member) for member in self.members.values())

    def subscribers_of(self, regex: str) -> int:
        """Return how many members subscribe to a regular expression."""
        return sum(member.subscribed_regex == regex for member in self.members.values())

    @property
    def subscribed_regexes(self) -> frozenset[str]:
        return frozenset(member.subscribed_regex for member in self.members.values() if member.subscribed_regex)

    def assignor(self, default: str) -> str:
        """Return the assignor that most members request; on a tie, the one requested first."""
        requested = (member.server_assignor for member in self.members.values())
        votes = Counter(name for name in requested if name is not None)
        return votes.most_common(1)[0][0] if votes else default

    def classic_protocols(self) -> frozenset[str]:
        """Return the protocols that all members of the classic protocol support; empty if there are no such members."""
        spoken = [
            frozenset(protocol.name for protocol in member.classic.protocols)
            for member in self.members.values()
            if member.classic is not None
        ]
        return frozenset.intersection(*spoken) if spoken else frozenset()

    def supports_classic(self, protocol_type: str, names: frozenset[str]) -> bool:
        """Return whether a member of the classic protocol can join the group."""
        if protocol_type != self.protocol_type:
            return False
        has_classic = any(member.is_classic for member in self.members.values())
        return bool(names & self.classic_protocols()) if has_classic else bool(names)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Return whether another member has not yet revoked a partition of this member's target."""
        missing = self.target(member.member_id) - member.assigned.keys()
        owners = self.owners() if missing else {}
        return any(name in owners for name in missing)

    @property
    def next_deadline_ms(self) -> int | None:
        """The earliest deadline (see `membership.tick`); None if there is none."""
        return min((at for member in self.members.values() for at in member.deadlines), default=None)

    # changes

    def with_member(self, member: ConsumerMember) -> ConsumerGroup:
        """Return the group with a member added or updated."""
        return replace(self, members={**self.members, member.member_id: member})

    def without(self, member_ids: Iterable[str]) -> ConsumerGroup:
        """Return the group without some members, their targets, and regular expressions that only they subscribe to."""
        gone = frozenset(member_ids)
        members = {name: member for name, member in self.members.items() if name not in gone}
        targets = {name: target for name, target in self.targets.items() if name not in gone}
        return replace(self, members=members, targets=targets).with_regexes_in_use()

    def with_regexes_in_use(self) -> ConsumerGroup:
        """Return the group without regular expressions that no member subscribes to."""
        in_use = self.subscribed_regexes
        if self.regular_expressions.keys() <= in_use:
            return self
        kept = {regex: found for regex, found in self.regular_expressions.items() if regex in in_use}
        return replace(self, regular_expressions=kept)


AnyGroup = Group | ConsumerGroup


def known_instance(present: ConsumerMember | None, member_id: str, instance_id: str) -> ConsumerMember:
    """Check that a static instance has this member id; return the member.

    Raises RefusedError: 25 if the instance is unknown, 82 if it has another member id.
    """
    if present is None:
        raise RefusedError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if present.member_id != member_id:
        raise RefusedError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {present.member_id}.",
        )
    return present
