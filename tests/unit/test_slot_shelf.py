"""The order of turns, and where slots are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dualwrite.recipes.core.leases import slot_of, transactional_id_of
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.pool.slots import Hand, PooledSlot, SlotRegistry, Turn


class FakeWrites:
    def __init__(self, number: int) -> None:
        self.transactional_id = transactional_id_of("p", number)
        self.state = SlotState.READY
        self.owned = SimpleNamespace(slot=self)
        self.has_stored = False
        self.refused = None


def a_slot(number: int) -> PooledSlot:
    return PooledSlot(number, cast(Any, FakeWrites(number)))


class Asker:
    """A caller that asks for a turn, and records in `served` when it woke."""

    def __init__(self, shelf: SlotRegistry, name: int, served: list[int]) -> None:
        self.turn = Turn()
        self.turn.wake = lambda: served.append(name)
        shelf.request_turn(self.turn)


def used_by(shelf: SlotRegistry, slot: PooledSlot) -> Turn:
    """Let a block use a new slot."""
    turn = Turn()
    shelf.request_turn(turn)
    shelf.take_new(slot, turn)
    return turn


def next_of(shelf: SlotRegistry) -> PooledSlot | None:
    """The idle slot that a block gets."""
    turn = Turn()
    shelf.request_turn(turn)
    assert shelf.take_idle(turn) is (turn.taken is not None)
    return turn.taken


def test_turns_are_given_in_the_order_of_asking() -> None:
    shelf = SlotRegistry(2)
    served: list[int] = []
    askers = [Asker(shelf, number, served) for number in range(6)]
    assert [asker.turn.granted for asker in askers] == [True, True, False, False, False, False]
    shelf.end_turn(askers.pop(2).turn)  # it waits no longer
    for asker in askers[:3]:
        shelf.end_turn(asker.turn)
        shelf.end_turn(asker.turn)
    assert served == [3, 4, 5]
    assert not Asker(shelf, 6, served).turn.granted
    assert shelf.places().waiting == 1


class LockAfter:
    """A lock before which, once, another thread gets its turn."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._genuine = threading.Lock()
        self._left = [meanwhile]

    def __enter__(self) -> None:
        if self._left:
            self._left.pop()()
        self._genuine.acquire()

    def __exit__(self, *_: object) -> None:
        self._genuine.release()


def test_a_slot_that_is_put_back_while_others_are_attended_is_not_lost() -> None:
    shelf = SlotRegistry(1)
    slot = a_slot(0)
    used_by(shelf, slot)
    shelf._lock = cast(Any, LockAfter(lambda: shelf.attend_all_idle(Hand())))
    shelf.put_idle(slot)
    assert next_of(shelf) is slot


def test_the_slot_that_was_used_last_is_used_next() -> None:
    shelf = SlotRegistry(3)
    slots = [a_slot(0), a_slot(1), a_slot(2)]
    for slot in slots:
        used_by(shelf, slot)
    for slot in slots:
        shelf.put_idle(slot)
    assert [next_of(shelf) for _ in range(3)] == [slots[2], slots[1], slots[0]]


def test_a_slot_is_taken_at_once_only_below_the_limit() -> None:
    shelf, other, turn = SlotRegistry(1), Turn(), Turn()
    used_by(shelf, slot := a_slot(0))
    shelf.put_idle(slot)
    shelf.request_turn(other)
    assert not shelf.take_at_once(turn)
    shelf.end_turn(other)
    assert shelf.take_at_once(turn)
    assert turn.taken is slot
    assert shelf.places().waiting == 0


def test_a_slot_put_aside_makes_room_for_another() -> None:
    shelf = SlotRegistry(1)
    used_by(shelf, slot := a_slot(0))
    waiting = Asker(shelf, 1, [])
    shelf.put_aside(slot)
    assert waiting.turn.granted
    assert not shelf.take_idle(waiting.turn)
    assert shelf.places().set_aside == ("p-0",)


def test_a_block_that_exchanges_an_idle_slot_keeps_its_turn() -> None:
    shelf = SlotRegistry(1)
    turn = used_by(shelf, slot := a_slot(0))
    waiting = Asker(shelf, 1, [])
    shelf.put_idle(slot, keep_turn=True)
    assert not waiting.turn.granted
    assert shelf.take_idle(turn)
    assert shelf.places().in_use == 1


def test_new_slots_do_not_stand_in_without_end() -> None:
    shelf = SlotRegistry(2)
    for number in range(3):
        slot = a_slot(number)
        assert used_by(shelf, slot).granted
        shelf.put_aside(slot)
    waiting = Asker(shelf, 9, [])
    assert not waiting.turn.granted
    attended = shelf.attend(Hand(), None)
    assert attended is not None
    assert len(shelf.places().set_aside) == 3  # it is not resolved yet
    shelf.put_idle(attended)
    assert waiting.turn.granted


def test_a_slot_is_attended_to_by_one_and_when_it_is_due() -> None:
    shelf, hand = SlotRegistry(2), Hand()
    slot = a_slot(0)
    slot.not_before_s = 10.0
    used_by(shelf, slot)
    shelf.put_aside(slot)
    assert shelf.next_due_s == 10.0
    assert shelf.attend(hand, 9.9) is None
    shelf.make_due()
    assert shelf.next_due_s == 0.0
    slot.not_before_s = 10.0
    assert shelf.attend(hand, 10.0) is slot
    assert shelf.attend(Hand(), None) is None


def test_an_interruption_leaves_nothing_in_a_hand() -> None:
    shelf, hand = SlotRegistry(2), Hand()
    used_by(shelf, slot := a_slot(0))
    shelf.put_aside(slot)
    assert shelf.attend(hand, None) is slot
    assert shelf.reserve(7, hand)
    assert shelf.in_hand() == {0, 7}
    for _ in range(2):
        shelf.let_go(hand)
        assert shelf.in_hand() == set()
        assert shelf.numbers() == {0}
    assert shelf.attend(Hand(), None) is slot


def test_an_idle_slot_whose_lease_is_lost_is_gone() -> None:
    shelf = SlotRegistry(2)
    idle, used = a_slot(0), a_slot(1)
    for slot in (idle, used):
        used_by(shelf, slot)
    shelf.put_idle(idle)
    assert shelf.remove_idle([idle, used]) == [idle]
    assert next_of(shelf) is None
    assert shelf.all_slots() == [used]


@pytest.mark.parametrize(
    ("transactional_id", "slot"),
    [
        ("orders-0", 0),
        ("orders-12", 12),
        ("orders-012", None),
        ("orders-eu-0", None),
        ("orders", None),
        ("orders-", None),
        ("orders--1", None),
        ("orders-1000000", None),
        ("orders-\N{SUPERSCRIPT TWO}", None),
        ("Orders-0", None),
        ("my-orders-0", None),
    ],
)
def test_which_ids_are_slots_of_a_prefix(transactional_id: str, slot: int | None) -> None:
    assert slot_of("orders", transactional_id) == slot
