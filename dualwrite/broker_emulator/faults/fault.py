"""The definition of a fault: the requests it selects, its effect on them, and the check that it makes sense.

The functions at the end read the names in a request of any API: transactional ids, groups, topics and partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.broker_emulator.text import did_you_mean

if TYPE_CHECKING:
    from dualwrite.broker_emulator.messages.call import Call

_MARKER_APIS = ("27", "writetxnmarkers")

TOPIC_LISTS = ("topics", "topic_data", "v3_and_below_topics", "topic_partitions")
"""Names of the list of topics, in a request or in an element of `OWNER_LISTS`."""
OWNER_LISTS = ("transactions", "markers", "groups", "dirs")
"""Names of lists whose elements hold lists of topics."""
PARTITION_LISTS = ("partitions", "partition_data", "partition_indexes")
_PARTITION_NUMBERS = ("partition_index", "index", "partition")

_FIND_COORDINATOR, _GROUP_KEY, _TRANSACTION_KEY = 10, 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The selected requests, and the action on them. A selector of None accepts every request.

    The first `skip` matching requests are served as usual; the next `count` are hit (None: all of them). With `action`
    None the fault only observes: all matching requests are counted and served as usual.

    The markers that coordinators send to partition leaders are WriteTxnMarkers requests too, one for each partition,
    although they stay inside the process: a fault that names this API applies to them. To the coordinator, a dropped
    marker or a marker without a response has timed out; it sends the marker again.
    """

    action: Action | None = None
    api: str | int | None = None
    """An API key, or its name in the case of Kafka's protocol guide ("EndTxn") or of this package ("end_txn")."""
    point: PausePoint | None = None
    """Instead of requests: coordinators that pass this pause point; the action holds, delays or crashes them."""
    client_id: str | None = None
    transactional_id: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    node: int | None = None
    """The node that received the request; at a pause point, the coordinator's node."""
    predicate: Callable[[Any], bool] | None = None
    """Called in the emulator's thread with the decoded request (kio's type for its version), or with the context of a
    pause point."""
    count: int | None = 1
    skip: int = 0

    @property
    def meets_markers(self) -> bool:
        """Whether the fault names WriteTxnMarkers, and so applies to markers inside the process."""
        return self.api is not None and folded(self.api) in _MARKER_APIS

    def accepts(self, call: Call) -> bool:
        """Return whether the fault selects this request."""
        return (
            self.point is None
            and (self.api is None or folded(self.api) in (folded(call.api.key), folded(call.api.schema_name)))
            and (self.client_id is None or self.client_id == call.client_id)
            and (self.node is None or self.node == call.node.node_id)
            and (self.transactional_id is None or self.transactional_id in transactional_ids(call))
            and (self.group is None or self.group in group_ids(call))
            and ((self.topic is None and self.partition is None) or names_partition(call, self.topic, self.partition))
            and (self.predicate is None or self.predicate(call.request))
        )

    def accepts_passing(self, point: PausePoint, context: Mapping[str, Any]) -> bool:
        """Return whether the fault selects a coordinator that passes `point`."""
        selectors = {
            "node_id": self.node,
            "transactional_id": self.transactional_id,
            "topic": self.topic,
            "partition": self.partition,
        }
        return (
            self.point is point
            and all(value is None or context.get(name) == value for name, value in selectors.items())
            and (self.predicate is None or self.predicate(context))
        )


_AT_A_POINT = (Hold, Delay, CrashBefore)
_TEXTS = ("client_id", "transactional_id", "group", "topic")
_NUMBERS = ("partition", "node", "skip")


def check(fault: Fault) -> None:
    """Raise ValueError with every problem of `fault`, which would otherwise silently never hit."""
    problems = [*_selector_problems(fault), *_point_problems(fault), *_action_problems(fault)]
    if problems:
        raise ValueError("; ".join(problems))


def _selector_problems(fault: Fault) -> Iterator[str]:
    if fault.api is not None:
        yield from _api_problems(fault.api)
    for name in _TEXTS:
        value = getattr(fault, name)
        if value is not None and not isinstance(value, str):
            yield f"{name} must be a string, not {value!r}"
    for name in _NUMBERS:
        value = getattr(fault, name)
        if value is not None and not _is_count(value, 0):
            yield f"{name} must be a number of at least 0, not {value!r}"
    if fault.count is not None and not _is_count(fault.count, 1):
        yield f"count must be a number of at least 1, or None for every request, not {fault.count!r}"
    predicate: Any = fault.predicate
    if predicate is not None and not callable(predicate):
        yield f"predicate must be callable, not {predicate!r}"


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _api_problems(api: Any) -> Iterator[str]:
    if isinstance(api, int) and not isinstance(api, bool):
        if api not in api_key_map:
            yield f"Kafka has no API with key {api}"
        return
    known = {folded(name) for name in schema_name_map}
    if not isinstance(api, str):
        yield f"api must be the key or the name of an API, not {api!r}"
    elif folded(api) not in known and not (api.isdecimal() and int(api) in api_key_map):
        names = ("".join(word.capitalize() for word in name.split("_")) for name in schema_name_map)
        yield f"Kafka has no API called {api!r}{did_you_mean(api, names)}"


def _point_problems(fault: Fault) -> Iterator[str]:
    if fault.point is None:
        return
    if fault.point not in tuple(PausePoint):
        yield f"{fault.point!r} is not a pause point; there are {', '.join(PausePoint)}"
    for name in ("api", "client_id", "group"):
        if getattr(fault, name) is not None:
            yield f"a pause point has no {name} to select by"
    if fault.action is not None and not isinstance(fault.action, _AT_A_POINT):
        allowed = ", ".join(action.__name__ for action in _AT_A_POINT)
        yield f"at a pause point only the actions {allowed} are possible, not {fault.action!r}"


def _action_problems(fault: Fault) -> Iterator[str]:
    action = fault.action
    if action is not None and not isinstance(action, get_args(Action)):
        yield f"{action!r} is not an action; there are {', '.join(kind.__name__ for kind in get_args(Action))}"
    if isinstance(action, Error | PartitionError):
        try:
            error_code(action.code)
        except ValueError:
            yield f"Kafka has no error code {action.code!r}"
    if isinstance(action, PartitionError) and fault.topic is None:
        yield "PartitionError needs a topic: it fails only the part of the request that the fault selects"
    if isinstance(action, Delay) and not _is_count(action.duration_ms, 0):
        yield f"duration_ms must be a number of at least 0, not {action.duration_ms!r}"
    if isinstance(action, Duplicate):
        if not _is_count(action.after_requests, 0):
            yield f"after_requests must be a number of at least 0, not {action.after_requests!r}"
        elif action.after_requests and action.on_release:
            yield "a Duplicate has either after_requests or on_release, not both"


def folded(name: str | int) -> str:
    """Return an API's name or key in one spelling: "EndTxn" and "end_txn" become equal."""
    return str(name).replace("_", "").lower()


def transactional_ids(call: Call) -> set[str]:
    """Return the transactional ids in a request."""
    request = call.request
    named = {getattr(request, name, None) for name in ("transactional_id", "v3_and_below_transactional_id")}
    named.update(getattr(element, "transactional_id", None) for element in getattr(request, "transactions", ()))
    named.update(getattr(request, "transactional_ids", ()))
    return {name for name in (*named, *_coordinator_keys(call, _TRANSACTION_KEY)) if name is not None}


def group_ids(call: Call) -> set[str]:
    """Return the groups in a request."""
    request = call.request
    lists = (*getattr(request, "groups_names", ()), *getattr(request, "group_ids", ()))
    named = {getattr(request, "group_id", None), *lists}
    for group in getattr(request, "groups", ()):
        named.add(group if isinstance(group, str) else group.group_id)
    return {name for name in (*named, *_coordinator_keys(call, _GROUP_KEY)) if name is not None}


def _coordinator_keys(call: Call, key_type: int) -> tuple[str, ...]:
    request = call.request
    if call.api.key != _FIND_COORDINATOR or getattr(request, "key_type", _GROUP_KEY) != key_type:
        return ()
    return getattr(request, "coordinator_keys", None) or (getattr(request, "key", ""),)


def names_partition(call: Call, topic: str | None, partition: int | None) -> bool:
    """Return whether a request names this partition of this topic; None means any."""
    return any(
        topic in (None, name) and (partition is None or partition in partition_numbers(element))
        for name, element in _topics(call)
    )


def _topics(call: Call) -> Iterator[tuple[str, Any]]:
    request = call.request
    owners = [request, *(owner for name in OWNER_LISTS for owner in getattr(request, name, ()))]
    for owner in owners:
        for name in TOPIC_LISTS:
            for element in getattr(owner, name, None) or ():
                yield topic_name(call, element), element
    for name in getattr(request, "topic_names", ()):
        yield name, None


def topic_name(call: Call, element: Any) -> str:
    """Return the name of the topic of an element of a request; "" if no topic has its id."""
    if isinstance(element, str):
        return element
    for attribute in ("name", "topic"):
        name = getattr(element, attribute, None)
        if name is not None:
            return str(name)
    known = call.cluster.topic_by_id(getattr(element, "topic_id", None))
    return known.name if known else ""


def partition_numbers(element: Any) -> list[int]:
    """Return the partitions in a topic's element."""
    return [partition_number(entry) for name in PARTITION_LISTS for entry in getattr(element, name, None) or ()]


def partition_number(entry: Any) -> int:
    """Return the partition of an entry, which in some messages is the number itself."""
    for name in _PARTITION_NUMBERS:
        number = getattr(entry, name, None)
        if number is not None:
            return int(number)
    return int(entry)
