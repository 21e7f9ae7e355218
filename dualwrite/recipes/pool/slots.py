"""The slots of this process: which blocks use them, and which blocks wait for one. No I/O and no clock.

Turns are granted in the order in which they were requested. A block that has a turn may use one slot: an idle one, or
one that it leases first. A slot that cannot be used now is put aside for the background to resolve.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.refused import RefusedBlock
from dualwrite.recipes.core.slot import SlotState


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


@dataclass(eq=False, slots=True)
class Turn:
    """The right to use one slot, or a place in the queue for it."""

    wake: Callable[[], None]
    granted: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """The numbers of slots and of waiting blocks at one moment."""

    in_use: int
    idle: int
    waiting: int
    set_aside: tuple[str, ...]
    """Transactional ids that must be resolved before they are used again."""
    stored: tuple[str, ...] = ()
    """Transactional ids of which the database may store blocks."""
    refused: tuple[RefusedBlock, ...] = ()
    """Stored blocks that Kafka has refused for good."""


@dataclass(eq=False)
class SlotRegistry:
    """The slots of one pool. Thread-safe; no method waits."""

    max_writers: int
    _in_use: int = 0
    _idle: list[PooledSlot] = field(default_factory=list)
    _used: set[PooledSlot] = field(default_factory=set)
    _aside: deque[PooledSlot] = field(default_factory=deque)
    _attended: set[PooledSlot] = field(default_factory=set)
    _reserved: set[int] = field(default_factory=set)
    _recovers: bool = False
    _waiting: deque[Turn] = field(default_factory=deque)
    _blocks: int = 0
    is_closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # ---- blocks ---------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Register a block. Raises IllegalStateError after `close`."""
        with self._lock:
            if self.is_closed:
                raise IllegalStateError("this pool of dual writers is closed; nothing was written: make a new one")
            self._blocks += 1

    def leave(self) -> bool:
        """Unregister a block. Return whether `close` may be waiting for it."""
        with self._lock:
            self._blocks -= 1
            return self.is_closed

    @property
    def blocks(self) -> int:
        """The number of running blocks."""
        return self._blocks

    def close(self) -> None:
        """Refuse new blocks; running ones may end."""
        with self._lock:
            self.is_closed = True

    # ---- turns ----------------------------------------------------------------------------------------------

    def has_turn_now(self) -> bool:
        """Take a turn if one is available without waiting. Return whether it was."""
        with self._lock:
            if self._waiting or not self._has_turn:
                return False
            self._in_use += 1
            return True

    def take_at_once(self) -> PooledSlot | None:
        """Take a turn and an idle slot, if both are there and the slot need not wait for Kafka; else nothing."""
        with self._lock:
            if self._waiting or not self._idle or self._in_use >= self.max_writers or self._aside or self._attended:
                return None
            if self._idle[-1].coordinator.owned.slot.state is not SlotState.READY:
                return None
            self._in_use += 1
            slot = self._idle.pop()
            self._used.add(slot)
            return slot

    def request_turn(self, wake: Callable[[], None]) -> Turn:
        """Request a turn. If it is not granted at once, `wake` is called when it is, from any thread."""
        turn = Turn(wake)
        with self._lock:
            if not self._waiting and self._has_turn:
                self._grant(turn)
            else:
                self._waiting.append(turn)
        return turn

    def withdraw(self, turn: Turn) -> bool:
        """Stop waiting. Return False if the turn was granted meanwhile, and so must be used or given back."""
        with self._lock:
            if not turn.granted:
                self._waiting.remove(turn)
            return not turn.granted

    def give_back_turn(self) -> None:
        """Give back a turn that was not used for a slot."""
        with self._lock:
            self._in_use -= 1
            woken = self._grant_all()
        _wake(woken)

    def wake_waiting(self) -> None:
        """Wake all blocks that wait for a turn, to look whether they should."""
        with self._lock:
            waiting = list(self._waiting)
        _wake(waiting)

    @property
    def _has_turn(self) -> bool:
        # New slots replace those that were put aside, up to a limit.
        return self._in_use < self.max_writers and len(self._aside) + len(self._attended) <= self.max_writers

    def _grant(self, turn: Turn) -> None:
        turn.granted = True
        self._in_use += 1

    def _grant_all(self) -> list[Turn]:
        granted = []
        while self._waiting and self._has_turn:
            granted.append(turn := self._waiting.popleft())
            self._grant(turn)
        return granted

    # ---- slots ----------------------------------------------------------------------------------------------

    def take_idle(self, *, rather_new: bool = False) -> PooledSlot | None:
        """Return the most recently used idle slot, whose connections are warm, or None. The caller must have a turn.

        `rather_new`: return None if that slot would have to wait for Kafka and more slots are allowed.
        """
        with self._lock:
            may_be_more = len(self._idle) + self._in_use <= self.max_writers  # `_in_use` includes the caller's turn
            waits = bool(self._idle) and self._idle[-1].coordinator.state is SlotState.CONFIRMING
            slot = self._idle.pop() if self._idle and not (rather_new and waits and may_be_more) else None
            if slot is not None:
                self._used.add(slot)
            return slot

    def take_new(self, slot: PooledSlot) -> None:
        """Register a slot that was reserved and leased by a caller with a turn."""
        with self._lock:
            self._used.add(slot)
            self._reserved.discard(slot.number)

    def put_idle(self, slot: PooledSlot) -> None:
        """Put back a slot whose dual write is over and left nothing open."""
        # Not `self._idle.append`: another thread may replace the list before the lock is held.
        self._end_use(slot, lambda idle: self._idle.append(idle))

    def put_confirming(self, slot: PooledSlot) -> None:
        """Put back a slot whose Kafka commit is in progress; its next user must wait for that, so it is taken last."""
        self._end_use(slot, lambda confirming: self._idle.insert(0, confirming))

    def put_stored(self, slot: PooledSlot) -> None:
        """Put back a slot whose id has stored blocks, behind which more can be stored; it is taken last."""
        self._end_use(slot, lambda stored: self._idle.insert(0, stored))

    def attend_stored(self, *, gives_way: bool) -> PooledSlot | None:
        """Return an idle slot whose id has stored blocks, reserved for the caller, which puts it back; None if none.

        `gives_way`: return None while a recovery is in progress.
        """
        with self._lock:
            if gives_way and self._recovers:
                return None
            slot = next((each for each in reversed(self._idle) if each.coordinator.has_stored), None)
            if slot is not None:
                self._idle.remove(slot)
                self._attended.add(slot)
            return slot

    @property
    def has_idle_stored(self) -> bool:
        """Whether the id of an idle slot has stored blocks."""
        with self._lock:
            return any(slot.coordinator.has_stored for slot in self._idle)

    def attend_confirming(self) -> list[PooledSlot]:
        """Return the idle slots whose Kafka commit is not confirmed, reserved for the caller, which puts them back."""
        with self._lock:
            found = [slot for slot in self._idle if slot.coordinator.state is SlotState.CONFIRMING]
            self._idle = [slot for slot in self._idle if slot not in found]
            self._attended.update(found)
            return found

    def put_aside(self, slot: PooledSlot, *, keep_turn: bool = False) -> None:
        """Put aside a slot whose dual write may have left something open; its user may keep the turn."""
        self._end_use(slot, self._aside.append, keep_turn=keep_turn)

    def forget(self, slot: PooledSlot) -> None:
        """Remove a slot whose lease is about to end; its number stays reserved until `unreserve`."""
        self._end_use(slot, lambda gone: self._reserved.add(gone.number))

    def _end_use(self, slot: PooledSlot, put: Callable[[PooledSlot], None], *, keep_turn: bool = False) -> None:
        with self._lock:
            if slot in self._used:
                self._used.discard(slot)
                self._in_use -= not keep_turn
            self._attended.discard(slot)
            put(slot)
            woken = self._grant_all() if self._waiting else ()
        if woken:
            _wake(woken)

    # ---- slots that were put aside ---------------------------------------------------------------------------

    def attend(self, due_s: float | None, *, gives_way: bool = False) -> PooledSlot | None:
        """Return a slot that was put aside and is due (`due_s` None: any), reserved for the caller.

        The caller puts it idle or aside again, or forgets it. Limit the calls in one round: a slot that is put aside
        again is returned again, after all others. `gives_way`: return None while a recovery is in progress.
        """
        with self._lock:
            if gives_way and self._recovers:
                return None
            for slot in self._aside:
                if due_s is None or slot.not_before_s <= due_s:
                    self._aside.remove(slot)
                    self._attended.add(slot)
                    return slot
            return None

    def make_due(self) -> None:
        """Make all slots that were put aside due now."""
        with self._lock:
            for slot in self._aside:
                slot.not_before_s = 0.0

    @property
    def next_due_s(self) -> float | None:
        """When the next slot that was put aside is due; None if there is none."""
        with self._lock:
            return min((slot.not_before_s for slot in self._aside), default=None)

    # ---- recovery -------------------------------------------------------------------------------------------

    def begin_recovery(self) -> bool:
        """Begin a recovery, to which the background gives way. Return False if another is in progress."""
        with self._lock:
            if self._recovers:
                return False
            self._recovers = True
            return True

    def end_recovery(self) -> None:
        """Let the background go on."""
        with self._lock:
            self._recovers = False

    @property
    def is_recovering(self) -> bool:
        """Whether a recovery is in progress."""
        return self._recovers

    def in_hand(self) -> set[int]:
        """Return the numbers of the slots that are being leased or resolved, or whose leases are being ended."""
        with self._lock:
            return self._reserved.union(slot.number for slot in self._attended)

    def attended(self) -> list[PooledSlot]:
        """Return the slots that are being resolved."""
        with self._lock:
            return sorted(self._attended, key=_number)

    # ---- leases ---------------------------------------------------------------------------------------------

    def reserve(self, number: int, *, gives_way: bool = False) -> bool:
        """Reserve a slot before its lease is claimed. Return False if this process has it already.

        `gives_way`: return False while a recovery is in progress.

        A lease names its process. So of two tasks of one process with the same slot, the first to finish would end the
        lease of the other: each slot is in one hand, from before its claim until after the end of its lease, however
        long that takes and whoever has the lease meanwhile.
        """
        with self._lock:
            if number in self._numbers or (gives_way and self._recovers):
                return False
            self._reserved.add(number)
            return True

    def unreserve(self, number: int) -> None:
        """Give up a reservation: the lease was not won, or has ended."""
        with self._lock:
            self._reserved.discard(number)

    def numbers(self) -> set[int]:
        """Return the numbers of the slots that this process has, or has reserved."""
        with self._lock:
            return self._numbers

    @property
    def _numbers(self) -> set[int]:
        return self._reserved.union(slot.number for slot in self._every)

    def all_slots(self) -> list[PooledSlot]:
        with self._lock:
            return self._every

    @property
    def _every(self) -> list[PooledSlot]:
        """All slots, in the order of their numbers: sets of them have an order that changes from run to run."""
        return sorted((*self._idle, *self._used, *self._aside, *self._attended), key=_number)

    def remove_idle(self, slots: Iterable[PooledSlot]) -> list[PooledSlot]:
        """Remove and return those of these slots that no block uses."""
        with self._lock:
            gone = [slot for slot in slots if slot in self._idle]
            self._idle = [slot for slot in self._idle if slot not in gone]
            return gone

    def attend_all_idle(self) -> list[PooledSlot]:
        """Return all slots that no block uses, reserved for the caller, which forgets them."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._attended.update(idle)
            return idle

    def places(self) -> Places:
        with self._lock:
            attended = sorted(self._attended, key=_number)
            aside = tuple(slot.coordinator.transactional_id for slot in (*self._aside, *attended))
            every = self._every
            stored = tuple(slot.coordinator.transactional_id for slot in every if slot.coordinator.has_stored)
            refused = tuple(found for slot in every if (found := slot.coordinator.refused) is not None)
            return Places(self._in_use, len(self._idle), len(self._waiting), aside, stored, refused)


def _number(slot: PooledSlot) -> int:
    return slot.number


def _wake(turns: Iterable[Turn]) -> None:
    """Wake blocks, outside the lock, because they may call back at once."""
    for turn in turns:
        turn.wake()
