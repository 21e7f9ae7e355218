"""States of a consumer group (KIP-848) and of its members, and the valid steps between them.

A group's state is not stored: it follows from its epochs and its members (`ConsumerGroup.state`). A decision takes a
group through one state at a time, and the tables here check each step.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ConsumerGroupState(StrEnum):
    """A group's state; the value is the name that the APIs show."""

    EMPTY = "Empty"
    """No members."""
    ASSIGNING = "Assigning"
    """The group epoch is ahead of the assignment epoch: a new target assignment is due."""
    RECONCILING = "Reconciling"
    """Some members have not reached the target assignment."""
    STABLE = "Stable"
    """Every member is at the target assignment's epoch and has all of its partitions."""
    DEAD = "Dead"
    """Deleted, converted, or moved to another coordinator. Groups in this state are not kept."""


NEXT_GROUP_STATES: dict[ConsumerGroupState, dict[ConsumerGroupState, str]] = {
    ConsumerGroupState.EMPTY: {
        ConsumerGroupState.ASSIGNING: "a member joins",
        ConsumerGroupState.RECONCILING: "a member joins whose topics are not known yet",
        ConsumerGroupState.DEAD: "deleted, expired, or joined by a classic member",
    },
    ConsumerGroupState.ASSIGNING: {
        ConsumerGroupState.RECONCILING: "target assignment",
        ConsumerGroupState.STABLE: "target assignment that every member already has",
        ConsumerGroupState.EMPTY: "the last member leaves",
        ConsumerGroupState.DEAD: "only classic members are left",
    },
    ConsumerGroupState.RECONCILING: {
        ConsumerGroupState.STABLE: "every member is at the target",
        ConsumerGroupState.ASSIGNING: "a member joins, leaves or resubscribes, or topics change",
        ConsumerGroupState.EMPTY: "the last member leaves",
        ConsumerGroupState.DEAD: "only classic members are left",
    },
    ConsumerGroupState.STABLE: {
        ConsumerGroupState.ASSIGNING: "a member joins, leaves or resubscribes, or topics change",
        ConsumerGroupState.RECONCILING: "a static member leaves temporarily, or a member revokes topics",
        ConsumerGroupState.EMPTY: "the last member leaves",
        ConsumerGroupState.DEAD: "only classic members are left",
    },
    ConsumerGroupState.DEAD: {},
}
"""The states that may follow each state, with the cause of each step."""


class MemberState(IntEnum):
    """A member's progress in its reconciliation; the value is the number in its record (key 8)."""

    STABLE = 0
    """It has all partitions of its epoch's target assignment."""
    UNREVOKED_PARTITIONS = 1
    """It has to revoke partitions before it reaches the next epoch."""
    UNRELEASED_PARTITIONS = 2
    """It is at the target's epoch, but other members have not revoked some of its partitions yet."""
    UNKNOWN = 127
    """Written by a newer broker. The member is fenced, unless it reports that it owns nothing."""

    @classmethod
    def from_number(cls, number: int) -> MemberState:
        """Return the state for a number in a record; UNKNOWN for a number unknown to this version."""
        return cls(number) if number in tuple(cls) else cls.UNKNOWN


NEXT_MEMBER_STATES: dict[MemberState, dict[MemberState, str]] = {
    MemberState.STABLE: {
        MemberState.UNREVOKED_PARTITIONS: "target without some of its partitions",
        MemberState.UNRELEASED_PARTITIONS: "target with partitions that others have",
    },
    MemberState.UNREVOKED_PARTITIONS: {
        MemberState.STABLE: "revoked, target reached",
        MemberState.UNRELEASED_PARTITIONS: "revoked, others have not",
    },
    MemberState.UNRELEASED_PARTITIONS: {
        MemberState.STABLE: "others have revoked",
        MemberState.UNREVOKED_PARTITIONS: "newer target without some of its partitions",
    },
    MemberState.UNKNOWN: {
        MemberState.STABLE: "rejoins owning nothing",
        MemberState.UNRELEASED_PARTITIONS: "rejoins owning nothing, others have not revoked",
    },
}
"""The states that may follow each member state, with the cause; none after a member left or was fenced."""


class InvalidStepError(Exception):
    """The table of states does not allow a step: a bug in this package."""


def check_group_step(group_id: str, before: ConsumerGroupState, after: ConsumerGroupState) -> None:
    """Raise InvalidStepError if the table does not allow the step."""
    if before is not after and after not in NEXT_GROUP_STATES[before]:
        raise InvalidStepError(f"consumer group {group_id!r} cannot go from {before} to {after}")


def check_member_step(member_id: str, before: MemberState, after: MemberState) -> None:
    """Raise InvalidStepError if the table does not allow the step."""
    if before is not after and after not in NEXT_MEMBER_STATES[before]:
        raise InvalidStepError(f"member {member_id!r} cannot go from {before.name} to {after.name}")
