"""Which slots this process has, who uses them, and who waits for one. Neither I/O nor a clock.

Turns are given in the order in which they were asked for. Who has a turn may use one slot: an idle one, or one that
it leases first. A slot that cannot be used now is put aside, where the background looks after it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.slot import SlotState


@dataclass(eq=False, slots=True)
class PooledSlot:
    """One transactional id that this process has leased."""

    number: int
    coordinator: DualWriteCoordinator
    lease_lost: bool = False
    failures: int = 0
    """How many attempts to resolve it failed since it was put aside."""
    not_before_s: float = 0.0
    """When to try next, by the pool's clock."""


@dataclass(eq=False, slots=True)
class Turn:
    """The right to use one slot, or a place in the queue for it."""

    wake: Callable[[], None]
    granted: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """How many there are of everything, at one instant."""

    in_use: int
    idle: int
    waiting: int
    set_aside: tuple[str, ...]
    """Transactional ids that are resolved before they are used again."""


@dataclass(eq=False)
class SlotRegistry:
    """For several threads; nothing in here waits for anything."""

    max_writers: int
    _in_use: int = 0
    _idle: list[PooledSlot] = field(default_factory=list)
    _used: set[PooledSlot] = field(default_factory=set)
    _aside: deque[PooledSlot] = field(default_factory=deque)
    _attended: set[PooledSlot] = field(default_factory=set)
    _waiting: deque[Turn] = field(default_factory=deque)
    _blocks: int = 0
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # ---- blocks ---------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """A block begins. Raises IllegalStateError after `close`."""
        with self._lock:
            if self._closed:
                raise IllegalStateError("this pool of dual writers is closed; nothing was written: make a new one")
            self._blocks += 1

    def leave(self) -> None:
        """A block is over."""
        with self._lock:
            self._blocks -= 1

    @property
    def blocks(self) -> int:
        """How many blocks run now."""
        return self._blocks

    def close(self) -> None:
        """Let no block begin any more; those that run may end."""
        with self._lock:
            self._closed = True

    @property
    def is_closed(self) -> bool:
        return self._closed

    # ---- turns ----------------------------------------------------------------------------------------------

    def has_turn_now(self) -> bool:
        """A turn for the caller, if there is one without waiting."""
        with self._lock:
            if self._waiting or not self._has_turn:
                return False
            self._in_use += 1
            return True

    def ask(self, wake: Callable[[], None]) -> Turn:
        """A turn, granted at once or later: then `wake` is called, from whichever thread makes it possible."""
        turn = Turn(wake)
        with self._lock:
            if not self._waiting and self._has_turn:
                self._grant(turn)
            else:
                self._waiting.append(turn)
        return turn

    def withdraw(self, turn: Turn) -> bool:
        """Wait no more. False where the turn was granted in the meantime, and so must be used or given back."""
        with self._lock:
            if not turn.granted:
                self._waiting.remove(turn)
            return not turn.granted

    def give_back_turn(self) -> None:
        """Whoever had it needs it no more, and has no slot."""
        with self._lock:
            self._in_use -= 1
            woken = self._grant_all()
        _wake(woken)

    @property
    def _has_turn(self) -> bool:
        # New slots stand in for those that were put aside, but not without end.
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
        """For whoever has a turn: the slot that was used last, whose connections are warm.

        `rather_new`: none where it would have to wait for Kafka, and there may be more slots.
        """
        with self._lock:
            may_be_more = len(self._idle) + self._in_use <= self.max_writers  # in use by the caller's turn too
            waits = bool(self._idle) and self._idle[-1].coordinator.state is SlotState.CONFIRMING
            slot = self._idle.pop() if self._idle and not (rather_new and waits and may_be_more) else None
            if slot is not None:
                self._used.add(slot)
            return slot

    def take_new(self, slot: PooledSlot) -> None:
        """For whoever has a turn: it has leased this one."""
        with self._lock:
            self._used.add(slot)

    def put_idle(self, slot: PooledSlot) -> None:
        """The dual write under it is over, and nothing of it is open."""
        self._end_use(slot, self._idle.append)

    def put_confirming(self, slot: PooledSlot) -> None:
        """The same, and its commit in Kafka is on its way: whoever takes it waits for that, so it is taken last."""
        self._end_use(slot, lambda confirming: self._idle.insert(0, confirming))

    def attend_confirming(self) -> list[PooledSlot]:
        """The idle ones whose commit in Kafka nobody has heard of yet, for the caller alone, who puts them back."""
        with self._lock:
            found = [slot for slot in self._idle if slot.coordinator.state is SlotState.CONFIRMING]
            self._idle = [slot for slot in self._idle if slot not in found]
            self._attended.update(found)
            return found

    def put_aside(self, slot: PooledSlot, *, keep_turn: bool = False) -> None:
        """The dual write under it is over, and something may be open; its user may keep the turn for another one."""
        self._end_use(slot, self._aside.append, keep_turn=keep_turn)

    def forget(self, slot: PooledSlot) -> None:
        """It is used no more, by nobody here."""
        self._end_use(slot, lambda _: None)

    def _end_use(self, slot: PooledSlot, put: Callable[[PooledSlot], None], *, keep_turn: bool = False) -> None:
        with self._lock:
            if slot in self._used:
                self._used.discard(slot)
                self._in_use -= not keep_turn
            self._attended.discard(slot)
            put(slot)
            woken = self._grant_all()
        _wake(woken)

    # ---- those that were put aside --------------------------------------------------------------------------

    def attend(self, due_s: float | None) -> PooledSlot | None:
        """One that was put aside and is due (None: any), for its caller alone, who puts it idle, aside, or forgets it.

        Those that are asked for in one go should be counted: one that is put aside again comes last.
        """
        with self._lock:
            for slot in self._aside:
                if due_s is None or slot.not_before_s <= due_s:
                    self._aside.remove(slot)
                    self._attended.add(slot)
                    return slot
            return None

    def make_due(self) -> None:
        """Let all that were put aside be due now."""
        with self._lock:
            for slot in self._aside:
                slot.not_before_s = 0.0

    @property
    def next_due_s(self) -> float | None:
        """When the next of them is due; None where there is none."""
        with self._lock:
            return min((slot.not_before_s for slot in self._aside), default=None)

    # ---- leases ---------------------------------------------------------------------------------------------

    def all_slots(self) -> list[PooledSlot]:
        with self._lock:
            return [*self._idle, *self._used, *self._aside, *self._attended]

    def lose(self, slots: Iterable[PooledSlot]) -> list[PooledSlot]:
        """Others have the leases of these now. Those that nobody uses are gone from here, and returned."""
        with self._lock:
            gone = []
            for slot in slots:
                slot.lease_lost = True
                if slot in self._idle:
                    self._idle.remove(slot)
                    gone.append(slot)
            return gone

    def take_all_idle(self) -> list[PooledSlot]:
        """All that nobody uses are gone from here, and returned."""
        with self._lock:
            idle, self._idle = self._idle, []
            return idle

    def places(self) -> Places:
        with self._lock:
            aside = tuple(slot.coordinator.transactional_id for slot in (*self._aside, *self._attended))
            return Places(self._in_use, len(self._idle), len(self._waiting), aside)


def _wake(turns: Iterable[Turn]) -> None:
    """Outside the lock, because who wakes up may come back here at once."""
    for turn in turns:
        turn.wake()
