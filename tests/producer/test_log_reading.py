"""The log's proof about a prepared transaction, and its records, read from the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import (
    Acl,
    AclOperation,
    BrokerConfig,
    Emulator,
    Fault,
    PartitionError,
    PausePoint,
    Profile,
    ResourceType,
)
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.client.log import reader
from dualwrite.client.log.transaction_end import PartitionEnd
from dualwrite.client.transactions.manifest import PartitionManifest
from dualwrite.errors import (
    AnotherClusterError,
    AuthorizationError,
    IllegalStateError,
    NoMarkerError,
    OutcomeUnknown,
    RecordsGoneError,
)
from dualwrite.guarantee import Tier
from dualwrite.participant import ParticipantProducer
from dualwrite.producer import TopicPartition
from tests.producer.log_cases import SHORTLY_MS, LogCases, LogWorld, prepared, values
from tests.producer.tiers import BOUNDED, LONG_AFTER_MS, TIERS, StillBroker
from tests.support.conditions import until


class World(StillBroker, LogWorld):
    """An emulator whose clock stands still."""

    def __init__(self, emulator: Emulator, face: str = "sync") -> None:
        StillBroker.__init__(self, emulator)
        LogWorld.__init__(self, emulator.bootstrap_servers, face, "orders")

    def id_of(self, name: str) -> str:
        return name

    def time_out_soon(self) -> None:
        """Do nothing: the clock is advanced by as much as it takes."""

    @property
    def cluster_id(self) -> str | None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        return admin.list_topics(timeout=60).cluster_id


@contextmanager
def world_of(config: BrokerConfig | None = None, face: str = "sync", **settings: Any) -> Iterator[World]:
    topics = {"orders": 2, "inputs": 1}
    with Emulator(topics=topics, config=config, clock=VirtualClock(), **settings) as emulator:
        world = World(emulator, face)
        yield world
        world.close()


@pytest.fixture
def world() -> Iterator[World]:
    """A broker of tier 3, on which a prepared transaction has a timeout."""
    with world_of(TIERS[Tier.BOUNDED]) as made:
        yield made


def on(*tiers: Tier) -> list[Any]:
    """Return the parameters of brokers: the first tier with the producer for threads, the last with the other."""
    both = [("sync", tiers[0]), ("async", tiers[-1])]
    return [pytest.param(each, id=f"{each[0]} {each[1].name}") for each in both]


@pytest.fixture
def brief_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a topic count as deleted as soon as a broker says that it does not exist."""
    monkeypatch.setattr(reader, "UNKNOWN_FOR_S", 0.0)


@pytest.fixture(params=on(*Tier))
def broker(request: pytest.FixtureRequest, brief_absence: None) -> Iterator[World]:
    face, tier = request.param
    with world_of(TIERS[tier], face, nodes=3 if face == "async" else 1) as made:
        yield made


@pytest.fixture(params=on(*BOUNDED))
def bounded(request: pytest.FixtureRequest) -> Iterator[World]:
    face, tier = request.param
    with world_of(TIERS[tier], face, nodes=3 if face == "async" else 1) as made:
        yield made


class TestLog(LogCases):
    """The cases that real brokers pass, too."""


# ---- the manifest -------------------------------------------------------------------------------------------------


def test_the_manifest_says_where_the_records_are(world: World) -> None:
    world.commit_others(b"x", b"y")
    producer = world.ready()
    producer.begin()
    for partition, value in ((1, b"a"), (0, b"b"), (0, b"c")):
        producer.send("orders", value, partition=partition)
    manifest = prepared(producer)
    assert manifest.partitions == (PartitionManifest("orders", 0, 3, 4, 2), PartitionManifest("orders", 1, 0, 0, 1))
    assert manifest.has_offsets is False
    assert manifest.cluster_id == world.cluster_id


def test_a_manifest_is_of_one_transaction_only(world: World) -> None:
    producer = world.ready()
    assert producer.manifest is None
    producer.begin()
    producer.send("orders", b"a", partition=1)
    assert producer.manifest is None
    first = prepared(producer)
    producer.complete_transaction(first.prepared_state)
    assert producer.manifest is None
    producer.begin()
    producer.send("orders", b"b", partition=0)
    assert prepared(producer).partitions == (PartitionManifest("orders", 0, 0, 0, 1),)


def test_a_transaction_prepared_by_another_process_has_no_manifest_here(world: World) -> None:
    world.prepared(b"a")
    assert world.recovering().manifest is None


def test_consumed_offsets_are_named_in_the_manifest(world: World) -> None:
    producer = world.ready()
    producer.begin()
    producer.send_offsets({TopicPartition("inputs", 0): 5}, "group")
    manifest = prepared(producer)
    assert manifest.has_offsets is True
    assert manifest.partitions == ()
    end = producer.end_of(manifest)
    assert (end.committed, end.aborted, end.gone) == (False, (), ())


def test_a_duplicate_whose_offset_no_broker_knows_has_no_manifest(world: World) -> None:
    producer = world.ready()
    world.emulator.faults.add(Fault(api="Produce", action=PartitionError(46), topic="orders", client_id="dualwrite"))
    producer.begin()
    producer.send("orders", b"a", partition=0)
    producer.prepare_open()
    assert producer.manifest is None


# ---- how it ended -------------------------------------------------------------------------------------------------


def test_a_marker_that_is_late_is_waited_for(world: World) -> None:
    manifest = world.prepared(b"a")
    held = world.emulator.hold(PausePoint.BEFORE_MARKER)
    world.emulator.advance_clock(LONG_AFTER_MS)
    held.wait_reached()
    reader = world.ready("reader")
    read = world.emulator.faults.add(Fault(api="Fetch", topic="orders", client_id="dualwrite", count=None))
    with ThreadPoolExecutor() as threads:
        end = threads.submit(reader.end_of, manifest)
        read.wait(1)
        held.release()
        assert end.result(60).aborted == manifest.partitions


@pytest.mark.usefixtures("brief_watch")
def test_where_no_marker_is_to_come_the_log_is_watched_for_a_moment(world: World) -> None:
    manifest = world.prepared(b"a")
    with pytest.raises(NoMarkerError, match=r"orders-0: no marker ends it yet, up to offset 1\..*KAFKA-20734") as told:
        world.recovering().end_of(manifest, LONG_AFTER_MS, is_over=True)
    assert told.value.partitions == (("orders", 0),)
    assert "find-hanging --topic orders --max-transaction-timeout 0` shows it" in str(told.value)


@pytest.mark.usefixtures("brief_watch")
def test_the_wait_begins_when_each_log_was_read_to_its_end(world: World) -> None:
    """A leader without a response yet gets all the time there is, even if the others' logs lack a marker."""
    producer = world.ready()
    producer.begin()
    for partition in (0, 1):
        producer.send("orders", b"a", partition=partition)
    manifest = prepared(producer)
    fetches = Fault(api="Fetch", action=PartitionError(6), topic="orders", partition=1, client_id="dualwrite", count=6)
    fault = world.emulator.faults.add(fetches)
    with pytest.raises(NoMarkerError) as told:
        world.recovering().end_of(manifest, LONG_AFTER_MS, is_over=True)
    assert told.value.partitions == (("orders", 0), ("orders", 1))
    assert fault.hits == 6


def test_partitions_may_differ(world: World) -> None:
    producer = world.ready()
    producer.begin()
    producer.send("orders", b"a", partition=0)
    producer.send("orders", b"b", partition=1)
    manifest = prepared(producer)
    with TransactionAdmin(bootstrap_servers=world.emulator.bootstrap_servers) as admin:
        (seen,) = admin.describe_producers([TopicPartition("orders", 1)])[TopicPartition("orders", 1)]
        admin.abort_transaction(TopicPartition("orders", 1), start_offset=seen.current_transaction_start_offset)
    producer.complete_transaction(manifest.prepared_state)
    world.settle()
    end = producer.end_of(manifest)
    assert list(end.by_partition.values()) == [PartitionEnd.COMMITTED, PartitionEnd.ABORTED]
    assert end.aborted == manifest.partitions[1:]
    assert not end.committed
    assert values(producer.records_of(manifest, end.aborted)) == [b"b"]


def test_an_abort_between_two_batches_tears_a_partition(world: World) -> None:
    """An operator aborts while the transaction is being written; the records after that are committed."""
    producer = world.ready()
    producer.begin()
    for value in (b"a", b"b"):
        producer.send("orders", value, partition=0)
    producer.flush()
    with TransactionAdmin(bootstrap_servers=world.emulator.bootstrap_servers) as admin:
        admin.abort_transaction(TopicPartition("orders", 0), start_offset=0)
    for value in (b"c", b"d", b"e"):
        producer.send("orders", value, partition=0)
    manifest = prepared(producer)
    producer.complete_transaction(manifest.prepared_state)
    world.settle()
    end = producer.end_of(manifest)
    assert [(part[2:], found) for part, found in end.by_partition.items()] == [
        ((0, 1, 2), PartitionEnd.ABORTED),
        ((3, 5, 3), PartitionEnd.COMMITTED),
    ]
    assert values(producer.records_of(manifest, end.aborted)) == [b"a", b"b"]
    assert (end.committed, end.is_visible) == (False, True)


# ---- nothing is left to tell it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["Metadata", "Fetch"])
def test_a_topic_that_a_broker_does_not_know_yet(world: World, api: str) -> None:
    """Such as one that has just started, or is cut off from the controller."""
    manifest = world.prepared(b"a")
    world.abort_by_operator()
    producer = world.recovering()
    fault = Fault(api=api, action=PartitionError(3), topic="orders", client_id="dualwrite", count=3)
    added = world.emulator.faults.add(fault)
    assert producer.end_of(manifest).aborted == manifest.partitions
    assert added.hits == 3


def test_a_topic_deleted_and_created_anew(world: World) -> None:
    manifest = world.prepared(b"a", b"b")
    world.abort_by_operator()
    world.delete_topic()
    world.emulator.create_topic("orders", 2)
    producer = world.recovering()
    assert producer.end_of(manifest).gone == manifest.partitions  # the offsets do not exist
    world.commit_others(*b"vwxyz".split(), b"more", b"than", b"before")
    assert producer.end_of(manifest).gone == manifest.partitions  # the records there are of another producer
    with pytest.raises(RecordsGoneError):
        producer.records_of(manifest, manifest.partitions)


@pytest.mark.usefixtures("brief_absence")
def test_a_topic_with_fewer_partitions(world: World) -> None:
    manifest = world.prepared(b"a", partition=1)
    world.abort_by_operator()
    world.delete_topic()
    world.emulator.create_topic("orders", 1)
    assert world.recovering().end_of(manifest).gone == manifest.partitions


def test_compaction() -> None:
    with world_of(TIERS[Tier.BOUNDED]) as world:
        world.emulator.set_config(
            {
                "cleanup.policy": "compact",
                "message.timestamp.type": "LogAppendTime",
                "segment.bytes": "1048576",
                "segment.ms": "1000",
                "min.cleanable.dirty.ratio": "0",
            },
            topic="orders",
        )
        committed = world.prepared(b"a", b"b", key=b"k")
        world.commit(committed.prepared_state)
        aborted = world.prepared(b"c", b"d", key=b"k")
        world.abort_by_operator()
        for value in (b"v", b"w"):
            world.emulator.advance_clock(10_000)
            world.commit_others(value, key=b"k")
        producer = world.recovering()
        until(lambda: cleaned(world))
        assert producer.end_of(committed).gone == committed.partitions
        with pytest.raises(RecordsGoneError):
            producer.records_of(aborted, aborted.partitions)


def cleaned(world: World) -> bool:
    """Let the cleaner run, and return whether it has removed the aborted records, and those with later values."""
    world.emulator.advance_clock(30_000)
    left = {record.value for record in world.emulator.records("orders", 0, read_committed=False)}
    return left.isdisjoint({b"a", b"b", b"c", b"d"})


# ---- many, and other things in the way ----------------------------------------------------------------------------


def test_a_marker_far_behind_the_records(world: World) -> None:
    other = world.ready("first")
    other.begin()
    other.send("orders", b"open", partition=0)
    other.flush()
    manifest = world.prepared(b"a")
    producer = world.ready("others", batch_size=100_000)
    producer.begin()
    for _ in range(40):
        producer.send("orders", b"." * 90_000, partition=0)
    producer.commit_transaction()
    world.abort_by_operator()
    assert world.ready("reader").end_of(manifest).aborted == manifest.partitions


def test_leaders_that_move() -> None:
    with world_of(TIERS[Tier.BOUNDED], nodes=2) as world:
        manifest = world.prepared(b"a")
        world.abort_by_operator()
        producer = world.ready("reader")
        assert producer.end_of(manifest).aborted == manifest.partitions
        world.emulator.move_leader("orders", 0, 1 - world.emulator.log("orders").leader_id)
        fault = world.emulator.faults.add(
            Fault(api="Fetch", action=PartitionError(6), topic="orders", client_id="dualwrite", count=2)
        )
        assert producer.end_of(manifest).aborted == manifest.partitions
        assert fault.hits == 2


def test_without_a_broker_nothing_is_known() -> None:
    with world_of(TIERS[Tier.BOUNDED], nodes=2) as world:
        manifest = world.prepared(b"a")
        producer = world.ready("reader")
        world.emulator.faults.add(
            Fault(api="Fetch", action=PartitionError(6), topic="orders", client_id="dualwrite", count=None)
        )
        with pytest.raises(OutcomeUnknown, match=r"NOT_LEADER.*Nothing was changed; repeat the call"):
            producer.end_of(manifest, SHORTLY_MS)


def test_another_cluster(world: World) -> None:
    manifest = world.prepared(b"a")
    with world_of(TIERS[Tier.BOUNDED]) as elsewhere:
        producer = elsewhere.ready()
        with pytest.raises(AnotherClusterError, match="nor a topic was changed: connect to the cluster") as told:
            producer.end_of(manifest)
        assert told.value.prepared_in == manifest.cluster_id
        assert told.value.found == elsewhere.cluster_id
        with pytest.raises(AnotherClusterError):
            producer.records_of(manifest, manifest.partitions)
        assert producer.cluster_id() == elsewhere.cluster_id


def test_reading_needs_the_right_to_read() -> None:
    config = BrokerConfig(
        profile=Profile.KAFKA_4_3,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        allow_everyone_if_no_acl_found=True,
    )
    with world_of(config) as world:
        manifest = world.prepared(b"a")
        for operation in (AclOperation.WRITE, AclOperation.DESCRIBE):
            world.emulator.add_acls(Acl.allow("User:ANONYMOUS", operation, ResourceType.TOPIC, "orders"))
        producer = world.ready("reader")
        with pytest.raises(AuthorizationError, match="READ on the topic 'orders', to prove how a prepared"):
            producer.end_of(manifest)
        with pytest.raises(AuthorizationError, match="READ on the topic 'orders'"):
            producer.records_of(manifest, manifest.partitions)


# ---- records, byte for byte ---------------------------------------------------------------------------------------


def test_log_append_time_is_read_from_the_broker(world: World) -> None:
    world.emulator.set_config({"message.timestamp.type": "LogAppendTime"}, topic="orders")
    manifest = world.prepared(b"a", timestamp_ms=1)
    world.abort_by_operator()
    (record,) = world.recovering().records_of(manifest, manifest.partitions)
    (seen,) = world.emulator.records("orders", 0, read_committed=False)
    assert record.timestamp_ms == seen.timestamp > 1


# ---- taking over by the log's proof -------------------------------------------------------------------------------


def test_a_later_open_transaction_is_aborted(bounded: World) -> None:
    manifest = bounded.prepared(b"a")
    bounded.abort_by_operator()
    left_open = bounded.prepared(b"open")
    producer = bounded.recovering()
    assert not producer.memory.knows(manifest.prepared_state)
    assert producer.memory.knows(left_open.prepared_state)
    producer.complete_before_fencing(manifest.prepared_state, is_over=True)
    producer.fence_others()
    bounded.settle()
    assert producer.end_of(left_open).aborted == left_open.partitions


@pytest.mark.parametrize("tier", Tier, ids=lambda tier: tier.name)
def test_an_open_stored_transaction_is_committed_although_declared_over(tier: Tier) -> None:
    with world_of(TIERS[tier]) as world:
        manifest = world.prepared(b"a")
        producer = world.recovering()
        producer.complete_before_fencing(manifest.prepared_state, is_over=True)
        producer.fence_others()
        world.settle()
        assert producer.end_of(manifest).committed


def test_a_commit_is_known_until_the_id_is_taken_over(bounded: World) -> None:
    owner = bounded.ready()
    owner.begin()
    owner.send("orders", b"a", partition=0)
    manifest = prepared(owner)
    owner.complete_transaction(manifest.prepared_state)
    bounded.settle()
    assert bounded.recovering().memory.knows(manifest.prepared_state)
    bounded.ready()
    later = bounded.recovering()
    assert not later.memory.knows(manifest.prepared_state)
    assert later.end_of(manifest).committed


def test_a_producer_without_transactions_has_no_manifest(world: World) -> None:
    with (
        ParticipantProducer(bootstrap_servers=world.emulator.bootstrap_servers) as plain,
        pytest.raises(IllegalStateError),
    ):
        plain.manifest  # noqa: B018
