"""The slots of this process: which blocks use them, and which blocks wait for one. No I/O and no clock.

Turns are granted in the order in which they were requested. A block that has a turn may use one slot: an idle one, or
one that it leases first. A slot that cannot be used now is put aside for the background to resolve.

A block can be interrupted at any of these steps, by the handler of a signal that raises. So each fact has one place,
and one assignment changes it: where a slot is, `PooledSlot.place`; whether a block may use one, `Turn.granted`; which
numbers are taken, the keys of `_slots`. Everything else is computed from these. A task names its hand when it takes a
slot, and `let_go` puts back the slots that an interruption has left there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from operator import attrgetter

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.refused import RefusedBlock
from dualwrite.recipes.core.slot import SlotState


class Hand:
    """One task that looks after slots. A slot that it takes is in its hand until it puts it back."""


def _nobody() -> None:
    """Wake nothing."""


class Turn(Hand):
    """The hand of a block: the right to use one slot, or a place in the queue for it."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = _nobody
        """Called when the turn is granted, from any thread."""
        self.granted = False
        self.slot: PooledSlot | None = None
        """The slot that the block uses, if its place is this turn."""
        self.unfit: set[PooledSlot] = set()
        """Slots that the block must not take again, because their ids hang; they may be idle."""

    @property
    def taken(self) -> PooledSlot | None:
        slot = self.slot
        return slot if slot is not None and slot.place is self else None


class Place(Enum):
    """The place of a slot that is in no hand."""

    IDLE = "idle"
    ASIDE = "aside"


@dataclass(eq=False, slots=True)
class PooledSlot:
    """One transactional id that this process has leased."""

    number: int
    coordinator: DualWriteCoordinator
    lease_lost: bool = False
    failures: int = 0
    """How many attempts to resolve it have failed since it was put aside."""
    not_before_s: float = 0.0
    """When to try next, by the monotonic clock."""
    place: Place | Hand = Place.ASIDE
    """Where it is: the turn of the block that uses it, or the hand that resolves it, or neither."""
    order: int = 0
    """Of idle slots the one with the highest is taken first; of those aside the one with the lowest."""


@dataclass(frozen=True, slots=True)
class Places:
    """The numbers of slots and of waiting blocks at one moment."""

    in_use: int
    idle: int
    waiting: int
    set_aside: tuple[str, ...]
    """Transactional ids that must be resolved before they are used again."""
    refused: tuple[RefusedBlock, ...] = ()
    """Owed records that Kafka has refused for good."""


@dataclass(eq=False)
class SlotRegistry:
    """The slots of one pool. Thread-safe; no method waits."""

    max_writers: int
    _slots: dict[int, PooledSlot | Hand] = field(default_factory=dict)
    """By number. In place of a slot: the hand that has reserved the number, to lease the slot or to end its lease."""
    _turns: dict[Turn, None] = field(default_factory=dict)
    """Granted or not, in the order in which they were requested."""
    _recovery: Hand | None = None
    """The hand of the recovery that is in progress."""
    _blocks: set[object] = field(default_factory=set)
    is_closed: bool = False
    _orders: count[int] = field(default_factory=lambda: count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # ---- blocks ---------------------------------------------------------------------------------------------

    def enter(self, block: object) -> None:
        """Register a block. Raises IllegalStateError after `close`."""
        with self._lock:
            if self.is_closed:
                raise IllegalStateError("this pool of dual writers is closed; nothing was written: make a new one")
            self._blocks.add(block)

    def leave(self, block: object) -> bool:
        """Unregister a block; harmless when repeated. Return whether `close` may be waiting for it."""
        with self._lock:
            self._blocks.discard(block)
            return self.is_closed

    @property
    def blocks(self) -> int:
        return len(self._blocks)

    def close(self) -> None:
        with self._lock:
            self.is_closed = True

    # ---- turns ----------------------------------------------------------------------------------------------

    def take_at_once(self, turn: Turn) -> bool:
        """Take a turn and an idle slot, and return True, if both are there and the slot need not wait for Kafka."""
        newest = None
        with self._lock:
            for slot in self._slots.values():  # each block does this, and calls would be most of its cost
                if isinstance(slot, Hand) or isinstance(slot.place, Turn):
                    continue
                if slot.place is not Place.IDLE:
                    return False
                if newest is None or slot.order > newest.order:
                    newest = slot
            if newest is None or newest.coordinator.state is not SlotState.READY:
                return False
            if len(self._turns) >= self.max_writers:
                return False
            self._take(newest, turn)
            turn.granted = True
            self._turns[turn] = None
            return True

    def request_turn(self, turn: Turn) -> None:
        """Request a turn, which may be granted at once; otherwise it is woken when it is. `end_turn` ends it."""
        with self._lock:
            is_next = self._waiting == 0 and self._has_turn
            self._turns[turn] = None
            turn.granted = is_next
            if is_next:
                turn.wake = _nobody

    def end_turn(self, turn: Turn) -> None:
        """Stop waiting, or give the turn back; harmless when repeated."""
        with self._lock:
            self._turns.pop(turn, None)
            granted = self._grant_all()
        if granted:
            _tell(granted)

    def wake_waiting(self) -> None:
        """Wake all blocks that wait for a turn, to check whether they still should."""
        with self._lock:
            waiting = [turn for turn in self._turns if not turn.granted]
        for turn in waiting:
            turn.wake()

    @property
    def _in_use(self) -> int:
        return sum(turn.granted for turn in self._turns)

    @property
    def _waiting(self) -> int:
        return len(self._turns) - self._in_use

    @property
    def _has_turn(self) -> bool:
        # New slots replace those that were put aside, up to a limit.
        return self._in_use < self.max_writers and sum(map(_is_open, self._every)) <= self.max_writers

    def _grant_all(self) -> list[Turn]:
        """Grant turns as long as there are some. Return all that may not have been woken yet."""
        has_turn, asleep = True, []
        for turn in self._turns:
            if not turn.granted and has_turn:
                has_turn = turn.granted = self._has_turn
            if turn.granted and turn.slot is None:
                asleep.append(turn)
        return asleep

    # ---- slots ----------------------------------------------------------------------------------------------

    @staticmethod
    def _take(slot: PooledSlot, turn: Turn) -> None:
        turn.slot = slot  # first, because from then on the end of the block puts the slot back
        slot.place = turn

    def take_idle(self, turn: Turn) -> bool:
        """Take the most recently used idle slot, whose connections are warm, with a turn. Return False if none fits."""
        with self._lock:
            idle = [slot for slot in self._at(Place.IDLE) if slot not in turn.unfit]
            if not idle:
                return False
            self._take(idle[-1], turn)
            return True

    def take_new(self, slot: PooledSlot, turn: Turn) -> None:
        """Register a slot that was reserved and leased with this turn, and take it."""
        with self._lock:
            self._take(slot, turn)
            self._slots[slot.number] = slot

    def put_idle(self, slot: PooledSlot, *, keep_turn: bool = False) -> None:
        """Put back a slot whose dual write is over and left nothing open; its user may keep the turn."""
        self._put(slot, Place.IDLE, keep_turn)

    def put_aside(self, slot: PooledSlot, *, keep_turn: bool = False) -> None:
        """Put aside a slot whose dual write may have left something open; its user may keep the turn."""
        self._put(slot, Place.ASIDE, keep_turn)

    def _put(self, slot: PooledSlot, place: Place, keep_turn: bool) -> None:
        with self._lock:
            hand = slot.place
            slot.order = next(self._orders)
            slot.place = place
            if isinstance(hand, Turn):
                hand.slot = None
                if not keep_turn:
                    self._turns.pop(hand, None)
            granted = self._grant_all()
        if granted:
            _tell(granted)

    def forget(self, slot: PooledSlot, hand: Hand) -> None:
        """Remove a slot whose lease is about to end; its number stays reserved until `unreserve`."""
        with self._lock:
            self._slots[slot.number] = hand
            granted = self._grant_all()
        _tell(granted)

    def let_go(self, hand: Hand) -> None:
        """Put aside the slots that an interruption left in a hand, and give up its reservations; may be repeated."""
        left = []
        with self._lock:
            for number, found in (*self._slots.items(),):
                if found is hand:
                    del self._slots[number]
                elif isinstance(found, PooledSlot) and found.place is hand:
                    left.append(found)
        for slot in left:
            self.put_aside(slot)

    # ---- slots that are resolved -----------------------------------------------------------------------------

    def attend(self, hand: Hand, due_s: float | None, *, gives_way: bool = False) -> PooledSlot | None:
        """Take a slot that was put aside and is due (`due_s` None: any) into a hand.

        The caller puts it idle or aside again, or forgets it. Limit the calls in one round: a slot that is put aside
        again is returned again, after all others. `gives_way`: return None while a recovery is in progress.
        """
        with self._lock:
            if gives_way and self.is_recovering:
                return None
            due = (slot for slot in self._at(Place.ASIDE) if due_s is None or slot.not_before_s <= due_s)
            slot = next(due, None)
            if slot is not None:
                slot.place = hand
            return slot

    def attend_all_idle(self, hand: Hand) -> list[PooledSlot]:
        """Take all slots that no block uses into a hand, which forgets them."""
        with self._lock:
            idle = self._at(Place.IDLE)
            for slot in idle:
                slot.place = hand
            return idle

    def make_due(self) -> None:
        with self._lock:
            for slot in self._at(Place.ASIDE):
                slot.not_before_s = 0.0

    @property
    def next_due_s(self) -> float | None:
        """When the next slot that was put aside is due; None if there is none."""
        with self._lock:
            return min((slot.not_before_s for slot in self._at(Place.ASIDE)), default=None)

    # ---- recovery -------------------------------------------------------------------------------------------

    def begin_recovery(self, hand: Hand) -> bool:
        """Begin a recovery, to which the background gives way. Return False if another is in progress."""
        with self._lock:
            if self._recovery is None:
                self._recovery = hand
            return self._recovery is hand

    def end_recovery(self, hand: Hand) -> None:
        """Let the background go on; harmless when repeated."""
        with self._lock:
            if self._recovery is hand:
                self._recovery = None

    @property
    def is_recovering(self) -> bool:
        return self._recovery is not None

    def in_hand(self) -> set[int]:
        """Return the numbers of the slots that are being leased or resolved, or whose leases are being ended."""
        with self._lock:
            return {number for number, found in self._slots.items() if isinstance(found, Hand) or _is_attended(found)}

    def attended(self) -> list[PooledSlot]:
        with self._lock:
            return [slot for slot in self._every if _is_attended(slot)]

    # ---- leases ---------------------------------------------------------------------------------------------

    def reserve(self, number: int, hand: Hand, *, gives_way: bool = False) -> bool:
        """Reserve a slot before its lease is claimed. Return False if this process has it already.

        `gives_way`: return False while a recovery is in progress.

        A lease names its process. Of two tasks of one process with the same slot, the first to finish would end the
        lease of the other. So each slot is in one hand from before its claim until after the end of its lease, however
        long that takes, and even if another process has the lease meanwhile.
        """
        with self._lock:
            if number in self._slots or (gives_way and self.is_recovering):
                return False
            self._slots[number] = hand
            return True

    def unreserve(self, number: int) -> None:
        """Give up a reservation: the lease was not won, or has ended."""
        with self._lock:
            if isinstance(self._slots.get(number), Hand):
                del self._slots[number]

    def numbers(self) -> set[int]:
        with self._lock:
            return set(self._slots)

    def all_slots(self) -> list[PooledSlot]:
        with self._lock:
            return self._every

    @property
    def _every(self) -> list[PooledSlot]:
        """All slots, in the order of their numbers."""
        return [slot for _, slot in sorted(self._slots.items()) if isinstance(slot, PooledSlot)]

    def _at(self, place: Place) -> list[PooledSlot]:
        return sorted((slot for slot in self._every if slot.place is place), key=attrgetter("order"))

    def remove_idle(self, slots: Iterable[PooledSlot]) -> list[PooledSlot]:
        with self._lock:
            gone = [slot for slot in slots if slot.place is Place.IDLE and self._slots.get(slot.number) is slot]
            for slot in gone:
                del self._slots[slot.number]
            return gone

    def places(self) -> Places:
        with self._lock:
            every = self._every
            aside = [*self._at(Place.ASIDE), *(slot for slot in every if _is_attended(slot))]
            return Places(
                self._in_use,
                len(self._at(Place.IDLE)),
                self._waiting,
                tuple(slot.coordinator.transactional_id for slot in aside),
                tuple(found for slot in every if (found := slot.coordinator.refused) is not None),
            )


def _is_attended(slot: PooledSlot) -> bool:
    return isinstance(slot.place, Hand) and not isinstance(slot.place, Turn)


def _is_open(slot: PooledSlot) -> bool:
    return slot.place is Place.ASIDE or _is_attended(slot)


def _tell(granted: Iterable[Turn]) -> None:
    """Wake blocks that have a turn by now, outside the lock, because they may call back at once."""
    for turn in granted:
        turn.wake()
        turn.wake = _nobody
