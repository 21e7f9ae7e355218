"""Rules and filters for CreateAcls, DescribeAcls and DeleteAcls, with the responses of a real Apache Kafka 4.4.0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.interop.raw_wire.access_requests import ANY_ACL
from tests.interop.wire import ConnectionClosedError, Wire, message

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
DENY, ALLOW = 2, 3
ALICE, BOB = "User:alice", "User:bob"
Rule = tuple[int, str, int, str, str, int, int]
"""Resource type, name, pattern type, principal, host, operation, permission."""

RULES: list[Rule] = [
    (2, "orders", LITERAL, ALICE, "*", 3, ALLOW),
    (2, "orders", LITERAL, ALICE, "*", 4, ALLOW),
    (2, "orders", LITERAL, BOB, "10.0.0.1", 3, DENY),
    (2, "ord", PREFIXED, ALICE, "*", 2, ALLOW),
    (2, "*", LITERAL, "User:*", "*", 8, ALLOW),
    (2, "*", PREFIXED, ALICE, "*", 3, ALLOW),
    (3, "orders", LITERAL, ALICE, "*", 3, ALLOW),
    (4, "kafka-cluster", LITERAL, ALICE, "*", 8, ALLOW),
    (5, "o", PREFIXED, ALICE, "*", 15, ALLOW),
    (7, "alice", LITERAL, "Group:admins", "*", 13, ALLOW),
]
ODD: dict[str, tuple[Rule, int, str]] = {
    "another cluster": (
        (4, "cluster", LITERAL, ALICE, "*", 8, ALLOW),
        42,
        "The only valid name for the CLUSTER resource is kafka-cluster",
    ),
    "no name": ((2, "", LITERAL, ALICE, "*", 3, ALLOW), 42, "Invalid empty resource name"),
    "any type": ((1, "x", LITERAL, ALICE, "*", 3, ALLOW), -1, ""),
    "any pattern": ((2, "x", ANY, ALICE, "*", 3, ALLOW), -1, ""),
    "pattern that matches": ((2, "x", MATCH, ALICE, "*", 3, ALLOW), -1, ""),
    "any operation": ((2, "x", LITERAL, ALICE, "*", 1, ALLOW), -1, ""),
    "any permission": ((2, "x", LITERAL, ALICE, "*", 3, 1), -1, ""),
    "type that is not known": ((99, "x", LITERAL, ALICE, "*", 3, ALLOW), 42, "Invalid resourceType UNKNOWN"),
    "operation that is not known": ((2, "x", LITERAL, ALICE, "*", 99, ALLOW), 42, "Invalid operation UNKNOWN"),
    "a prefix of the cluster": (
        (4, "kafka", PREFIXED, ALICE, "*", 8, ALLOW),
        42,
        "The only valid name for the CLUSTER resource is kafka-cluster",
    ),
    "an operation that topics do not have": ((2, "x", LITERAL, "User:nobody", "*", 13, ALLOW), 0, ""),
    "a principal without a colon": (
        (2, "x", LITERAL, "alice", "*", 3, ALLOW),
        42,
        "Could not parse principal from `alice` "
        "(no colon is present separating the principal type from the principal name)",
    ),
}
"""Rules with the responses to clients that create them."""

UNKNOWN: dict[str, Rule] = {
    "resource type": (0, "x", LITERAL, ALICE, "*", 3, ALLOW),
    "pattern type": (2, "x", 0, ALICE, "*", 3, ALLOW),
    "operation": (2, "x", LITERAL, ALICE, "*", 0, ALLOW),
    "permission": (2, "x", LITERAL, ALICE, "*", 3, 0),
}

FILTERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "everything": ({}, [*range(10)]),
    "topics": ({"resource_type_filter": 2}, [0, 1, 2, 3, 4, 5]),
    "a name": ({"resource_name_filter": "orders"}, [0, 1, 2, 6]),
    "a literal name": ({"resource_name_filter": "orders", "pattern_type_filter": LITERAL}, [0, 1, 2, 6]),
    "a prefix": ({"resource_name_filter": "ord", "pattern_type_filter": PREFIXED}, [3]),
    "prefixes": ({"pattern_type_filter": PREFIXED}, [3, 5, 8]),
    "what a topic falls under": (
        {"resource_type_filter": 2, "resource_name_filter": "orders", "pattern_type_filter": MATCH},
        [0, 1, 2, 3, 4],
    ),
    "what anything falls under": (
        {"resource_name_filter": "orders", "pattern_type_filter": MATCH},
        [0, 1, 2, 3, 4, 6, 8],
    ),
    "what begins with a star falls under": ({"resource_name_filter": "*x", "pattern_type_filter": MATCH}, [4, 5]),
    "what matches, without a name": ({"pattern_type_filter": MATCH}, [*range(10)]),
    "the star": ({"resource_name_filter": "*"}, [4, 5]),
    "a principal": ({"principal_filter": ALICE}, [0, 1, 3, 5, 6, 7, 8]),
    "everybody": ({"principal_filter": "User:*"}, [4]),
    "a host": ({"host_filter": "10.0.0.1"}, [2]),
    "every host": ({"host_filter": "*"}, [0, 1, 3, 4, 5, 6, 7, 8, 9]),
    "an operation": ({"operation": 3}, [0, 2, 5, 6]),
    "all operations": ({"operation": 2}, [3]),
    "refusals": ({"permission_type": DENY}, [2]),
    "several at once": ({"resource_type_filter": 2, "principal_filter": ALICE, "operation": 3}, [0, 5]),
    "a resource type that is not known": ({"resource_type_filter": 99}, []),
    "an operation that is not known": ({"operation": 99}, []),
}
"""Filters, each with the places in RULES of its matches."""

DELETIONS: list[tuple[dict[str, Any], int, list[int]]] = [
    ({"operation": 99}, 42, []),
    ({"resource_type_filter": 3}, 0, [6]),
    ({"principal_filter": ALICE, "operation": 3}, 0, [0, 5, 6]),
    ({"principal_filter": BOB}, 0, [2]),
]
"""Filters of one DeleteAcls request: all of them look before anything is removed."""


def described(wire: Wire, **wanted: Any) -> list[int]:
    """Which of RULES a filter matches."""
    answer = wire.call(message("DescribeAcls", 3, **_any_but(wanted)))
    assert answer.error_code == 0, answer
    return _places(
        (
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in answer.resources
        for acl in resource.acls
    )


def deleted(wire: Wire, *filters: dict[str, Any]) -> list[tuple[int, list[int]]]:
    """The error of each filter, and which of RULES it has removed."""
    answer = wire.call(message("DeleteAcls", 3, filters=[_any_but(wanted) for wanted in filters]))
    return [
        (
            result.error_code,
            _places(
                (
                    acl.resource_type,
                    acl.resource_name,
                    acl.pattern_type,
                    acl.principal,
                    acl.host,
                    acl.operation,
                    acl.permission_type,
                )
                for acl in result.matching_acls
            ),
        )
        for result in answer.filter_results
    ]


def created(wire: Wire, *rules: Rule) -> list[tuple[int, str]]:
    """The error of each rule, and its message."""
    answer = wire.call(message("CreateAcls", 3, creations=[_creation(rule) for rule in rules]))
    return [(result.error_code, result.error_message or "") for result in answer.results]


def _places(rules: Iterable[Rule]) -> list[int]:
    return sorted(RULES.index(rule) for rule in rules if rule in RULES)


def _any_but(wanted: dict[str, Any]) -> dict[str, Any]:
    return {**ANY_ACL, "principal_filter": None, **wanted}


def is_closed_for(address: str, rule: Rule) -> list[bool]:
    """Whether each API closes the connection for a rule or filter with an UNKNOWN in it."""
    requests = [
        message("CreateAcls", 3, creations=[_creation(rule)]),
        message("DescribeAcls", 3, **_filter(rule)),
        message("DeleteAcls", 3, filters=[_filter(rule)]),
    ]
    closed = []
    for request in requests:
        with Wire(address) as wire:
            try:
                wire.call(request)
            except ConnectionClosedError:
                closed.append(True)
            else:
                closed.append(False)
    return closed


def _creation(rule: Rule) -> dict[str, Any]:
    fields = ("resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation")
    return dict(zip((*fields, "permission_type"), rule, strict=True))


def _filter(rule: Rule) -> dict[str, Any]:
    kind, name, pattern, principal, host, operation, permission = rule
    return {
        "resource_type_filter": kind,
        "resource_name_filter": name,
        "pattern_type_filter": pattern,
        "principal_filter": principal,
        "host_filter": host,
        "operation": operation,
        "permission_type": permission,
    }
