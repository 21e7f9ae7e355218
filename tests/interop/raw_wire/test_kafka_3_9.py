"""The emulator's profile kafka-3.9 and Apache Kafka 3.9.1: the same requests and responses (KIP-98, KIP-890 part 1).

Old clients only: Produce up to v11, EndTxn up to v4, partitions added by the client.
"""

from __future__ import annotations

import struct

import pytest

from dualwrite.broker_emulator.transactions.transaction_log import partition_for
from tests.emulator.api.group_requests import join_fields
from tests.emulator.api.offset_requests import commit as commit_offset
from tests.emulator.api.raw_client import RawClient, milliseconds
from tests.interop.conftest import Broker
from tests.interop.wire import (
    GROUP,
    NO_IDENTITY,
    Code,
    ConnectionClosedError,
    End,
    Identity,
    Init,
    Produced,
    Wire,
    wait_for,
)

COMMIT, ABORT = True, False
NONE = Code.NONE


@pytest.fixture(scope="module", params=["emulated_kafka_3_9", "apache_kafka_3_9"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Both of them, in place of the brokers of the other tests."""
    chosen: Broker = request.getfixturevalue(request.param)
    return chosen


def produce(wire: Wire, transactional_id: str, identity: Identity, topic: str, sequence: int) -> Produced:
    return wire.produce(transactional_id, identity, topic, sequence, version=11)


def open_transaction(wire: Wire, transactional_id: str, topic: str, *, timeout_ms: int = 60_000) -> Identity:
    identity = wire.init_ok(transactional_id, timeout_ms=timeout_ms)
    assert wire.add(transactional_id, identity, (topic, 0)) == [NONE]
    assert produce(wire, transactional_id, identity, topic, 0).error == NONE
    return identity


@pytest.mark.parametrize(("api", "version"), [(26, 5), (22, 6), (28, 5), (0, 12)])
def test_later_versions_close_the_connection(broker: Broker, api: int, version: int) -> None:
    with Wire(broker.bootstrap_servers) as wire, pytest.raises(ConnectionClosedError):
        wire.exchange(struct.pack(">hhih4s", api, version, 5, 4, b"wire") + bytes(60))


@pytest.mark.parametrize(("version", "refused"), [(10, Code.INVALID_TXN_STATE), (11, Code.TRANSACTION_ABORTABLE)])
def test_verification(wire: Wire, transactional_id: str, topic: str, version: int, refused: Code) -> None:
    wire.init_ok(transactional_id)
    identity = wire.init_ok(transactional_id)
    write = wire.produce
    assert write(transactional_id, identity, topic, 0, version=version) == Produced(refused, -1)
    for by in (-1, 1):
        fenced = write(transactional_id, identity.bumped(by), topic, 0, version=version)
        assert fenced.error == Code.INVALID_PRODUCER_EPOCH
    assert write("nobody", identity, topic, 0, version=version).error == Code.INVALID_PRODUCER_ID_MAPPING
    assert wire.add(transactional_id, identity, (topic, 0)) == [NONE]
    assert write(transactional_id, identity, topic, 0, version=version) == Produced(NONE, 0)


def test_start_time_of_the_last_transaction_is_kept(wire: Wire, transactional_id: str, topic: str) -> None:
    """Later releases forget it when the id is initialised again."""
    wire.init_ok(transactional_id)
    assert not wire.describe(transactional_id).started
    identity = open_transaction(wire, transactional_id, topic)
    assert wire.end_settled(transactional_id, identity, commit=True, version=4).error == NONE
    wire.init_ok(transactional_id)
    described = wire.describe(transactional_id)
    assert (described.state, described.started) == ("Empty", True)


def test_a_generation_of_an_unknown_group_in_a_transaction(
    wire: Wire, transactional_id: str, topic: str, group: str
) -> None:
    """It is 22 later, and 69 from TxnOffsetCommit v6 on."""
    wire.wait_for_coordinator(group, GROUP)
    identity = wire.init_ok(transactional_id)
    assert wire.add_offsets(transactional_id, identity, group) == NONE

    def commit(generation: int, member: str) -> Code | int:
        return wire.txn_offset_commit(
            transactional_id, identity, group, topic, 5, version=4, generation=generation, member=member
        )

    assert commit(3, "m") == Code.UNKNOWN_MEMBER_ID
    assert commit(3, "") == Code.UNKNOWN_MEMBER_ID
    assert commit(-1, "m") == NONE


def test_lowest_sequence_seen(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert produce(wire, transactional_id, identity, topic, 0).error == Code.TRANSACTION_ABORTABLE
    assert wire.add(transactional_id, identity, (topic, 0)) == [NONE]
    assert produce(wire, transactional_id, identity, topic, 1).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(wire, transactional_id, identity, topic, 0).error == NONE
    assert produce(wire, transactional_id, identity, topic, 1).error == NONE


def test_the_coordinator_checks_every_epoch(wire: Wire, transactional_id: str, topic: str) -> None:
    """Later releases see an old epoch by themselves (KAFKA-19690); an open transaction is open for each of them."""
    zombie = wire.init_ok(transactional_id)
    identity = open_transaction(wire, transactional_id, topic)
    assert produce(wire, "nobody", zombie, topic, 1).error == Code.INVALID_PRODUCER_EPOCH
    assert produce(wire, "nobody", identity, topic, 1).error == NONE
    assert wire.end_settled(transactional_id, identity, commit=ABORT, version=4) == End(NONE)
    assert produce(wire, "nobody", zombie, topic, 0).error == Code.INVALID_PRODUCER_ID_MAPPING
    assert produce(wire, transactional_id, zombie, topic, 0).error == Code.INVALID_PRODUCER_EPOCH


def test_epoch_from_the_future_while_a_transaction_is_open(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = open_transaction(wire, transactional_id, topic)
    future = identity.bumped()
    assert produce(wire, transactional_id, future, topic, 1).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(wire, transactional_id, future, topic, 0) == Produced(NONE, 1)
    assert produce(wire, transactional_id, identity, topic, 1).error == Code.INVALID_PRODUCER_EPOCH
    assert wire.init(transactional_id) == Init(Code.CONCURRENT_TRANSACTIONS, NO_IDENTITY)
    assert wire.wait_until_settled(transactional_id).identity == future


def test_initialisation_of_an_open_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = open_transaction(wire, transactional_id, topic)
    assert wire.init(transactional_id, identity) == Init(Code.CONCURRENT_TRANSACTIONS, NO_IDENTITY)
    assert wire.wait_until_settled(transactional_id).identity == identity.bumped()
    # the fence is not remembered as the client's own bump
    assert wire.init(transactional_id, identity) == Init(Code.PRODUCER_FENCED, NO_IDENTITY)
    assert wire.init(transactional_id) == Init(NONE, identity.bumped(2))


def test_epoch_limit(broker: Broker, wire: Wire, transactional_id: str, topic: str) -> None:
    last = broker.exhaust_epochs(wire, transactional_id, timeout_ms=1)
    assert wire.init(transactional_id, last.bumped(-1)) == Init(Code.UNKNOWN_SERVER_ERROR, NO_IDENTITY)
    assert wire.add(transactional_id, last, (topic, 0)) == [NONE]
    aborted = wait_for(lambda: wire.describe(transactional_id), lambda described: described.state == "CompleteAbort")
    assert aborted.identity == last.bumped()
    answer = wire.init(transactional_id)
    assert (answer.error, answer.identity.producer_epoch) == (NONE, 0)
    assert answer.identity.producer_id != last.producer_id


@pytest.mark.parametrize("version", range(5))
def test_offsets(wire: Wire, transactional_id: str, topic: str, group: str, version: int) -> None:
    wire.wait_for_coordinator(group, GROUP)
    identity = wire.init_ok(transactional_id)
    refused = Code.TRANSACTION_ABORTABLE if version == 4 else Code.INVALID_TXN_STATE
    assert wire.txn_offset_commit(transactional_id, identity, group, topic, 7, version=version) == refused
    assert wire.add_offsets(transactional_id, identity, group) == NONE
    assert wire.txn_offset_commit(transactional_id, identity, group, topic, 7, version=version) == NONE
    assert wire.offset_fetch(group, topic, require_stable=True)[0] == Code.UNSTABLE_OFFSET_COMMIT
    assert wire.end_settled(transactional_id, identity, commit=COMMIT, version=4) == End(NONE)
    assert wire.offset_fetch(group, topic, require_stable=True) == (NONE, 7)


def test_state_records(wire: Wire, transactional_id: str, topic: str) -> None:
    starts = [wire.list_offsets("__transaction_state", partition=index) for index in range(5)]
    identity = open_transaction(wire, transactional_id, topic)
    assert wire.end_settled(transactional_id, identity, commit=COMMIT, version=4) == End(NONE)
    heads = [
        struct.unpack_from(">hqhib", value)
        for index, start_offset in enumerate(starts)
        for batch in wire.fetch("__transaction_state", start_offset, partition=index).batches
        for value in batch.values
        if value is not None
    ]
    assert heads == [(0, *identity_fields(identity), 60_000, state) for state in (0, 1, 2, 4)]


def test_a_group_without_a_generation_has_no_record(broker: Broker, wire: Wire, topic: str, group: str) -> None:
    """Its offsets are written, and deleted; the coordinator of Kafka 4 writes the group as well."""
    wire.wait_for_coordinator(group, GROUP)
    partition = partition_for(group, 5)
    start_offset = wire.list_offsets("__consumer_offsets", partition=partition)
    with RawClient(broker.bootstrap_servers) as client:
        joined = client.call("join_group", 9, **join_fields(9, group))
        assert (joined.error_code, joined.generation_id) == (79, -1)
        assert commit_offset(client, group, 1, topic=topic) == 0
        deleted = client.call("delete_groups", 2, groups_names=(group,))
        assert [row.error_code for row in deleted.results] == [0]
    batches = wire.fetch("__consumer_offsets", start_offset, partition=partition).batches
    written = [
        (key is not None and key[1], value is not None)
        for b in batches
        for key, value in zip(b.keys, b.values, strict=True)
    ]
    assert written == [(1, True), (1, False)]


def test_a_deleted_topic_deletes_empty_groups(broker: Broker, wire: Wire, topic: str, group: str) -> None:
    """Groups without offsets, of any topic; the coordinator of Kafka 4 keeps them."""
    wire.wait_for_coordinator(group, GROUP)
    kept = f"{group}-kept"
    wire.wait_for_coordinator(kept, GROUP)
    with RawClient(broker.bootstrap_servers) as client:
        assert client.call("join_group", 9, **join_fields(9, group)).error_code == 79
        assert commit_offset(client, kept, 1, topic=topic) == 0
        assert group_states(client, group, kept) == ["Empty", "Empty"]
        wire.create_topic(f"{topic}-deleted")
        names = (f"{topic}-deleted",)
        deleted = client.call("delete_topics", 5, topic_names=names, timeout=milliseconds(20_000))
        assert [row.error_code for row in deleted.responses] == [0]
        states = wait_for(lambda: group_states(client, group, kept), lambda states: states[0] != "Empty")
    assert states == ["Dead", "Empty"]


def group_states(client: RawClient, *groups: str) -> list[str]:
    described = client.call("describe_groups", 5, groups=groups, include_authorized_operations=False)
    return [group.group_state for group in described.groups]


def identity_fields(identity: Identity) -> tuple[int, int]:
    return identity.producer_id, identity.producer_epoch
