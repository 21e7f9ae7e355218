"""Several transactional ids in one world, each with its row, its coordinator, its partition and its late requests.

Every step concerns one id only, except for a database commit. So a world has one id in front, on which all steps are
written, and the others beside it; for a step of another id, that one is brought to the front and back.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from tests.proof.kafka_model import Kafka


class OfSlot(NamedTuple):
    """A request that concerns the transactional id of a slot of a pool other than the first one."""

    slot: int
    request: Hashable


class Lane(NamedTuple):
    """One transactional id."""

    kafka: Kafka = Kafka()
    row: tuple[str, str] = ("", "")
    late: tuple[Any, ...] = ()


class Held(NamedTuple):
    """A database transaction's effect on the row of an id that is not in front."""

    slot: int
    is_locked: bool
    row: tuple[str, str] | None


def exchanged(lanes: tuple[Lane, ...], slot: int, front: Lane) -> tuple[Lane, tuple[Lane, ...]]:
    """Return the lane of a slot, which has never been used if it is not there, and the lanes with `front` instead."""
    lanes = lanes + (Lane(),) * (slot - len(lanes))
    return lanes[slot - 1], (*lanes[: slot - 1], front, *lanes[slot:])


def exchanged_hold(held: tuple[Held, ...], front: Held) -> tuple[Held, tuple[Held, ...]]:
    """Return the transaction's effect on the row of `front.slot`, and the others with `front` instead."""
    found = next((each for each in held if each.slot == front.slot), Held(front.slot, is_locked=False, row=None))
    rest = tuple(each for each in held if each.slot != front.slot)
    if not front.is_locked and front.row is None:
        return found, rest
    return found, tuple(sorted((*rest, front)))
