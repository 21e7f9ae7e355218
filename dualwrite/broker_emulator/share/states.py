"""The states of a share group and of a record in flight, and the steps between them."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ShareGroupState(StrEnum):
    """A group's state; the value is the name that the APIs show."""

    EMPTY = "Empty"
    """No members."""
    STABLE = "Stable"
    """At least one member. Members share partitions, so there is nothing to reconcile."""
    DEAD = "Dead"
    """Deleted. Groups in this state are not kept."""


NEXT_GROUP_STATES: dict[ShareGroupState, dict[ShareGroupState, str]] = {
    ShareGroupState.EMPTY: {ShareGroupState.STABLE: "a member joins", ShareGroupState.DEAD: "deleted"},
    ShareGroupState.STABLE: {ShareGroupState.EMPTY: "the last member leaves"},
    ShareGroupState.DEAD: {},
}
"""The states that may follow each state, with the cause of each step."""


class RecordState(IntEnum):
    """The state of a record of a share-partition; the value is the number in requests and in persisted state."""

    AVAILABLE = 0
    """It can be acquired."""
    ACQUIRED = 1
    """A member has it until its acquisition lock times out. Never persisted."""
    ACKNOWLEDGED = 2
    """A member has processed it."""
    ARCHIVED = 4
    """It is not delivered again: rejected, a gap, delivered too often, or deleted from the log."""


NEXT_RECORD_STATES: dict[RecordState, dict[RecordState, str]] = {
    RecordState.AVAILABLE: {
        RecordState.ACQUIRED: "fetched by a member",
        RecordState.ARCHIVED: "deleted from the log",
    },
    RecordState.ACQUIRED: {
        RecordState.AVAILABLE: "released, or the acquisition lock timed out",
        RecordState.ACKNOWLEDGED: "accepted",
        RecordState.ARCHIVED: "rejected, a gap, or released at the delivery count limit",
    },
    RecordState.ACKNOWLEDGED: {},
    RecordState.ARCHIVED: {},
}
"""The states that may follow each state, with the cause of each step."""

FINAL_RECORD_STATES = frozenset(state for state, after in NEXT_RECORD_STATES.items() if not after)
"""The states of records whose delivery is complete."""


PERSISTED_RECORD_STATES = frozenset(RecordState) - {RecordState.ACQUIRED}
"""The states that persisted batches can have."""


class AcknowledgeType(IntEnum):
    """A member's acknowledgement of an acquired record; the value is the number in requests."""

    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The member needs more time (KIP-1222)."""


STATE_AFTER: dict[AcknowledgeType, RecordState] = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
    AcknowledgeType.RENEW: RecordState.ACQUIRED,
}
"""The state to which an acknowledgement takes a record. At the delivery count limit, a released record is archived."""


class InvalidStepError(Exception):
    """The table of states does not allow a step: a bug in this package."""


def check_group_step(group_id: str, before: ShareGroupState, after: ShareGroupState) -> None:
    """Raise InvalidStepError if the table does not allow the step."""
    if before is not after and after not in NEXT_GROUP_STATES[before]:
        raise InvalidStepError(f"share group {group_id!r} cannot go from {before} to {after}")


def check_record_step(offset: int, before: RecordState, after: RecordState) -> None:
    """Raise InvalidStepError if the table does not allow the step."""
    if before is not after and after not in NEXT_RECORD_STATES[before]:
        raise InvalidStepError(f"the record at offset {offset} cannot go from {before.name} to {after.name}")
