"""States of a group of the classic protocol, and the valid steps between them."""

from __future__ import annotations

from enum import StrEnum


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
