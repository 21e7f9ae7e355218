"""Requests that no client sends, each with every broker's response: real ones of 3.9 and 4.4, and the emulator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.conftest import Broker, every_broker
from tests.interop.wire import (
    AT_ONCE,
    EARLIEST,
    FROM_THE_BEGINNING,
    GROUP,
    NO_IDENTITY,
    READ_COMMITTED,
    Code,
    Identity,
    Wire,
    record_batch,
)
from tests.support.names import next_name

OLD = 11
NONE, FAILED, UNKNOWN = Code.NONE, Code.UNKNOWN_SERVER_ERROR, Code.UNKNOWN_TOPIC_OR_PARTITION
NOT_ATTEMPTED = Code.OPERATION_NOT_ATTEMPTED


pytestmark = every_broker


# -- AddPartitionsToTxn of brokers


Names = tuple[tuple[str, list[int]], ...]


def add_many(
    wire: Wire, *transactions: tuple[str, Identity, Names], verify_only: bool, version: int = 4
) -> tuple[int, list[tuple[str, dict[str, list[tuple[int, int]]]]]]:
    """AddPartitionsToTxn of brokers: the error at the top, and the rows of each transaction, sorted by partition."""
    asked = [
        {
            **{"transactional_id": transactional_id, "verify_only": verify_only, **identity.fields},
            "topics": [{"name": name, "partitions": indexes} for name, indexes in names],
        }
        for transactional_id, identity, names in transactions
    ]

    def codes(topic: Any) -> list[tuple[int, int]]:
        return sorted((row.partition_index, row.partition_error_code) for row in topic.results_by_partition)

    answer = wire.ask("AddPartitionsToTxn", version, transactions=asked)
    return answer.error_code, [
        (result.transactional_id, {topic.name: codes(topic) for topic in result.topic_results})
        for result in answer.results_by_transaction
    ]


@pytest.mark.parametrize("verify_only", [True, False])
def test_partitions_that_do_not_exist(wire: Wire, transactional_id: str, topic: str, verify_only: bool) -> None:
    identity = wire.init_ok(transactional_id)
    none, nobody = next_name("none"), next_name("nobody")

    def rows(id: str, *names: tuple[str, list[int]]) -> Any:
        error, (answer,) = add_many(wire, (id, identity, names), verify_only=verify_only)
        return (error, *answer)

    expected = {topic: [(0, NOT_ATTEMPTED)], none: [(0, UNKNOWN)]}
    assert rows(transactional_id, (topic, [0, 0]), (none, [0]), (topic, [0])) == (0, transactional_id, expected)
    for name, index in ((topic, 9), ("__transaction_state", 99)):
        assert rows(transactional_id, (name, [index])) == (0, transactional_id, {name: [(index, UNKNOWN)]})
    assert rows(nobody, (none, [0])) == (0, nobody, {none: [(0, UNKNOWN)]})
    assert wire.describe(transactional_id).state == "Empty"


@pytest.mark.parametrize("verify_only", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_transactions_with_one_id(wire: Wire, transactional_id: str, version: int, verify_only: bool) -> None:
    """Each row has its own identity's code, for the last one's partitions; an error of all has the first one's rows."""
    first, last, none = (next_name("topic") for _ in range(3))
    for name in (first, last):
        wire.create_topic(name, 2)
    identity = wire.init_ok(transactional_id)
    other = next_name("other")
    wire.wait_for_coordinator(other)
    other_identity = wire.init_ok(other)

    def rows(*transactions: tuple[Identity, Names]) -> Any:
        beside = (other, other_identity, ((first, [0]),))
        asked = [(transactional_id, who, names) for who, names in transactions]
        error, answers = add_many(wire, asked[0], beside, *asked[1:], verify_only=verify_only, version=version)
        assert (error, [id for id, _ in answers]) == (0, [asked[0][0], other, *(each[0] for each in asked[1:])])
        return [answer for id, answer in answers if id == transactional_id]

    missing = {last: [(0, NOT_ATTEMPTED)], none: [(0, UNKNOWN)]}
    assert rows((identity, ((first, [0]),)), (identity, ((last, [0]), (none, [0])))) == [missing, missing]
    assert wire.describe(transactional_id).state == "Empty"
    answers = rows((identity, ((none, [0]),)), (identity.bumped(5), ((last, [1]),)))
    if verify_only:
        assert answers == [{last: [(1, Code.TRANSACTION_ABORTABLE)]}, {last: [(1, Code.PRODUCER_FENCED)]}]
        assert wire.describe(transactional_id).state == "Empty"
    else:
        assert answers == [{none: [(0, NONE)]}, {none: [(0, Code.PRODUCER_FENCED)]}]
        assert wire.describe(transactional_id).topics == {last: [1]}


def test_a_transaction_without_partitions(wire: Wire, transactional_id: str) -> None:
    identity = wire.init_ok(transactional_id)
    expected: Any = (0, [(transactional_id, {})])
    assert add_many(wire, (transactional_id, identity, ()), verify_only=True) == expected
    assert wire.describe(transactional_id).state == "Empty"
    assert add_many(wire, (transactional_id, identity, ()), verify_only=False) == expected
    assert (wire.describe(transactional_id).state, wire.describe(transactional_id).topics) == ("Ongoing", {})


# -- markers


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("identity", "coordinator_epoch", "error"),
    [
        (Identity(10**12, -1), 0, FAILED),
        (Identity(-1, 0), 0, FAILED),
        (NO_IDENTITY, 0, FAILED),
        (Identity(10**12, -2), 0, Code.INVALID_PRODUCER_EPOCH),
        (Identity(10**12, 5), -2, Code.TRANSACTION_COORDINATOR_FENCED),
    ],
    ids=str,
)
def test_markers_that_are_not_written(
    wire: Wire, topic: str, identity: Identity, coordinator_epoch: int, error: Code, commit: bool
) -> None:
    assert wire.write_marker(identity, topic, commit=commit, coordinator_epoch=coordinator_epoch) == error
    assert wire.list_offsets(topic) == 0
    assert wire.producers(topic) == (NONE, {})


def test_a_marker_of_no_producer(wire: Wire, topic: str) -> None:
    """It is written, and makes no producer known."""
    assert wire.write_marker(Identity(-2, 0), topic, commit=True) == NONE
    assert wire.list_offsets(topic) == 1
    assert wire.producers(topic) == (NONE, {})


def topics_of(wire: Wire, count: int) -> list[str]:
    names = [next_name("topic") for _ in range(count)]
    for name in names:
        wire.create_topic(name)
    return names


def marker(producer_id: int, *names: str, epoch: int = 0) -> dict[str, Any]:
    return {
        **{"producer_id": producer_id, "producer_epoch": epoch, "transaction_result": True, "coordinator_epoch": 0},
        "topics": [{"name": name, "partition_indexes": [0]} for name in names],
    }


def write(wire: Wire, *markers: Any) -> dict[int, dict[tuple[str, int], int]]:
    """WriteTxnMarkers: the errors of each producer's partitions. Each is answered in one row."""
    answer = wire.ask("WriteTxnMarkers", 1, markers=list(markers))
    rows = {
        each.producer_id: {
            (topic.name, row.partition_index): row.error_code for topic in each.topics for row in topic.partitions
        }
        for each in answer.markers
    }
    assert len(rows) == len(answer.markers)
    assert [len(each.topics) for each in answer.markers] == [len({name for name, _ in row}) for row in rows.values()]
    return rows


def test_markers_of_one_producer(wire: Wire) -> None:
    """Each is written, and they have one row, where the last error of a partition remains."""
    one, other = topics_of(wire, 2)
    first, second = 10**14, 10**14 + 1
    written = write(wire, marker(first, one, other), marker(second, one), marker(first, one, epoch=-2))
    expected = {(one, 0): Code.INVALID_PRODUCER_EPOCH, (other, 0): NONE}
    assert written == {first: expected, second: {(one, 0): NONE}}
    assert wire.list_offsets(one) == 2
    assert wire.list_offsets(other) == 1
    assert write(wire, marker(first, one, epoch=-2), marker(first, one)) == {first: {(one, 0): NONE}}
    assert wire.list_offsets(one) == 3
    # an error of the whole request has the rows of the last one
    refused = write(wire, marker(first, one), marker(first, other), marker(second), marker(-1, one))
    assert refused == {first: {(other, 0): FAILED}, second: {}, -1: {(one, 0): FAILED}}


def test_a_marker_that_cannot_be_built_fails_the_request(wire: Wire) -> None:
    """The markers before it are written by then."""
    topics = topics_of(wire, 3)
    first, second = 10**13, 10**13 + 1
    written = write(wire, marker(first, topics[0]), marker(-1, topics[1]), marker(second, topics[2]))
    assert written == {first: {(topics[0], 0): FAILED}, -1: {(topics[1], 0): FAILED}, second: {(topics[2], 0): FAILED}}
    assert [wire.list_offsets(name) for name in topics] == [1, 0, 0]
    # it is built for partitions that exist
    expected = {second: {(topics[2], 0): NONE}}
    assert write(wire, marker(-1, "none"), marker(second, topics[2])) == {-1: {("none", 0): UNKNOWN}, **expected}
    assert write(wire, marker(-1), marker(second, topics[2])) == expected


# -- isolation levels


@pytest.mark.parametrize("isolation", [2, 7, -1, 127, -128])
def test_isolation_levels_that_do_not_exist(wire: Wire, topic: str, isolation: int) -> None:
    assert wire.produce(None, NO_IDENTITY, topic, -1, transactional=False, version=OLD).error == NONE
    assert wire.fetch(topic, isolation=isolation).error == FAILED
    assert list_offset(wire, topic, isolation) == (FAILED, -1)
    assert list_offset(wire, topic, isolation, EARLIEST) == (FAILED, -1)


def list_offset(wire: Wire, topic: str, isolation: int, timestamp: int = -1) -> tuple[int, int]:
    row = wire._list_offsets(topic, 0, timestamp, isolation, version=5)
    return row.error_code, row.offset


@pytest.mark.parametrize("version", [6, 11])
def test_a_fetch_without_partitions_has_no_isolation_level(wire: Wire, topic: str, version: int) -> None:
    def fetch(*names: str) -> tuple[int, list[int]]:
        topics = [{"topic": name, "partitions": [FROM_THE_BEGINNING]} for name in names]
        answer = wire.ask("Fetch", version, topics=topics, **AT_ONCE | {"isolation_level": 7})
        return answer.error_code or 0, [row.error_code for each in answer.responses for row in each.partitions]

    top = FAILED if version >= 7 else NONE
    assert fetch() == (NONE, [])
    assert fetch("none") == (NONE, [UNKNOWN])
    assert fetch(topic) == (top, [FAILED])
    assert fetch(topic, "none") == (top, [FAILED] * 2)


# -- offsets in transactions


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("has_group", [True, False])
def test_offsets_of_no_partition(
    wire: Wire, transactional_id: str, topic: str, group: str, version: int, has_group: bool
) -> None:
    """Neither the group nor the transaction is checked then."""
    wire.wait_for_coordinator(group, GROUP)
    identity = wire.init_ok(transactional_id)

    def commit(id: str, *names: str, partitions: tuple[int, ...] = ()) -> list[tuple[str, list[int]]]:
        committed = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        rows = [{"partition_index": index, **committed} for index in partitions]
        member: dict[str, Any] = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        answer = wire.ask(
            "TxnOffsetCommit",
            version,
            **{"transactional_id": id, "group_id": group if has_group else "", **identity.fields},
            topics=[{"name": name, "partitions": rows} for name in names],
            **(member if version >= 3 else {}),
        )
        return [(each.name, [row.error_code for row in each.partitions]) for each in answer.topics]

    for id in (transactional_id, "nobody", ""):
        assert commit(id) == []
        assert commit(id, topic) == []
        assert commit(id, "none") == [("none", [])]
        assert commit(id, "none", partitions=(0,)) == [("none", [UNKNOWN])]
        assert commit(id, topic, partitions=(9,)) == [(topic, [UNKNOWN])]
    if not has_group:
        assert commit(transactional_id, topic, partitions=(0,)) == [(topic, [Code.INVALID_GROUP_ID])]
    assert wire.describe(transactional_id).state == "Empty"


# -- records that are deleted under an open transaction


def delete(wire: Wire, topic: str, before_offset: int) -> None:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": before_offset}]}]
    answer = wire.ask("DeleteRecords", 2, topics=topics, timeout_ms=10_000)
    assert answer.topics[0].partitions[0].error_code == 0, answer


@pytest.mark.parametrize("before_offset", [1, 4, 5, 7])
def test_last_stable_offset_after_a_deletion_into_a_transaction(
    broker: Broker, wire: Wire, transactional_id: str, topic: str, before_offset: int
) -> None:
    """From 4.0 on it is the start of the batch with the log start, which can be before the log."""
    identity = wire.init_ok(transactional_id)
    assert wire.add(transactional_id, identity, (topic, 0)) == [NONE]
    for sequence in (0, 4):
        batch = record_batch([b"v"] * 4, identity, sequence, transactional=True)
        assert wire.produce_bytes(transactional_id, topic, batch, version=OLD).error == NONE
    delete(wire, topic, before_offset)
    assert wire.list_offsets(topic, EARLIEST) == before_offset
    stable = before_offset if "3.9" in broker.name else before_offset // 4 * 4
    assert wire.list_offsets(topic, isolation=READ_COMMITTED) == stable
    read = wire.fetch(topic, before_offset, isolation=READ_COMMITTED)
    assert (read.last_stable_offset, read.batches) == (stable, ())
    assert wire.end_settled(transactional_id, identity, commit=False, version=4).error == NONE
    assert wire.list_offsets(topic, isolation=READ_COMMITTED) == 9
