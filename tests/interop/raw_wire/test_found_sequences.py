"""Findings of differential fuzzing, each with the one response of a release (see `tests/differential`).

A sequence is written as the fuzzer prints it, so that a new one can be pasted; its last response is compared, or its
records.
"""

# ruff: noqa: E501 - lines as the fuzzer prints them
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any, Final, NamedTuple

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from tests.differential.logs import ends_of, logs_of
from tests.differential.side import Side
from tests.differential.steps import Step
from tests.interop.conftest import RELEASED, Broker
from tests.interop.wire import wait_for
from tests.support.names import next_name

IN_3_9, IN_4_3, IN_4_4 = "3.9", "4.3", "4.4"
BROKERS: Final = {
    IN_3_9: ("emulated_kafka_3_9", "apache_kafka_3_9"),
    IN_4_3: ("emulated_kafka_4_3",),
    IN_4_4: ("emulated_kafka_4_4", "apache_kafka"),
}
"""The brokers that answer as a release."""


class Found(NamedTuple):
    """A sequence, and each release's response."""

    name: str
    steps: str
    where: tuple[str | int, ...]
    """The path to a field of the last response, or the name of a log."""
    expected: Mapping[str, Any]
    hangs: bool = False
    """Whether a transaction stays between its decision and its end."""

    def __str__(self) -> str:
        return self.name


GROUP_ERROR = ("topics", 0, "partitions", 0, "error_code")
GROUP_STATE = ("groups", 0, "group_state")
PRODUCE_ERROR = ("responses", 0, "partition_responses", 0, "error_code")

NOT_VERIFIED_YET = {
    "index": 1,
    "error_code": 19,
    "base_offset": -1,
    "log_append_time": -1,
    "log_start_offset": -1,
    "record_errors": [],
}
ONLY_T = [{"topic": "t", "partitions": [0]}]
HANGING = """
    init_producer_id v5 id=A timeout_ms=60000 expects=nothing epoch=0
    add_partitions_to_txn v3 id=A producer=A epoch=0 partitions=[('t', 0), ('u', 0)] verify_only=False
    produce v11 id=None producer=A epoch=1 partition=('t', 0) sequence=0 count=1 transactional=False acks=-1 damage=
    end_txn v4 id=A producer=A epoch=0 commit=True
"""

JOINED = (
    "consumer_group_heartbeat v1 group=g member=c1 epoch=join topics=['t'] instance=None assignor=None owned=nothing\n"
)

ANSWERS: Final = [
    Found(
        "a refused commit in a transaction makes its group",
        """
        txn_offset_commit v0 id=never producer=A epoch=0 group=g partition=('u', 0) offset=20 member= generation=none instance=None
        describe_groups v2 group=g
        """,
        GROUP_STATE,
        {IN_3_9: "Empty", IN_4_4: "Dead"},
    ),
    Found(
        "a refused commit in a transaction makes a group that can be deleted",
        """
        txn_offset_commit v4 id=A producer=A epoch=1 group=g partition=('t', 0) offset=88 member= generation=none instance=None
        delete_groups v1 group=g
        """,
        ("results", 0, "error_code"),
        {IN_3_9: 0, IN_4_4: 69},
    ),
    Found(
        "offsets of a group that a refused commit has made",
        """
        txn_offset_commit v2 id=B producer=B epoch=0 group=g partition=('u', 0) offset=47 member= generation=none instance=None
        offset_delete v0 group=g partition=('t', 0)
        """,
        ("error_code",),
        {IN_3_9: 0, IN_4_4: 69},
    ),
    Found(
        "a generation of a group that a refused commit has made",
        """
        txn_offset_commit v3 id=never producer=A epoch=1 group=g partition=('t', 0) offset=83 member=own generation=0 instance=None
        offset_commit v9 group=g partition=('t', 1) offset=5 metadata= member=own generation=1 instance=None
        """,
        GROUP_ERROR,
        {IN_3_9: 25, IN_4_4: 69},
    ),
    Found(
        "a member without protocols joins a group that a refused commit has made",
        """
        txn_offset_commit v2 id=B producer=B epoch=0 group=g partition=('t', 0) offset=76 member=own generation=0 instance=None
        join_group v0 group=g member=nobody instance=None session_ms=30000 type=consumer protocols=[]
        """,
        ("error_code",),
        {IN_3_9: 23, IN_4_4: 25},
    ),
    Found(
        "an empty group whose last offset is deleted",
        """
        offset_commit v9 group=g partition=('u', 0) offset=5 metadata=None member= generation=none instance=None
        offset_delete v0 group=g partition=('u', 0)
        describe_groups v1 group=g
        """,
        GROUP_STATE,
        {IN_3_9: "Dead", IN_4_4: "Empty"},
    ),
    Found(
        "an empty group one of whose offsets is deleted",
        """
        offset_commit v9 group=g partition=('u', 0) offset=5 metadata=None member= generation=none instance=None
        offset_commit v9 group=g partition=('t', 0) offset=5 metadata=None member= generation=none instance=None
        offset_delete v0 group=g partition=('u', 0)
        describe_groups v1 group=g
        """,
        GROUP_STATE,
        {IN_3_9: "Empty", IN_4_4: "Empty"},
    ),
    Found(
        "an empty group whose only offset is pending while it is deleted",
        """
        init_producer_id v2 id=A timeout_ms=60000 expects=nothing epoch=0
        add_offsets_to_txn v3 id=A producer=A epoch=0 group=g
        txn_offset_commit v3 id=A producer=A epoch=0 group=g partition=('t', 1) offset=28 member= generation=none instance=None
        offset_delete v0 group=g partition=('t', 1)
        describe_groups v1 group=g
        """,
        GROUP_STATE,
        {IN_3_9: "Empty", IN_4_4: "Empty"},
    ),
    Found(
        "an empty group whose transaction is over before its offset is deleted again",
        """
        init_producer_id v2 id=A timeout_ms=60000 expects=nothing epoch=0
        add_offsets_to_txn v3 id=A producer=A epoch=0 group=g
        txn_offset_commit v3 id=A producer=A epoch=0 group=g partition=('t', 1) offset=28 member= generation=none instance=None
        offset_delete v0 group=g partition=('t', 1)
        end_txn v3 id=A producer=A epoch=0 commit=True
        offset_delete v0 group=g partition=('t', 1)
        describe_groups v1 group=g
        """,
        GROUP_STATE,
        {IN_3_9: "Dead", IN_4_4: "Empty"},
    ),
    Found(
        "offsets of no epoch in a transaction that is open",
        """
        init_producer_id v3 id=A timeout_ms=60000 expects=nothing epoch=0
        add_offsets_to_txn v3 id=A producer=A epoch=0 group=g
        txn_offset_commit v3 id=A producer=A epoch=0 group=g partition=('t', 0) offset=45 member= generation=none instance=None
        txn_offset_commit v1 id=never producer=A epoch=none group=g partition=('t', 1) offset=42 member= generation=none instance=None
        """,
        GROUP_ERROR,
        {IN_3_9: -1, IN_4_4: 47},
    ),
    Found(
        "an unknown isolation level of Fetch",
        "fetch v10 partition=('t', 0) offset=1 isolation=7 leader_epoch=-1",
        ("responses", 0, "partitions", 0, "records"),
        {IN_3_9: None, IN_4_4: []},
    ),
    Found(
        "an unknown isolation level of ListOffsets, with a timestamp that the version does not have",
        "list_offsets v5 partition=('t', 0) timestamp=-4 isolation=7 leader_epoch=-1",
        GROUP_ERROR,
        {IN_3_9: 35, IN_4_4: -1},
    ),
    Found(
        "an unknown isolation level of ListOffsets",
        "list_offsets v5 partition=('missing', 0) timestamp=-2 isolation=7 leader_epoch=-1",
        GROUP_ERROR,
        {IN_3_9: -1, IN_4_4: -1},
    ),
    Found(
        "a generation below -1 in a transaction, of a group that has members",
        """
        init_producer_id v5 id=A timeout_ms=60000 expects=nothing epoch=0
        consumer_group_heartbeat v1 group=g member=c2 epoch=join topics=['t', 'u'] instance=None assignor=None owned=nothing
        txn_offset_commit v5 id=A producer=A epoch=0 group=g partition=('t', 0) offset=13 member=own generation=-1 instance=None
        """,
        GROUP_ERROR,
        {IN_4_4: 25},
    ),
    Found(
        "no generation in a transaction, of a group that has members",
        """
        init_producer_id v5 id=A timeout_ms=60000 expects=nothing epoch=0
        consumer_group_heartbeat v1 group=g member=c2 epoch=join topics=['t', 'u'] instance=None assignor=None owned=nothing
        txn_offset_commit v5 id=A producer=A epoch=0 group=g partition=('t', 0) offset=13 member= generation=none instance=None
        """,
        GROUP_ERROR,
        {IN_4_4: 0},
    ),
    Found(
        "a marker without a bump does not end the verification of a client that bumps",
        """
        init_producer_id v5 id=A timeout_ms=60000 expects=nothing epoch=0
        produce v12 id=A producer=A epoch=0 partition=('t', 0) sequence=none count=1 transactional=True acks=-1 damage=
        end_txn v4 id=A producer=A epoch=0 commit=False
        produce v12 id=A producer=A epoch=0 partition=('t', 0) sequence=0 count=1 transactional=True acks=-1 damage=
        """,
        PRODUCE_ERROR,
        {IN_4_4: 45},
    ),
    Found(
        "a marker ends the verification of a client that does not bump",
        """
        init_producer_id v5 id=A timeout_ms=60000 expects=nothing epoch=0
        add_partitions_to_txn v3 id=A producer=A epoch=0 partitions=[('t', 0)] verify_only=False
        produce v11 id=A producer=A epoch=0 partition=('t', 0) sequence=none count=1 transactional=True acks=-1 damage=
        end_txn v4 id=A producer=A epoch=0 commit=False
        produce v12 id=A producer=A epoch=0 partition=('t', 0) sequence=0 count=1 transactional=True acks=-1 damage=
        """,
        PRODUCE_ERROR,
        {IN_4_4: 0},
    ),
    Found(
        "a static member goes back to the classic protocol, and joins again",
        """
        consumer_group_heartbeat v1 group=g member=c1 epoch=join topics=['t'] instance=i assignor=None owned=nothing
        join_group v8 group=g member= instance=i session_ms=30000 type=consumer protocols=['range']
        join_group v8 group=g member= instance=i session_ms=30000 type=consumer protocols=['range']
        """,
        ("generation_id",),
        {IN_4_4: 3},
    ),
    Found(
        "a member of the classic protocol with a subscription that is cut off",
        JOINED
        + "join_group v8 group=g member= instance=i session_ms=30000 type=consumer protocols=['range'] metadata=cut",
        ("error_code",),
        {IN_4_3: -1, IN_4_4: 23},
    ),
    Found(
        "a member of the classic protocol with a subscription of no version",
        JOINED
        + "join_group v8 group=g member= instance=i session_ms=30000 type=consumer protocols=['range'] metadata=no version",
        ("error_code",),
        {IN_4_3: -1, IN_4_4: 23},
    ),
    Found(
        "a group with a member whose subscription has no version is not upgraded",
        "join_group v8 group=g member= instance=i session_ms=30000 type=consumer protocols=['range'] metadata=no version\n"
        + JOINED,
        ("error_code",),
        {IN_4_4: 69},
    ),
    Found(
        "a marker that is fenced in one partition is written in the others",
        HANGING + "describe_transactions v0 id=A",
        ("transaction_states", 0, "topics"),
        dict.fromkeys((IN_3_9, IN_4_4), ONLY_T),
        hangs=True,
    ),
    Found(
        "what cannot be verified yet has no start of the log",
        HANGING
        + "produce v11 id=A producer=A epoch=0 partition=('t', 1) sequence=next count=1 transactional=True acks=-1 damage=",
        ("responses", 0, "partition_responses", 0),
        dict.fromkeys((IN_3_9, IN_4_4), NOT_VERIFIED_YET),
        hangs=True,
    ),
]

DELETED_WHILE_PENDING = """
    init_producer_id v2 id=A timeout_ms=60000 expects=nothing epoch=0
    add_offsets_to_txn v3 id=A producer=A epoch=0 group=g
    txn_offset_commit v3 id=A producer=A epoch=0 group=g partition=('t', 1) offset=28 member= generation=none instance=None
"""
RECORDS: Final = [
    Found(
        "a pending offset that is deleted with its group",
        DELETED_WHILE_PENDING + "delete_groups v0 group=g",
        ("offsets of g",),
        {IN_3_9: [True], IN_4_4: [True, False, False]},
    ),
    Found(
        "a pending offset that is deleted",
        DELETED_WHILE_PENDING + "offset_delete v0 group=g partition=('t', 1)",
        ("offsets of g",),
        {IN_3_9: [True], IN_4_4: [True, False]},
    ),
]


@pytest.fixture(scope="module")
def emulated_kafka_4_3() -> Iterator[Broker]:
    """The emulator as Kafka 4.3; its responses here were observed in 4.3.1."""
    config = BrokerConfig(
        profile=Profile.KAFKA_4_3, transaction_state_log_num_partitions=5, offsets_topic_num_partitions=5
    )
    with Emulator(config=config) as emulator:
        yield Broker("the emulator as Kafka 4.3", emulator.bootstrap_servers, RELEASED, emulator)


def on_brokers(founds: list[Found]) -> list[Any]:
    return [
        pytest.param(found, broker, found.expected[release], id=f"{broker}-{found}".replace(" ", "_"))
        for found in founds
        for release in found.expected
        for broker in BROKERS[release]
    ]


@contextmanager
def side_of(broker: Broker) -> Iterator[Side]:
    """A connection to a broker, with the topics of a new sequence."""
    side = Side(broker.name, broker.bootstrap_servers)
    (name,) = topics = side.create_topics([next_name("found")])
    side.begin(name, topics[name])
    yield side
    side.close()


def played(side: Side, found: Found) -> Any:
    return [side.play(Step.parse(line)) for line in found.steps.strip().splitlines()][-1]


@pytest.mark.parametrize(("found", "name", "expected"), on_brokers(ANSWERS))
def test_answers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, found: Found, name: str, expected: object
) -> None:
    if found.hangs:
        monkeypatch.setattr("tests.differential.side._SETTLED_WITHIN_S", 1.0)
    with side_of(request.getfixturevalue(name)) as side:
        answer = played(side, found)
        if found.hangs:  # a wait for an event that never comes may have taken longer
            last = Step.parse(found.steps.strip().splitlines()[-1])
            answer = wait_for(lambda: side.play(last), lambda answer: bool(looked_at(found, answer) == expected))
    assert looked_at(found, answer) == expected, answer


def looked_at(found: Found, answer: Any) -> Any:
    return reduce(lambda value, key: value[key], found.where, answer)


@pytest.mark.parametrize(("found", "name", "expected"), on_brokers(RECORDS))
def test_records(request: pytest.FixtureRequest, found: Found, name: str, expected: list[bool]) -> None:
    """The expectation is which of the records have a value."""
    with side_of(request.getfixturevalue(name)) as side:
        starts = ends_of(side)
        played(side, found)
        rows = logs_of(side, starts)[str(found.where[0])]
    assert [value is not None for *_, value in rows] == expected
