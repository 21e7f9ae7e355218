"""States of a consumer group (KIP-848) and of its members, and which may follow which.

A group's state is not stored: it is what its epochs and its members say (`ConsumerGroup.state`). A decision takes a
group through one state at a time, and each step is held against the tables here.
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
    """Members are on their way to the target assignment."""
    STABLE = "Stable"
    """Every member is at the target assignment's epoch and has what it says."""
    DEAD = "Dead"
    """Deleted, converted, or gone to another coordinator. Nothing is kept of a group in this state."""


NEXT_GROUP_STATES: dict[ConsumerGroupState, dict[ConsumerGroupState, str]] = {
    ConsumerGroupState.EMPTY: {
        ConsumerGroupState.ASSIGNING: "a member joins",
        ConsumerGroupState.RECONCILING: "a member joins whose topics are not known yet",
        ConsumerGroupState.DEAD: "deleted, expired, or joined by a classic member",
    },
    ConsumerGroupState.ASSIGNING: {
        ConsumerGroupState.RECONCILING: "target assignment",
        ConsumerGroupState.STABLE: "target assignment of a group that is at it already",
        ConsumerGroupState.EMPTY: "the last member leaves",
        ConsumerGroupState.DEAD: "only classic members are left",
    },
    ConsumerGroupState.RECONCILING: {
        ConsumerGroupState.STABLE: "every member is at the target",
        ConsumerGroupState.ASSIGNING: "a member comes, goes or subscribes anew, or topics change",
        ConsumerGroupState.EMPTY: "the last member leaves",
        ConsumerGroupState.DEAD: "only classic members are left",
    },
    ConsumerGroupState.STABLE: {
        ConsumerGroupState.ASSIGNING: "a member comes, goes or subscribes anew, or topics change",
        ConsumerGroupState.RECONCILING: "a static member leaves for a while, or a member gives up topics",
        ConsumerGroupState.EMPTY: "the last member leaves",
        ConsumerGroupState.DEAD: "only classic members are left",
    },
    ConsumerGroupState.DEAD: {},
}
"""What may follow each state, and by what."""


class MemberState(IntEnum):
    """How far a member is with its reconciliation; the value is the number in its record (key 8)."""

    STABLE = 0
    """It has what its epoch's target assignment gave it."""
    UNREVOKED_PARTITIONS = 1
    """It has to give partitions up before it goes on to the next epoch."""
    UNRELEASED_PARTITIONS = 2
    """It is at the target's epoch, but some of its partitions are not given up by others yet."""
    UNKNOWN = 127
    """Written by a newer broker. The member is fenced, unless it says that it owns nothing."""

    @classmethod
    def from_number(cls, number: int) -> MemberState:
        """The state with a record's number; UNKNOWN for one that is not known here."""
        return cls(number) if number in tuple(cls) else cls.UNKNOWN


NEXT_MEMBER_STATES: dict[MemberState, dict[MemberState, str]] = {
    MemberState.STABLE: {
        MemberState.UNREVOKED_PARTITIONS: "target without some of its partitions",
        MemberState.UNRELEASED_PARTITIONS: "target with partitions that others have",
    },
    MemberState.UNREVOKED_PARTITIONS: {
        MemberState.STABLE: "given up, target reached",
        MemberState.UNRELEASED_PARTITIONS: "given up, others have not",
    },
    MemberState.UNRELEASED_PARTITIONS: {
        MemberState.STABLE: "others have given up",
        MemberState.UNREVOKED_PARTITIONS: "newer target without some of its partitions",
    },
    MemberState.UNKNOWN: {
        MemberState.STABLE: "comes with nothing",
        MemberState.UNRELEASED_PARTITIONS: "comes with nothing, others have not given up",
    },
}
"""What may follow each member state, and by what. A member that leaves or is fenced has none any more."""


class InvalidStepError(Exception):
    """A state would follow another that the table does not allow; a mistake in this package."""


def check_group_step(group_id: str, before: ConsumerGroupState, after: ConsumerGroupState) -> None:
    """Raises InvalidStepError where the table does not allow it."""
    if before is not after and after not in NEXT_GROUP_STATES[before]:
        raise InvalidStepError(f"consumer group {group_id!r} cannot go from {before} to {after}")


def check_member_step(member_id: str, before: MemberState, after: MemberState) -> None:
    """Raises InvalidStepError where the table does not allow it."""
    if before is not after and after not in NEXT_MEMBER_STATES[before]:
        raise InvalidStepError(f"member {member_id!r} cannot go from {before.name} to {after.name}")
