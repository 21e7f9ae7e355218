"""What is wrong with a fault that can never mean anything; said at once, because it would silently never hit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from kio.schema.index import api_key_map, schema_name_map

from dualwrite.broker_emulator.faults.actions import (
    Action,
    CrashBefore,
    Delay,
    Duplicate,
    Error,
    Hold,
    PartitionError,
    error_code,
)
from dualwrite.broker_emulator.faults.selectors import folded
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.broker_emulator.suggestions import did_you_mean

if TYPE_CHECKING:
    from dualwrite.broker_emulator.faults.fault import Fault

_AT_A_POINT = (Hold, Delay, CrashBefore)
_TEXTS = ("client_id", "transactional_id", "group", "topic")
_NUMBERS = ("partition", "node", "skip")


def check(fault: Fault) -> None:
    """Raise ValueError with a sentence for each thing that is wrong with `fault`."""
    wrong = [*_wrong_selectors(fault), *_wrong_point(fault), *_wrong_action(fault)]
    if wrong:
        raise ValueError("; ".join(wrong))


def _wrong_selectors(fault: Fault) -> Iterator[str]:
    if fault.api is not None:
        yield from _wrong_api(fault.api)
    for name in _TEXTS:
        value = getattr(fault, name)
        if value is not None and not isinstance(value, str):
            yield f"{name} is a name, not {value!r}"
    for name in _NUMBERS:
        value = getattr(fault, name)
        if value is not None and not _is_count(value, 0):
            yield f"{name} is a number from 0 on, not {value!r}"
    if fault.count is not None and not _is_count(fault.count, 1):
        yield f"count is a number from 1 on, or None for every request, not {fault.count!r}"
    predicate: Any = fault.predicate
    if predicate is not None and not callable(predicate):
        yield f"predicate is called with each request, which {predicate!r} cannot be"


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _wrong_api(api: Any) -> Iterator[str]:
    if isinstance(api, int) and not isinstance(api, bool):
        if api not in api_key_map:
            yield f"Kafka has no API of key {api}"
        return
    known = {folded(name) for name in schema_name_map}
    if not isinstance(api, str):
        yield f"api is a key or a name of Kafka's, not {api!r}"
    elif folded(api) not in known and not (api.isdecimal() and int(api) in api_key_map):
        names = ("".join(word.capitalize() for word in name.split("_")) for name in schema_name_map)
        yield f"Kafka has no API called {api!r}{did_you_mean(api, names)}"


def _wrong_point(fault: Fault) -> Iterator[str]:
    if fault.point is None:
        return
    if fault.point not in tuple(PausePoint):
        yield f"{fault.point!r} is no pause point; there are {', '.join(PausePoint)}"
    for name in ("api", "client_id", "group"):
        if getattr(fault, name) is not None:
            yield f"a pause point of the coordinator knows no {name}"
    if fault.action is not None and not isinstance(fault.action, _AT_A_POINT):
        allowed = ", ".join(action.__name__ for action in _AT_A_POINT)
        yield f"at a pause point only {allowed} can be done, not {fault.action!r}"


def _wrong_action(fault: Fault) -> Iterator[str]:
    action = fault.action
    if action is not None and not isinstance(action, get_args(Action)):
        yield f"{action!r} is no action; there are {', '.join(kind.__name__ for kind in get_args(Action))}"
    if isinstance(action, Error | PartitionError):
        try:
            error_code(action.code)
        except ValueError:
            yield f"Kafka has no error code {action.code!r}"
    if isinstance(action, PartitionError) and fault.topic is None:
        yield "PartitionError needs a topic: it fails what the fault selects, and serves the rest"
    if isinstance(action, Delay) and not _is_count(action.duration_ms, 0):
        yield f"a delay lasts a number of milliseconds from 0 on, not {action.duration_ms!r}"
    if isinstance(action, Duplicate):
        if not _is_count(action.after_requests, 0):
            yield f"after_requests is a number from 0 on, not {action.after_requests!r}"
        elif action.after_requests and action.on_release:
            yield "a duplicate waits for after_requests or for the release, not for both"
