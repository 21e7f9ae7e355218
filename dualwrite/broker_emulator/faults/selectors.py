"""Read what a request names, in any API: its transactional ids, groups, topics and partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualwrite.broker_emulator.api.registry import Call

TOPIC_LISTS = ("topics", "topic_data", "v3_and_below_topics", "topic_partitions")
"""Names of the list of topics, in a request or in an element of `OWNER_LISTS`."""
OWNER_LISTS = ("transactions", "markers", "groups", "dirs")
"""Names of lists whose elements hold lists of topics."""
PARTITION_LISTS = ("partitions", "partition_data", "partition_indexes")
_PARTITION_NUMBERS = ("partition_index", "index", "partition")

_FIND_COORDINATOR, _GROUP_KEY, _TRANSACTION_KEY = 10, 0, 1


def folded(name: str | int) -> str:
    """Return an API's name or key in one spelling: "EndTxn" and "end_txn" become equal."""
    return str(name).replace("_", "").lower()


def transactional_ids(call: Call) -> set[str]:
    """Return the transactional ids that a request names."""
    request = call.request
    named = {getattr(request, name, None) for name in ("transactional_id", "v3_and_below_transactional_id")}
    named.update(getattr(element, "transactional_id", None) for element in getattr(request, "transactions", ()))
    named.update(getattr(request, "transactional_ids", ()))
    return {name for name in (*named, *_coordinator_keys(call, _TRANSACTION_KEY)) if name is not None}


def group_ids(call: Call) -> set[str]:
    """Return the groups that a request names."""
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
    """Return the topic that an element of a request names; "" if no topic has its id."""
    if isinstance(element, str):
        return element
    for attribute in ("name", "topic"):
        name = getattr(element, attribute, None)
        if name is not None:
            return str(name)
    known = call.cluster.topic_by_id(getattr(element, "topic_id", None))
    return known.name if known else ""


def partition_numbers(element: Any) -> list[int]:
    """Return the partitions in an element for one topic."""
    return [partition_number(entry) for name in PARTITION_LISTS for entry in getattr(element, name, None) or ()]


def partition_number(entry: Any) -> int:
    """Return the partition of an entry; in some messages the entry is the number itself."""
    for name in _PARTITION_NUMBERS:
        number = getattr(entry, name, None)
        if number is not None:
            return int(number)
    return int(entry)
