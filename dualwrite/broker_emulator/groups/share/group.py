"""A share group as one immutable value, with queries on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.group import FIRST_EPOCH, NOTHING, Assignment
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.share.states import ShareGroupState

ASSIGNOR = "simple"


class StateTopic(NamedTuple):
    """The partitions of a topic whose share state the group coordinator tracks."""

    name: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    """One member of a share group."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topics: frozenset[str] = frozenset()
    member_epoch: int = 0
    previous_epoch: int = 0
    """A member that sends this epoch may have missed the response with the newer epoch."""
    assigned: Assignment = NOTHING
    session_deadline_ms: int | None = None

    @property
    def metadata(self) -> tuple[object, ...]:
        """The content of its metadata record."""
        return self.rack_id, self.client_id, self.client_host, self.subscribed_topics

    @property
    def current(self) -> tuple[object, ...]:
        """The content of its current assignment record."""
        return self.member_epoch, self.previous_epoch, self.assigned


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroup:
    """A share group."""

    group_id: str
    group_epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    topics_version: int = -1
    """The version of the cluster's topics at which the hash was computed; -1 if another coordinator computed it."""
    members: Mapping[str, ShareMember] = field(default_factory=dict)
    targets: Mapping[str, Assignment] = field(default_factory=dict)
    assignment_epoch: int = FIRST_EPOCH
    assignment_timestamp_ms: int = 0
    initializing: Mapping[UUID, StateTopic] = field(default_factory=dict)
    """The partitions whose state is being initialized: it is not known yet whether they have state."""
    initialized: Mapping[UUID, StateTopic] = field(default_factory=dict)
    """The partitions that have state; only these are assigned."""
    deleting: Mapping[UUID, str] = field(default_factory=dict)
    """The topics whose state is being deleted."""

    @property
    def state(self) -> ShareGroupState:
        """The group's state, which follows from its members."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def protocol_type(self) -> str:
        """The protocol type that ListGroups shows."""
        return "share"

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """All topics that members subscribe to."""
        return frozenset().union(*(member.subscribed_topics for member in self.members.values()))

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next session times out, or None."""
        deadlines = (member.session_deadline_ms for member in self.members.values())
        return min((deadline_ms for deadline_ms in deadlines if deadline_ms is not None), default=None)

    def target(self, member_id: str) -> Assignment:
        """Return a member's target assignment."""
        return self.targets.get(member_id, NOTHING)

    def known_member(self, member_id: str) -> ShareMember:
        """Return a member. Raises RefusedError (25) if the id is unknown."""
        member = self.members.get(member_id)
        if member is None:
            message = f"Member {member_id} is not a member of group {self.group_id}."
            raise RefusedError(ErrorCode.unknown_member_id, message)
        return member

    def with_member(self, member: ShareMember) -> ShareGroup:
        """Return the group with a new or changed member."""
        return replace(self, members={**self.members, member.member_id: member})

    def without(self, member_id: str) -> ShareGroup:
        """Return the group without a member."""
        members = {other: member for other, member in self.members.items() if other != member_id}
        targets = {other: target for other, target in self.targets.items() if other != member_id}
        return replace(self, members=members, targets=targets)

    def initialized_partitions(self, topics: frozenset[UUID]) -> Assignment:
        """Return the partitions of some topics that have state."""
        return frozenset(
            TopicIdPartition(topic_id, index)
            for topic_id, topic in self.initialized.items()
            if topic_id in topics
            for index in topic.partitions
        )
