"""Which blocks form a group, whose turn it is, and who commits: pure decisions, the same for threads and asyncio.

A block requests a turn. It either leads a new group, whose database transaction it begins, or joins one: the blocks of
a group run one after the other. The block after which nobody waits, or the group is full, commits the group for all of
them. So a block that is alone waits for nothing, and blocks gather while earlier groups commit.

No I/O, no clock and no locks: `groups.py` calls a method at a time, does what it returns, and wakes whose turns are in
`woken`. The two tables say how the states may change; nothing else changes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.pool.group_settings import GroupCommit

WorkT = TypeVar("WorkT")


class TurnState(StrEnum):
    """How far a block has come."""

    __hash__ = str.__hash__

    WAITING = "waiting"
    LEADS = "leads"
    """It has to begin the database transaction of a new group."""
    RUNS = "runs"
    """It has the group's connection to itself."""
    ENDED = "ended"
    """It has ended without an error; its group's decision is its own."""
    LEFT_OUT = "left-out"
    """It is no part of a group, or not any more: nothing of it is committed."""


class GroupState(StrEnum):
    """How far a group has come."""

    __hash__ = str.__hash__

    BEGINS = "begins"
    """The database transaction is being begun."""
    RUNS = "runs"
    """One of its blocks has the connection."""
    ENDS = "ends"
    """The block that ran last commits it, or rolls it back; no block joins any more."""
    GIVEN_UP = "given-up"
    """A block has run for too long: the connection is cut, and that block is the last to notice."""
    OVER = "over"
    """The outcome stands."""


class Next(StrEnum):
    """What a block has to do after it has had its turn."""

    WAIT = "wait"
    """Wait for the decision; another block has the connection."""
    LEAVE = "leave"
    """Nothing; another block has the connection, or the turn was not used."""
    COMMIT = "commit"
    """Commit the group."""
    ROLL_BACK = "roll-back"
    """Roll the whole group back, in which no block has ended."""
    CLEAN_UP = "clean-up"
    """Close the connection of the group, which was given up."""


_T, _G = TurnState, GroupState

TURNS: Final[Mapping[TurnState, frozenset[TurnState]]] = MappingProxyType(
    {
        _T.WAITING: frozenset({_T.LEADS, _T.RUNS, _T.LEFT_OUT}),
        _T.LEADS: frozenset({_T.RUNS, _T.LEFT_OUT}),
        _T.RUNS: frozenset({_T.ENDED, _T.LEFT_OUT}),
        _T.ENDED: frozenset({_T.LEFT_OUT}),
        _T.LEFT_OUT: frozenset(),
    }
)
GROUPS: Final[Mapping[GroupState, frozenset[GroupState]]] = MappingProxyType(
    {
        _G.BEGINS: frozenset({_G.RUNS, _G.OVER}),
        _G.RUNS: frozenset({_G.ENDS, _G.GIVEN_UP}),
        _G.ENDS: frozenset({_G.OVER}),
        _G.GIVEN_UP: frozenset({_G.OVER}),
        _G.OVER: frozenset(),
    }
)


@dataclass(eq=False, slots=True)
class Turn(Generic[WorkT]):
    """The turn of one block."""

    wake: Callable[[], None]
    state: TurnState = TurnState.WAITING
    group: Group[WorkT] | None = None

    def move(self, to: TurnState) -> None:
        """Change the state. Raises IllegalStateError if the table does not allow the transition."""
        if to not in TURNS[self.state]:
            raise IllegalStateError(f"the turn of a block cannot go from {self.state} to {to}")
        self.state = to


@dataclass(eq=False, slots=True)
class Group(Generic[WorkT]):
    """Blocks that are committed together."""

    number: int
    since_s: float
    """When its running block began, by the monotonic clock."""
    state: GroupState = GroupState.BEGINS
    taken: int = 1
    """How many blocks have joined it, those that failed included."""
    ended: list[Turn[WorkT]] = field(default_factory=list)
    """The blocks that share its decision."""
    work: WorkT | None = None
    """What the caller keeps of it."""

    def move(self, to: GroupState) -> None:
        """Change the state. Raises IllegalStateError if the table does not allow the transition."""
        if to not in GROUPS[self.state]:
            raise IllegalStateError(f"a group of blocks cannot go from {self.state} to {to}")
        self.state = to


class Grouping(Generic[WorkT]):
    """The groups of one pool, and the queue of blocks for the next one. At most `max_open` groups are open."""

    def __init__(self, limits: GroupCommit, max_open: int) -> None:
        self._limits: Final = limits
        self._max_open: Final = max(max_open, limits.max_groups)
        self._slow_s: Final = limits.slow_block_ms / 1000
        self._numbers = 0
        self.waiting: Final[deque[Turn[WorkT]]] = deque()
        self.open: Final[list[Group[WorkT]]] = []
        self.woken: Final[list[Turn[WorkT]]] = []
        """Turns that have changed and whose blocks wait; the caller wakes them and clears the list."""

    # ---- before a block ---------------------------------------------------------------------------------------

    def request(self, turn: Turn[WorkT], now_s: float, *, again: bool = False) -> None:
        """Queue a block, or let it lead a group at once. `again`: it has had a turn, and its group broke before it."""
        if again:
            self.waiting.appendleft(turn)
        else:
            self.waiting.append(turn)
        self.begin_groups(now_s)

    def begin_groups(self, now_s: float) -> None:
        """Let the first waiting block lead a new group, if none takes it soon. Call it again after `slow_block_ms`."""
        if not self.waiting or len(self.open) >= self._max_open:
            return
        quick = [group for group in self.open if not self._is_slow(group, now_s)]
        if len(quick) >= self._limits.max_groups or any(group.state in (_G.BEGINS, _G.RUNS) for group in quick):
            return
        turn = self.waiting.popleft()
        self._numbers += 1
        turn.group = Group(self._numbers, now_s)
        self.open.append(turn.group)
        turn.move(_T.LEADS)
        self.woken.append(turn)

    def _is_slow(self, group: Group[WorkT], now_s: float) -> bool:
        """Return whether the running block of a group has taken so long that others do not wait for it."""
        return group.state in (_G.BEGINS, _G.RUNS, _G.GIVEN_UP) and now_s - group.since_s >= self._slow_s

    def begun(self, turn: Turn[WorkT], work: WorkT, now_s: float) -> None:
        """Note that the leader has begun the group's transaction; it runs first."""
        group = _group_of(turn)
        group.work = work
        group.since_s = now_s
        group.move(_G.RUNS)
        turn.move(_T.RUNS)

    def time_out(self, turn: Turn[WorkT]) -> bool:
        """Let a block wait no longer. Return False if it has a turn by now."""
        if turn.state is not _T.WAITING:
            return False
        self.waiting.remove(turn)
        turn.move(_T.LEFT_OUT)
        return True

    def withdraw(self, turn: Turn[WorkT], now_s: float) -> Next:
        """Take back a turn whose block does not begin, because its caller was interrupted or beginning it failed."""
        if turn.state is _T.RUNS:
            return self.undone(turn, takes_more=True, now_s=now_s)
        if not self.time_out(turn):
            self._end(_group_of(turn), now_s)
            turn.move(_T.LEFT_OUT)
        return Next.LEAVE

    # ---- after a block ----------------------------------------------------------------------------------------

    def ended(self, turn: Turn[WorkT], *, takes_more: bool, now_s: float) -> Next:
        """End a block that goes into the decision. `takes_more`: whether the group has room for another one."""
        group = _group_of(turn)
        if group.state is _G.GIVEN_UP:
            turn.move(_T.LEFT_OUT)
            return Next.CLEAN_UP
        turn.move(_T.ENDED)
        group.ended.append(turn)
        return Next.WAIT if self._hand_over(group, takes_more, now_s) else Next.COMMIT

    def undone(self, turn: Turn[WorkT], *, takes_more: bool, now_s: float) -> Next:
        """End a block that was rolled back by itself."""
        group = _group_of(turn)
        turn.move(_T.LEFT_OUT)
        if group.state is _G.GIVEN_UP:
            return Next.CLEAN_UP
        if not group.ended:  # the first block: the transaction is its own
            group.move(_G.ENDS)
            return Next.ROLL_BACK
        return Next.LEAVE if self._hand_over(group, takes_more, now_s) else Next.COMMIT

    def broken(self, turn: Turn[WorkT]) -> Next:
        """End a block after which the transaction cannot go on: the whole group is rolled back."""
        group = _group_of(turn)
        turn.move(_T.LEFT_OUT)
        if group.state is _G.GIVEN_UP:
            return Next.CLEAN_UP
        group.move(_G.ENDS)
        self._leave_out(group)
        return Next.ROLL_BACK

    def _hand_over(self, group: Group[WorkT], takes_more: bool, now_s: float) -> bool:
        """Give the connection to the next waiting block. Return False, and let the group end, if there is none."""
        is_full = group.taken >= self._limits.max_blocks or not takes_more
        if is_full or not self.waiting or self._is_slow(group, now_s):  # blocks that have ended waited for it
            group.move(_G.ENDS)
            self.begin_groups(now_s)
            return False
        turn = self.waiting.popleft()
        turn.group = group
        turn.move(_T.RUNS)
        group.taken += 1
        group.since_s = now_s
        self.woken.append(turn)
        return True

    # ---- the end of a group -----------------------------------------------------------------------------------

    def give_up_after_s(self, turn: Turn[WorkT], now_s: float) -> float | None:
        """Return for how long a block that has ended still waits for the running one; None if none runs."""
        group = _group_of(turn)
        if group.state is not _G.RUNS:
            return None
        return max(0.0, group.since_s + self._limits.max_block_ms / 1000 - now_s)

    def give_up(self, turn: Turn[WorkT], now_s: float) -> bool:
        """Give up a group whose running block has run for too long. Return whether the caller has to cut it off."""
        if self.give_up_after_s(turn, now_s) != 0:
            return False
        group = _group_of(turn)
        group.move(_G.GIVEN_UP)
        self.woken.extend(group.ended)
        self._leave_out(group)
        return True

    def over(self, group: Group[WorkT], *, rolled_back: bool, now_s: float) -> None:
        """Note that a group has ended, whatever its outcome; its blocks are told, and others may begin."""
        self.woken.extend(group.ended)
        if rolled_back:
            self._leave_out(group)
        self._end(group, now_s)

    def _leave_out(self, group: Group[WorkT]) -> None:
        for turn in group.ended:
            if turn.state is _T.ENDED:
                turn.move(_T.LEFT_OUT)

    def _end(self, group: Group[WorkT], now_s: float) -> None:
        group.move(_G.OVER)
        self.open.remove(group)
        self.begin_groups(now_s)


def _group_of(turn: Turn[WorkT]) -> Group[WorkT]:
    assert turn.group is not None, "a turn that is not waiting has a group"
    return turn.group
