from __future__ import annotations

import pytest

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core.slot import TRANSITIONS, Slot, SlotState


def slot_in(state: SlotState) -> Slot:
    """Return a slot moved to `state` by the shortest path that the table allows."""
    ways: dict[SlotState, list[SlotState]] = {SlotState.NEW: []}
    queue = [SlotState.NEW]
    for known in queue:
        for following in TRANSITIONS[known]:
            if following not in ways:
                ways[following] = [*ways[known], following]
                queue.append(following)
    slot = Slot("id")
    for step in ways[state]:
        slot.move(step)
    return slot


@pytest.mark.parametrize("to", SlotState)
@pytest.mark.parametrize("state", SlotState)
def test_every_step_is_what_the_table_says(state: SlotState, to: SlotState) -> None:
    slot = slot_in(state)
    if to in TRANSITIONS[state]:
        slot.move(to)
        assert slot.state is to
    else:
        with pytest.raises(IllegalStateError, match=f"'id' cannot go from {state} to {to}"):
            slot.move(to)
        assert slot.state is state


def test_every_state_can_be_closed() -> None:
    """Even a state left in the middle of a decision by an interruption; the row completes it later."""
    assert all(SlotState.CLOSED in TRANSITIONS[state] for state in SlotState if state is not SlotState.CLOSED)
