"""CreatePartitions, ElectLeaders, reassignments and client quotas: one table of responses for every broker.

Codes and sentences are those of a real Apache Kafka; the emulator has to say the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.emulator.api.raw_client import RawClient
from tests.emulator.partitions.admin_requests import (
    PREFERRED,
    UNCLEAN,
    Outcome,
    alter_quotas,
    create_partitions,
    create_topic,
    describe,
    describe_quotas,
    elect,
    reassign,
    reassignments,
)
from tests.interop.conftest import Broker
from tests.support.conditions import until

DONE = Outcome(0)
UNKNOWN_TOPIC, INVALID_PARTITIONS, INVALID_ASSIGNMENT, INVALID_REQUEST = 3, 37, 39, 42
NO_REASSIGNMENT, ELECTION_NOT_NEEDED, UNSUPPORTED = 85, 84, 35
NOT_NEEDED = Outcome(ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
NO_SUCH_NODE = "The manual partition assignment includes broker {}, but no such broker is registered."
TWICE = "The manual partition assignment includes the broker {} more than once."
NOWHERE = "The manual partition assignment includes an empty replica list."

_names = itertools.count(1)


class World(NamedTuple):
    """A broker with one node, and a new topic with two partitions there."""

    client: RawClient
    topic: str
    node: int


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture(scope="module")
def node(client: RawClient) -> int:
    """The id of the only node."""
    request: dict[str, Any] = {"topics": (), "allow_auto_topic_creation": False}
    response = client.call("metadata", 12, **request, include_topic_authorized_operations=False)
    node_id: int = response.brokers[0].node_id
    return node_id


@pytest.fixture
def world(client: RawClient, node: int) -> World:
    topic = f"admin-{next(_names)}"
    create_topic(client, topic, [[node], [node]])
    until(lambda: len(describe(client, [topic]).topics[0].partitions) == 2)
    return World(client, topic, node)


def more(world: World, count: int, assignments: list[list[int]] | None = None) -> Outcome:
    return create_partitions(world.client, {world.topic: count}, assignments)[world.topic]


CREATE: dict[str, tuple[Callable[[World], Outcome], Callable[[World], Outcome]]] = {
    "more": (lambda w: more(w, 3), lambda w: DONE),
    "with nodes": (lambda w: more(w, 3, [[w.node]]), lambda w: DONE),
    "as many": (lambda w: more(w, 2), lambda w: Outcome(INVALID_PARTITIONS, "Topic already has 2 partition(s).")),
    "fewer": (
        lambda w: more(w, 1),
        lambda w: Outcome(
            INVALID_PARTITIONS, f"The topic {w.topic} currently has 2 partition(s); 1 would not be an increase."
        ),
    ),
    "below none": (
        lambda w: more(w, -1),
        lambda w: Outcome(
            INVALID_PARTITIONS, f"The topic {w.topic} currently has 2 partition(s); -1 would not be an increase."
        ),
    ),
    "too few assignments": (
        lambda w: more(w, 4, [[w.node]]),
        lambda w: Outcome(
            INVALID_ASSIGNMENT,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
    ),
    "no nodes": (lambda w: more(w, 3, [[]]), lambda w: Outcome(INVALID_ASSIGNMENT, NOWHERE)),
    "nodes that are not there": (
        lambda w: more(w, 3, [[77]]),
        lambda w: Outcome(INVALID_ASSIGNMENT, NO_SUCH_NODE.format(77)),
    ),
    "a node twice": (
        lambda w: more(w, 3, [[w.node, w.node]]),
        lambda w: Outcome(INVALID_ASSIGNMENT, TWICE.format(w.node)),
    ),
    "far too many": (
        lambda w: more(w, 20_000),
        lambda w: Outcome(44, "Excessively large number of additional partitions per request."),
    ),
    "a topic that is not there": (
        lambda w: create_partitions(w.client, {"not-there": 3})["not-there"],
        lambda w: Outcome(UNKNOWN_TOPIC),
    ),
    "a name that is not legal": (
        lambda w: create_partitions(w.client, {"not legal": 3})["not legal"],
        lambda w: Outcome(UNKNOWN_TOPIC),
    ),
    "a topic twice": (
        lambda w: create_partitions(w.client, [(w.topic, 3), (w.topic, 4)])[w.topic],
        lambda w: Outcome(INVALID_REQUEST, "Duplicate topic name."),
    ),
}
ELECT: dict[str, tuple[Callable[[World], Any], Callable[[World], Any]]] = {
    "led by the preferred": (
        lambda w: elect(w.client, PREFERRED, {w.topic: [0]}),
        lambda w: {(w.topic, 0): NOT_NEEDED},
    ),
    "led by anyone": (lambda w: elect(w.client, UNCLEAN, {w.topic: [1]}), lambda w: {(w.topic, 1): NOT_NEEDED}),
    "all": (lambda w: elect(w.client, PREFERRED, None), lambda w: {}),
    "all, unclean": (lambda w: elect(w.client, UNCLEAN, None), lambda w: {}),
    "none": (lambda w: elect(w.client, PREFERRED, {}), lambda w: {}),
    "a topic that is not there": (
        lambda w: elect(w.client, PREFERRED, {"not-there": [0]}),
        lambda w: {("not-there", 0): Outcome(UNKNOWN_TOPIC, "No such topic as not-there")},
    ),
    "a partition that is not there": (
        lambda w: elect(w.client, UNCLEAN, {w.topic: [9]}),
        lambda w: {(w.topic, 9): Outcome(UNKNOWN_TOPIC, f"No such partition as {w.topic}-9")},
    ),
    "another kind": (
        lambda w: elect(w.client, 5, {w.topic: [0]}),
        lambda w: {(w.topic, 0): Outcome(INVALID_REQUEST, "Unknown election type 5")},
    ),
}
REASSIGN: dict[str, tuple[Callable[[World], Any], Callable[[World], Any]]] = {
    "to where it is": (lambda w: reassign(w.client, w.topic, 0, [w.node]), lambda w: DONE),
    "nowhere": (lambda w: reassign(w.client, w.topic, 0, []), lambda w: Outcome(INVALID_ASSIGNMENT, NOWHERE)),
    "to nodes that are not there": (
        lambda w: reassign(w.client, w.topic, 0, [w.node, 99]),
        lambda w: Outcome(INVALID_ASSIGNMENT, NO_SUCH_NODE.format(99)),
    ),
    "to a node twice": (
        lambda w: reassign(w.client, w.topic, 0, [w.node, w.node]),
        lambda w: Outcome(INVALID_ASSIGNMENT, TWICE.format(w.node)),
    ),
    "given up without one": (lambda w: reassign(w.client, w.topic, 0, None), lambda w: Outcome(NO_REASSIGNMENT)),
    "a topic that is not there": (
        lambda w: reassign(w.client, "not-there", 0, [w.node]),
        lambda w: Outcome(UNKNOWN_TOPIC, "Unable to find a topic named not-there."),
    ),
    "a partition that is not there": (
        lambda w: reassign(w.client, w.topic, 9, [w.node]),
        lambda w: Outcome(UNKNOWN_TOPIC, f"Unable to find partition {w.topic}:9."),
    ),
    "listed": (lambda w: reassignments(w.client), lambda w: []),
    "listed by name": (lambda w: reassignments(w.client, {w.topic: [0], "not-there": [0]}), lambda w: []),
}
RATE = "producer_byte_rate"
ALICE = ("user", "alice")
HERE = ("ip", "127.0.0.1")
CONNECTIONS = "connection_creation_rate"


def refused(message: str) -> Outcome:
    return Outcome(INVALID_REQUEST, message)


ALTER_QUOTAS: dict[str, tuple[list[tuple[str, str | None]], list[tuple[str, float | None]], Outcome]] = {
    "a user": ([ALICE], [(RATE, 1000)], DONE),
    "fractions": ([ALICE], [("request_percentage", 1.5), ("controller_mutation_rate", 2.5)], DONE),
    "both": ([("client-id", "app"), ALICE], [("consumer_byte_rate", 77)], DONE),
    "defaults": ([("user", None), ("client-id", None)], [(RATE, 1e9)], DONE),
    "a default client": ([("client-id", None)], [("consumer_byte_rate", 1e9)], DONE),
    "what was never set, taken away": ([ALICE], [("consumer_byte_rate", None)], DONE),
    "what is no quota, taken away": ([ALICE], [("nope", None)], DONE),
    "nothing": ([ALICE], [], DONE),
    "a type twice": ([ALICE, ALICE], [(RATE, 1000)], DONE),
    "nobody": ([], [(RATE, 1)], refused("Invalid empty client quota entity")),
    "an address with a user": (
        [ALICE, HERE],
        [(RATE, 1)],
        refused("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"),
    ),
    "no address": (
        [("ip", "not an ip")],
        [(CONNECTIONS, 1)],
        refused("not an ip is not a valid IP or resolvable host."),
    ),
    "an address's bytes": ([HERE], [(RATE, 1)], refused(f"Invalid configuration key {RATE}")),
    "half a connection": ([HERE], [(CONNECTIONS, 1.5)], refused(f"{CONNECTIONS} cannot be a fractional value.")),
    "far too many connections": (
        [HERE],
        [(CONNECTIONS, 1e10)],
        refused(f"Proposed value for {CONNECTIONS} is too large for an INT."),
    ),
    "another type": ([("foo", "x")], [(RATE, 1)], refused("Unhandled client quota entity type: foo")),
    "an empty name": ([("user", "")], [(RATE, 1)], refused("Empty user not supported")),
    "no quota": ([ALICE], [("nope", 1)], refused("Invalid configuration key nope")),
    "zero": ([ALICE], [(RATE, 0)], refused(f"Quota {RATE} must be greater than 0")),
    "below zero": ([ALICE], [(RATE, -1)], refused(f"Quota {RATE} must be greater than 0")),
    "half a byte": ([ALICE], [(RATE, 1.5)], refused(f"{RATE} cannot be a fractional value.")),
    "far too many bytes": ([ALICE], [(RATE, 1e30)], refused(f"Proposed value for {RATE} is too large for a LONG.")),
    "a quota twice": (
        [ALICE],
        [(RATE, 1), (RATE, 2)],
        refused("Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"),
    ),
}
EXACT, DEFAULT, ANY = 0, 1, 2
OF_ALICE = {"user alice": {RATE: 1000.0, "request_percentage": 1.5, "controller_mutation_rate": 2.5}}
OF_BOTH = {"client-id app, user alice": {"consumer_byte_rate": 77.0}}
OF_DEFAULTS = {"client-id None, user None": {RATE: 1e9}}
OF_DEFAULT_CLIENT = {"client-id None": {"consumer_byte_rate": 1e9}}
DESCRIBE_QUOTAS: dict[str, tuple[list[tuple[str, int, str | None]], bool, Outcome, dict[str, dict[str, float]]]] = {
    "all": ([], False, DONE, OF_ALICE | OF_BOTH | OF_DEFAULTS | OF_DEFAULT_CLIENT),
    "a user": ([("user", EXACT, "alice")], False, DONE, OF_ALICE | OF_BOTH),
    "a user and nothing else": ([("user", EXACT, "alice")], True, DONE, OF_ALICE),
    "the default user": ([("user", DEFAULT, None)], False, DONE, OF_DEFAULTS),
    "any user": ([("user", ANY, None)], False, DONE, OF_ALICE | OF_BOTH | OF_DEFAULTS),
    "any client": ([("client-id", ANY, None)], False, DONE, OF_BOTH | OF_DEFAULTS | OF_DEFAULT_CLIENT),
    "any client and nothing else": ([("client-id", ANY, None)], True, DONE, OF_DEFAULT_CLIENT),
    "both defaults": ([("client-id", DEFAULT, None), ("user", DEFAULT, None)], False, DONE, OF_DEFAULTS),
    "nobody": ([("user", EXACT, "bob")], False, DONE, {}),
    "nothing and nothing else": ([], True, DONE, {}),
    "addresses": ([("ip", ANY, None)], False, DONE, {}),
    "addresses and users": (
        [("ip", EXACT, "127.0.0.1"), ("user", ANY, None)],
        False,
        refused(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        ),
        {},
    ),
    "another type": ([("foo", EXACT, "x")], False, Outcome(UNSUPPORTED, "Unsupported entity type foo"), {}),
    "a type twice": (
        [("user", EXACT, "a"), ("user", EXACT, "b")],
        False,
        refused("Entity type user cannot appear more than once in the filter."),
        {},
    ),
    "no type": ([("", EXACT, "a")], False, refused("Invalid empty entity type."), {}),
    "another match": ([("user", 7, None)], False, refused("Unknown match type 7"), {}),
    "exactly nobody": (
        [("user", EXACT, None)],
        False,
        refused("Request specified MATCH_TYPE_EXACT, but set match string to null."),
        {},
    ),
    "a default with a name": (
        [("user", DEFAULT, "x")],
        False,
        refused("Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        {},
    ),
    "any with a name": (
        [("user", ANY, "x")],
        False,
        refused("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        {},
    ),
}


@pytest.mark.parametrize("case", CREATE)
def test_create_partitions(world: World, case: str) -> None:
    ask, expected = CREATE[case]
    assert ask(world) == expected(world)


@pytest.mark.parametrize("case", ELECT)
def test_elect_leaders(world: World, case: str) -> None:
    ask, expected = ELECT[case]
    assert ask(world) == expected(world)


@pytest.mark.parametrize("case", REASSIGN)
def test_reassign(world: World, case: str) -> None:
    ask, expected = REASSIGN[case]
    assert ask(world) == expected(world)


def test_the_replication_factor_is_protected(world: World) -> None:
    """KIP-860; with one node, the factor can only be changed to an impossible value."""
    outcome = reassign(world.client, world.topic, 0, [], may_change_factor=False)
    assert outcome == Outcome(INVALID_ASSIGNMENT, NOWHERE)


def test_quotas(client: RawClient) -> None:
    """In one test, as quotas are the whole cluster's, and later rows depend on earlier ones."""
    answers = {name: alter_quotas(client, entity, changes) for name, (entity, changes, _) in ALTER_QUOTAS.items()}
    assert answers == {name: outcome for name, (_, _, outcome) in ALTER_QUOTAS.items()}
    assert alter_quotas(client, [ALICE], [(RATE, 5)], validate_only=True) == DONE
    expected_twice = ALTER_QUOTAS["a quota twice"][2]
    assert alter_quotas(client, [ALICE], [(RATE, 1000)], times=2) == expected_twice
    try:
        until(lambda: describe_quotas(client, [])[1] == DESCRIBE_QUOTAS["all"][3])
        for name, (components, strict, outcome, found) in DESCRIBE_QUOTAS.items():
            answer = describe_quotas(client, components, strict=strict)
            assert (answer[0].error, answer[0].message or None, answer[1]) == (*outcome, found), name
    finally:
        for entity, changes, outcome in ALTER_QUOTAS.values():
            if outcome == DONE:
                alter_quotas(client, entity, [(key, None) for key, _ in changes])
    until(lambda: describe_quotas(client, [])[1] == {})
