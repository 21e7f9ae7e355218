"""A consumer group (KIP-848) as one immutable value, and what can be read off it.

Three epochs drive it. The group epoch grows whenever something happened that the assignment depends on; the
assignment epoch is the group epoch that the target assignment was made for; a member's epoch says how far it has come
towards that target. Deadlines are part of the value, in the clock's milliseconds, as in the classic `Group`.
"""

from __future__ import annotations

import base64
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer.states import ConsumerGroupState, MemberState
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.groups.group import Protocol

JOIN_EPOCH = 0
"""The epoch with which a member joins, or joins again after it was fenced."""
LEAVE_EPOCH = -1
"""The epoch with which a member leaves for good."""
LEAVE_FOR_A_WHILE_EPOCH = -2
"""The epoch with which a static member leaves and means to come back; a member that is away has it."""

FIRST_EPOCH = 1
"""Of a new group, as in Kafka 4.4: nobody has anything in it, and who waits for a first assignment is in it."""

Assignment = frozenset[TopicIdPartition]
NOTHING: Assignment = frozenset()


def new_member_id() -> str:
    """An id for a member that has none, as Kafka writes its UUIDs."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


class RefusedError(Exception):
    """A request is not granted; nothing has changed."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class ClassicMetadata(NamedTuple):
    """What is known of a member that speaks the classic protocol (online migration)."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


class RegularExpression(NamedTuple):
    """The topics that a regular expression was found to match."""

    topics: frozenset[str]
    version: int
    """The version of the topics that was looked at; -1 for what another coordinator looked at."""
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
    """The names that members may ask for; the first is taken where none does."""
    classic_max_size: int


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
    """Set for a member that speaks the classic protocol."""

    member_epoch: int = 0
    previous_epoch: int = -1
    """A member that comes with this one may have missed the answer with the newer one."""
    state: MemberState = MemberState.STABLE
    assigned: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """Its partitions, and since which epoch each is its (KIP-1251)."""
    revoking: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """Partitions that it has to give up, and nobody else may have until it did."""

    session_deadline_ms: int | None = None
    rebalance_deadline_ms: int | None = None
    """When it must have given its partitions up."""
    join_deadline_ms: int | None = None
    """When a member of the classic protocol must have joined again."""
    sync_deadline_ms: int | None = None
    """When a member of the classic protocol must have asked for its assignment."""

    @property
    def is_classic(self) -> bool:
        return self.classic is not None

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that left for a while."""
        return self.member_epoch == LEAVE_FOR_A_WHILE_EPOCH

    def is_at(self, epoch: int) -> bool:
        """Whether it has all that the target assignment of `epoch` gives it."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    @property
    def owned(self) -> Iterator[TopicIdPartition]:
        """What nobody else may have: its partitions, and those that it has not given up yet."""
        yield from self.assigned
        yield from self.revoking

    @property
    def metadata(self) -> tuple[object, ...]:
        """What its member record says (key 5)."""
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
        """What its record of the current assignment says (key 8)."""
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
    """A group at one moment. Mappings are never changed in place; members stand in the order in which they joined."""

    group_id: str
    group_epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    """Of the topics that the group epoch was made for; see `topics.metadata_hash`."""
    assignment_epoch: int = FIRST_EPOCH
    assignment_timestamp_ms: int = 0
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)
    targets: Mapping[str, Assignment] = field(default_factory=dict)
    """The target assignment, by member id."""
    regular_expressions: Mapping[str, RegularExpression] = field(default_factory=dict)
    """Those that members subscribe to, as far as they are resolved."""
    is_resolving: bool = False
    """Whether regular expressions are being resolved just now."""
    topics_version: int = -1
    """The version of the cluster's topics that was looked at last; -1: none by this coordinator."""

    # questions

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
        """What a member is to have."""
        return self.targets.get(member_id, NOTHING)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member that a static instance is at present."""
        if instance_id is None:
            return None
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def known_member(self, member_id: str) -> ConsumerMember:
        """Raises RefusedError (25) where there is none."""
        member = self.members.get(member_id)
        if member is None:
            raise RefusedError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def owners(self) -> dict[TopicIdPartition, str]:
        """Who has each partition, or has not given it up yet."""
        return {name: member.member_id for member in self.members.values() for name in member.owned}

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that a member subscribes to, by name or by a regular expression that is resolved."""
        expression = self.regular_expressions.get(member.subscribed_regex) if member.subscribed_regex else None
        return member.subscribed_topics if expression is None else member.subscribed_topics | expression.topics

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The topics of all members."""
        return frozenset().union(*(self.topics_of(member) for member in self.members.values()))

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether the members consume a topic."""
        return any(topic in self.topics_of(member) for member in self.members.values())

    def subscribers_of(self, regex: str) -> int:
        """How many members subscribe to a regular expression."""
        return sum(member.subscribed_regex == regex for member in self.members.values())

    @property
    def subscribed_regexes(self) -> frozenset[str]:
        return frozenset(member.subscribed_regex for member in self.members.values() if member.subscribed_regex)

    def assignor(self, default: str) -> str:
        """The assignor that most members ask for; of several, the one that was asked for first."""
        asked_for = (member.server_assignor for member in self.members.values())
        votes = Counter(name for name in asked_for if name is not None)
        return votes.most_common(1)[0][0] if votes else default

    def classic_protocols(self) -> frozenset[str]:
        """What every member of the classic protocol speaks; the question is idle where there is none."""
        spoken = [
            frozenset(protocol.name for protocol in member.classic.protocols)
            for member in self.members.values()
            if member.classic is not None
        ]
        return frozenset.intersection(*spoken) if spoken else frozenset()

    def supports_classic(self, protocol_type: str, names: frozenset[str]) -> bool:
        """Whether a member of the classic protocol could be part of the group."""
        if protocol_type != self.protocol_type:
            return False
        has_classic = any(member.is_classic for member in self.members.values())
        return bool(names & self.classic_protocols()) if has_classic else bool(names)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether something of a member's target is not given up by another one yet."""
        missing = self.target(member.member_id) - member.assigned.keys()
        owners = self.owners() if missing else {}
        return any(name in owners for name in missing)

    @property
    def next_deadline_ms(self) -> int | None:
        """When something is due next (see `deadlines.tick`); None if nothing ever is."""
        return min((at for member in self.members.values() for at in member.deadlines), default=None)

    # changes

    def with_member(self, member: ConsumerMember) -> ConsumerGroup:
        """With a member added or replaced by its new self."""
        return replace(self, members={**self.members, member.member_id: member})

    def without(self, member_ids: Iterable[str]) -> ConsumerGroup:
        """Without some members, their targets, and the regular expressions that nobody else subscribes to."""
        gone = frozenset(member_ids)
        members = {name: member for name, member in self.members.items() if name not in gone}
        targets = {name: target for name, target in self.targets.items() if name not in gone}
        return replace(self, members=members, targets=targets).with_regexes_in_use()

    def with_regexes_in_use(self) -> ConsumerGroup:
        """Without the regular expressions that nobody subscribes to."""
        in_use = self.subscribed_regexes
        if self.regular_expressions.keys() <= in_use:
            return self
        kept = {regex: found for regex, found in self.regular_expressions.items() if regex in in_use}
        return replace(self, regular_expressions=kept)


def known_instance(present: ConsumerMember | None, member_id: str, instance_id: str) -> ConsumerMember:
    """The static member, where it is the one who asks. Raises RefusedError: 25 where there is none, 82 for another."""
    if present is None:
        raise RefusedError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if present.member_id != member_id:
        raise RefusedError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {present.member_id}.",
        )
    return present
