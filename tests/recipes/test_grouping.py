"""The grouping of blocks by itself: every order of events that a few blocks can have, and what must hold in each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import pytest

from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.recipes.pool.group_settings import GroupCommit
from dualwrite.recipes.pool.grouping import GROUPS, TURNS, Group, Grouping, GroupState, Next, Turn, TurnState

T, G = TurnState, GroupState
WORK = "a transaction"

Action = tuple[str, int]


class Model:
    """Blocks 0, 1, ... of one pool, and what they still have to do; `do` carries out one event."""

    def __init__(self, limits: GroupCommit, blocks: int, max_open: int) -> None:
        self.limits = limits
        self.grouping: Grouping[str] = Grouping(limits, max_open)
        self.max_open = max(max_open, limits.max_groups)
        self.turns: list[Turn[str] | None] = [None] * blocks
        self.owes: dict[int, Next] = {}
        """What blocks have to do for their groups after their turns."""
        self.granted: list[int] = []
        self.requested: list[int] = []
        self.records: dict[int, list[int]] = {}
        self.committed: set[int] = set()
        self.published: list[int] = []
        self.now_s = 0.0
        self.jumps = 0

    def turn(self, block: int) -> Turn[str]:
        turn = self.turns[block]
        assert turn is not None
        return turn

    def group(self, block: int) -> Group[str]:
        group = self.turn(block).group
        assert group is not None
        return group

    def enabled(self) -> Iterator[Action]:
        for block, turn in enumerate(self.turns):
            if turn is None:
                yield "request", block
            elif block in self.owes:
                yield "pay", block
            elif turn.state is T.WAITING:
                yield "withdraw", block
            elif turn.state is T.LEADS:
                yield "begin", block
                yield "withdraw", block
            elif turn.state is T.RUNS:
                yield from ((event, block) for event in ("end", "end full", "undo", "break", "withdraw"))
            elif turn.state is T.ENDED and self.group(block).state is G.RUNS and self._is_late(block):
                yield "give up", block
        if self.jumps < 1 and self.grouping.open:
            yield "time passes", -1
        if self.grouping.waiting:
            yield "look", -1

    def _is_late(self, block: int) -> bool:
        return self.grouping.give_up_after_s(self.turn(block), self.now_s) == 0

    def do(self, action: Action) -> None:
        event, block = action
        before = {id(turn): (turn.state, turn.group.state if turn.group else None) for turn in self.turns if turn}
        self.grouping.woken.clear()
        getattr(self, f"_{event.split()[0]}")(block, event)
        self._note_grants()
        self._assert_woken(block, before)
        self.assert_sound()

    def _request(self, block: int, event: str) -> None:
        turn = self.turns[block] = Turn[str](lambda: None)
        was_alone = not self.grouping.open and not self.grouping.waiting
        self.requested.append(block)
        self.grouping.request(turn, self.now_s)
        assert not was_alone or turn.state is T.LEADS, "a block that is alone waits for nobody"

    def _begin(self, block: int, event: str) -> None:
        self.grouping.begun(self.turn(block), WORK, self.now_s)

    def _end(self, block: int, event: str) -> None:
        group = self.group(block)
        if group.state is not G.GIVEN_UP:
            self.records.setdefault(group.number, []).append(block)
        self._owe(block, self.grouping.ended(self.turn(block), takes_more="full" not in event, now_s=self.now_s))

    def _undo(self, block: int, event: str) -> None:
        self._owe(block, self.grouping.undone(self.turn(block), takes_more=True, now_s=self.now_s))

    def _break(self, block: int, event: str) -> None:
        self._owe(block, self.grouping.broken(self.turn(block)))

    def _withdraw(self, block: int, event: str) -> None:
        self._owe(block, self.grouping.withdraw(self.turn(block), self.now_s))

    def _give(self, block: int, event: str) -> None:
        assert self.grouping.give_up(self.turn(block), self.now_s)
        assert not self.grouping.give_up(self.turn(block), self.now_s), "one block cuts the connection"

    def _time(self, block: int, event: str) -> None:
        self.jumps += 1
        self.now_s += self.limits.max_block_ms / 1000

    def _look(self, block: int, event: str) -> None:
        self.grouping.begin_groups(self.now_s)

    def _owe(self, block: int, then: Next) -> None:
        if then in (Next.COMMIT, Next.ROLL_BACK, Next.CLEAN_UP):
            self.owes[block] = then

    def _pay(self, block: int, event: str) -> None:
        then, group = self.owes.pop(block), self.group(block)
        if then is Next.COMMIT:
            self.committed.add(group.number)
            self.published += self.records.get(group.number, [])
        self.grouping.over(group, rolled_back=then is not Next.COMMIT, now_s=self.now_s)

    def _note_grants(self) -> None:
        self.granted += [
            block
            for block, turn in enumerate(self.turns)
            if turn is not None and turn.group is not None and block not in self.granted
        ]

    def _assert_woken(self, actor: int, before: dict[int, Any]) -> None:
        """Assert that each block that waits is told what another one has changed."""
        for block, turn in enumerate(self.turns):
            if turn is None or block == actor or id(turn) not in before:
                continue
            state, of_group = before[id(turn)]
            waits_for_turn = state is T.WAITING and turn.state is not T.WAITING
            is_over = turn.group is not None and turn.group.state in (G.OVER, G.GIVEN_UP)
            waits_for_end = state is T.ENDED and is_over and of_group not in (G.OVER, G.GIVEN_UP)
            assert not (waits_for_turn or waits_for_end) or turn in self.grouping.woken, (block, state, turn.state)

    def assert_sound(self) -> None:
        for group in self.grouping.open:
            of_group = [turn for turn in self.turns if turn is not None and turn.group is group]
            running = [turn for turn in of_group if turn.state is T.RUNS]
            leading = [turn for turn in of_group if turn.state is T.LEADS]
            assert len(leading) == (group.state is G.BEGINS)
            assert len(running) == 1 if group.state is G.RUNS else len(running) <= (group.state is G.GIVEN_UP)
            assert group.taken == len(of_group) <= self.limits.max_blocks
            if group.state is G.ENDS:
                assert [block for block in self.owes if self.group(block) is group], "somebody ends it"
        assert len(self.grouping.open) <= self.max_open
        if not self.jumps:
            assert len(self.grouping.open) <= self.limits.max_groups
            assert len([group for group in self.grouping.open if group.state in (G.BEGINS, G.RUNS)]) <= 1
        in_turn = [block for block in self.requested if block in self.granted]
        assert sorted(self.granted, key=self.requested.index) == in_turn
        for block, turn in enumerate(self.turns):
            if turn is not None and turn.state is T.WAITING:
                behind = self.requested[self.requested.index(block) + 1 :]
                assert not set(behind) & set(self.granted), "nobody overtakes"
        for block in self.published:
            assert self.turn(block).state is T.ENDED, "what failed is never sent"
            assert self.group(block).number in self.committed
        assert len(self.published) == len(set(self.published))

    def assert_over(self) -> None:
        """Assert that nothing is left, once no event can happen any more."""
        assert not self.grouping.open
        assert not self.grouping.waiting
        ended = {block for block, turn in enumerate(self.turns) if turn is not None and turn.state is T.ENDED}
        assert ended == set(self.published), "a block is committed if, and only if, its group is"

    def key(self) -> Hashable:
        numbers = {group.number: place for place, group in enumerate(self.grouping.open)}
        turns = tuple(
            turn
            and (
                turn.state,
                turn.group
                and (numbers.get(turn.group.number, -1), turn.group.state, turn.group.number in self.committed),
            )
            for turn in self.turns
        )
        groups = tuple((group.state, group.taken, group.since_s) for group in self.grouping.open)
        queue = tuple(self.turns.index(turn) for turn in self.grouping.waiting)
        return turns, groups, queue, tuple(sorted(self.owes.items())), self.jumps, tuple(self.published)


def explore(make: Callable[[], Model]) -> tuple[int, int]:
    """Carry out every sequence of events, up to states that are the same. Return how many states and ends there are."""
    seen: set[Hashable] = set()
    ends = 0
    paths: deque[tuple[Action, ...]] = deque([()])
    while paths:
        path = paths.pop()
        model = make()
        for action in path:
            model.do(action)
        actions = list(model.enabled())
        if not [event for event, _ in actions if event not in ("look", "time passes")]:
            ends += 1
            model.assert_over()
        for action in actions:
            after = make()
            for earlier in (*path, action):
                after.do(earlier)
            key = after.key()
            if key not in seen:
                seen.add(key)
                paths.append((*path, action))
    return len(seen), ends


@pytest.mark.parametrize(
    ("limits", "max_open"),
    [
        (GroupCommit(max_blocks=3, max_groups=1), 2),
        (GroupCommit(max_blocks=2, max_groups=2), 2),
        (GroupCommit(max_blocks=1, max_groups=1), 1),
    ],
)
def test_every_order_of_three_blocks(limits: GroupCommit, max_open: int) -> None:
    states, ends = explore(partial(Model, limits, 3, max_open))
    assert states > 500
    assert ends > 50


def test_the_tables_are_complete() -> None:
    assert set(TURNS) == set(TurnState)
    assert set(GROUPS) == set(GroupState)


def test_a_transition_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(IllegalStateError, match="the turn of a block cannot go from waiting to ended"):
        Turn[str](lambda: None).move(T.ENDED)
    with pytest.raises(IllegalStateError, match="a group of blocks cannot go from begins to ends"):
        Group[str](1, 0.0).move(G.ENDS)


def test_a_block_waits_for_no_more_groups_than_fill_the_queue_before_it() -> None:
    """Fairness: groups take the blocks that wait, in order, until they are full."""
    grouping: Grouping[str] = Grouping(GroupCommit(max_blocks=4, max_groups=1), 1)
    turns = [Turn[str](lambda: None) for _ in range(20)]
    for turn in turns:
        grouping.request(turn, 0.0)
    for turn in turns:
        if turn.state is T.LEADS:
            grouping.begun(turn, WORK, 0.0)
        then = grouping.ended(turn, takes_more=True, now_s=0.0)
        if then is Next.COMMIT:
            assert turn.group is not None
            grouping.over(turn.group, rolled_back=False, now_s=0.0)
    assert [turn.group.number for turn in turns if turn.group] == [1 + place // 4 for place in range(20)]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_blocks": 0},
        {"max_blocks": 65},
        {"max_groups": 0},
        {"slow_block_ms": 0},
        {"max_block_ms": True},
        {"max_blocks": "8"},
    ],
)
def test_limits_that_are_none(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        GroupCommit(**settings)
