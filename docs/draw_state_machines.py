"""Draw docs/internals/state-machines.md from the tables in the code: `python docs/draw_state_machines.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from dualwrite.broker_emulator.groups.consumer.states import (
    NEXT_GROUP_STATES,
    NEXT_MEMBER_STATES,
    ConsumerGroupState,
    MemberState,
)
from dualwrite.broker_emulator.groups.group import VALID_PREVIOUS_STATES, GroupState
from dualwrite.broker_emulator.security.login import NEXT_STATES, State
from dualwrite.broker_emulator.share.states import NEXT_GROUP_STATES as NEXT_SHARE_GROUP_STATES
from dualwrite.broker_emulator.share.states import NEXT_RECORD_STATES, RecordState, ShareGroupState
from dualwrite.broker_emulator.transactions.states import mermaid_diagram
from dualwrite.client.transactions.states import CALLS, EVENTS, Call, ProducerState
from dualwrite.recipes.core.slot import TRANSITIONS, SlotState

PAGE = Path(__file__).parent / "internals" / "state-machines.md"

StateT = TypeVar("StateT", bound=StrEnum)


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.lower().replace("-", "_").split("_"))


def producer_diagram() -> str:
    """Draw what each call and response leads to, without close() and fatal failures, which are possible anywhere."""
    arrows = [
        f"    {_camel(before.name)} --> {_camel(after.name)}: {cause.name.lower()}"
        for table in (CALLS, EVENTS)
        for (before, cause), after in table.items()
        if cause is not Call.CLOSE and after is not ProducerState.FATAL_ERROR
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {_camel(ProducerState.UNINITIALIZED.name)}", *arrows]) + "\n"


def group_diagram() -> str:
    arrows = [
        f"    {before} --> {after}"
        for after, previous_states in VALID_PREVIOUS_STATES.items()
        for before in GroupState
        if before in previous_states
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {GroupState.EMPTY}", *arrows, "    Dead --> [*]"]) + "\n"


def consumer_group_diagram() -> str:
    arrows = [
        f"    {before} --> {after}: {cause}"
        for before, following in NEXT_GROUP_STATES.items()
        for after, cause in following.items()
    ]
    first, last = ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first}", *arrows, f"    {last} --> [*]"]) + "\n"


def consumer_group_member_diagram() -> str:
    arrows = [
        f"    {_camel(before.name)} --> {_camel(after.name)}: {cause}"
        for before, following in NEXT_MEMBER_STATES.items()
        for after, cause in following.items()
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {_camel(MemberState.STABLE.name)}", *arrows]) + "\n"


def share_group_diagram() -> str:
    arrows = [
        f"    {before} --> {after}: {cause}"
        for before, following in NEXT_SHARE_GROUP_STATES.items()
        for after, cause in following.items()
    ]
    first, last = ShareGroupState.EMPTY, ShareGroupState.DEAD
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first}", *arrows, f"    {last} --> [*]"]) + "\n"


def share_record_diagram() -> str:
    arrows = [
        f"    {_camel(before.name)} --> {_camel(after.name)}: {cause}"
        for before, following in NEXT_RECORD_STATES.items()
        for after, cause in following.items()
    ]
    ends = [f"    {_camel(state.name)} --> [*]" for state, following in NEXT_RECORD_STATES.items() if not following]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {_camel(RecordState.AVAILABLE.name)}", *arrows, *ends]) + "\n"


def table_diagram(table: Mapping[StateT, Collection[StateT]], first: StateT, last: StateT | None = None) -> str:
    """Draw a table that says which states may follow each."""
    arrows = [
        f"    {_camel(before)} --> {_camel(after)}"
        for before, following in table.items()
        for after in type(first)
        if after in following
    ]
    ends = [] if last is None else [f"    {_camel(last)} --> [*]"]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {_camel(first)}", *arrows, *ends]) + "\n"


def login_diagram() -> str:
    arrows = [
        f"    {_camel(before.name)} --> {_camel(after.name)}: {step.value}"
        for before, following in NEXT_STATES.items()
        for step, after in following.items()
        if after is not before
    ]
    first, last = _camel(State.EXPECTS_ANYTHING.name), _camel(State.FAILED.name)
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first}", *arrows, f"    {last} --> [*]"]) + "\n"


def page() -> str:
    """Return the whole page."""
    parts = [
        ("The transaction coordinator", "dualwrite/broker_emulator/transactions/states.py", mermaid_diagram()),
        ("A group of the classic protocol", "dualwrite/broker_emulator/groups/group.py", group_diagram()),
        ("A consumer group (KIP-848)", "dualwrite/broker_emulator/groups/consumer/states.py", consumer_group_diagram()),
        (
            "A member of a consumer group",
            "dualwrite/broker_emulator/groups/consumer/states.py",
            consumer_group_member_diagram(),
        ),
        ("A share group (KIP-932)", "dualwrite/broker_emulator/share/states.py", share_group_diagram()),
        ("A record of a share group", "dualwrite/broker_emulator/share/states.py", share_record_diagram()),
        ("The login of a connection", "dualwrite/broker_emulator/security/login.py", login_diagram()),
        ("The producer", "dualwrite/client/transactions/states.py", producer_diagram()),
        (
            "A transactional id in a DualWriter",
            "dualwrite/recipes/core/slot.py",
            table_diagram(TRANSITIONS, SlotState.NEW),
        ),
    ]
    sections = [f"## {title}\n\nThe table: `{source}`.\n\n```mermaid\n{text}```\n" for title, source, text in parts]
    title = "# State machines\n\nDrawn from the tables in the code; a test keeps this page equal to them.\n"
    return "\n".join([title, *sections])


if __name__ == "__main__":
    PAGE.write_text(page())
