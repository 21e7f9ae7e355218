"""Several transactional ids in one world, each with its row, its coordinator, its partition and its late requests.

Every step concerns one id only, except for a database commit. So a world has one id in front, on which all steps are
written, and the others beside it; for a step of another id, that one is brought to the front and back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

from dualwrite.recipes.core.leases import outbox_id_of, slot_of
from tests.proof.kafka_model import Kafka
from tests.proof.lease_model import PREFIX

OUTBOX_LANE: Final = 1


class OfSlot(NamedTuple):
    """A request that concerns the transactional id of a slot of a pool other than the first one."""

    slot: int
    request: Hashable


def with_topic(kafka: Kafka, of: Kafka) -> Kafka:
    """Return the state of one id, with the topic and the producer ids of another one's."""
    return kafka._replace(logs=of.logs, next_producer_id=of.next_producer_id)


class Lane(NamedTuple):
    """One transactional id."""

    kafka: Kafka = Kafka()
    row: tuple[str, str] = ("", "")
    late: tuple[Any, ...] = ()


def lane_of(transactional_id: str) -> int:
    """Return the place of an id of a pool: that of the outbox comes behind the first slot."""
    if transactional_id == outbox_id_of(PREFIX):
        return OUTBOX_LANE
    slot = slot_of(PREFIX, transactional_id)
    assert slot is not None, transactional_id
    return slot + (slot >= OUTBOX_LANE)


def slots_of(beside: tuple[Lane, ...]) -> int:
    """Return how many slots of a pool have rows."""
    return max(1, len(beside))


def with_rows(beside: tuple[Lane, ...], rows: Sequence[tuple[str, str]]) -> tuple[Lane, ...]:
    """Return the lanes with other rows; those that are missing are empty."""
    missing = [("", "")] * (len(beside) - len(rows))
    return tuple(lane._replace(row=row) for lane, row in zip(beside, (*rows, *missing), strict=True))


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
