"""Every call, on the emulator in each profile and on real Apache Kafkas, with the same results (KIP-664, KIP-939)."""

from __future__ import annotations

import asyncio

import pytest

from dualwrite.admin import ActiveProducer, TopicPartition, TransactionAdmin
from dualwrite.client.admin.codec import write_marker
from dualwrite.client.admin.driver import AdminTransport
from dualwrite.client.messages import ANY_NODE
from dualwrite.config import AdminConfig
from dualwrite.errors import AdminError, PreparedTransactionLost, TransactionalIdNotFoundError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer
from tests.admin.site import Site
from tests.interop.wire import READ_COMMITTED, Code, Identity

LONG_AGO_MS = 1_600_000_000_000


def test_list_and_describe_by_state(site: Site, admin: TransactionAdmin) -> None:
    topic = site.new_topic()
    ids = site.ids_by_state(topic)
    listed = {row.transactional_id: row for row in admin.list_transactions()}
    described = admin.describe_transactions([*ids.values(), "nobody-has-this-id"])
    assert described.pop("nobody-has-this-id") is None
    assert list(described) == list(ids.values())
    for state, transactional_id in ids.items():
        seen = described[transactional_id]
        assert seen is not None
        assert (listed[transactional_id].state, seen.state) == (state, state)
        assert listed[transactional_id].producer_id == seen.producer_id
        assert listed[transactional_id].coordinator_id == seen.coordinator_id
        other_eyes = site.wire.describe(transactional_id)
        assert Identity(seen.producer_id, seen.producer_epoch) == other_eyes.identity
        assert (seen.transaction_timeout_ms, seen.has_timeout) == (60_000, True)
        assert (seen.transaction_start_time_ms is not None) == (state != "Empty") == other_eyes.started
        assert seen.topic_partitions == ({TopicPartition(topic, 0)} if state == "Ongoing" else set())
        by_state = {row.transactional_id for row in admin.list_transactions(states=[state])}
        assert by_state & set(ids.values()) == {transactional_id}
        assert admin.list_transactions(producer_ids=[seen.producer_id]) == (listed[transactional_id],)
    assert list(listed) == sorted(listed)


def test_list_long_running_transactions_and_by_pattern(site: Site, admin: TransactionAdmin) -> None:
    """Apache Kafka 3.9 cannot filter by a pattern: the client does it, with the same result."""
    topic, name = site.new_topic(), site.new_id()
    for suffix in ("a", "b", "c.d"):
        site.open(f"{name}-{suffix}", topic)
    site.wire.init_ok(f"{name}-e")
    site.wire.init_ok(f"{name}-\u00e9")

    def listed(pattern: str, states: tuple[str, ...] = ()) -> list[str]:
        rows = admin.list_transactions(transactional_id_pattern=pattern, states=states)
        return [row.transactional_id.removeprefix(f"{name}-") for row in rows]

    assert listed(f"{name}-.") == ["a", "b", "e", "\u00e9"]
    assert listed(f"^{name}-\\w$") == ["a", "b", "e"]  # of ASCII only
    assert listed(f"{name}-[ab]", ("Ongoing",)) == ["a", "b"]
    assert listed(f"{name}-(?:a|c\\.d)") == ["a", "c.d"]
    assert listed(f"{name}-c.?") == []
    assert [row.transactional_id for row in admin.transactions_of_prefix(f"{name}-c.")] == [f"{name}-c.d"]
    assert admin.list_transactions(running_longer_than_ms=3_600_000, states=["Ongoing"]) == ()
    assert f"{name}-a" in {
        row.transactional_id for row in admin.list_transactions(running_longer_than_ms=0, states=["Ongoing"])
    }


def test_describe_producers(site: Site, admin: TransactionAdmin) -> None:
    topic, name = site.new_topic(2), site.new_id()
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    identity = site.open(name, topic)
    described = admin.describe_producers([first, second])
    assert described[second] == ()
    (seen,) = described[first]
    expected = ActiveProducer(identity.producer_id, identity.producer_epoch, 0, seen.last_timestamp_ms, None, 0)
    assert seen == expected
    site.end(name, identity, commit=True)
    (seen,) = admin.describe_producers([first])[first]
    assert seen.current_transaction_start_offset is None
    assert seen.coordinator_epoch is not None
    for missing in (TopicPartition(topic, 7), TopicPartition("no-such-topic", 0)):
        with pytest.raises(AdminError, match=r"UNKNOWN_TOPIC_OR_PARTITION \(3\)"):
            _ = admin.describe_producers([missing])[missing]


def test_hanging_transactions_are_found_and_aborted(site: Site, admin: TransactionAdmin) -> None:
    topic, known, honest = site.new_topic(4), site.new_id(), site.new_id()
    of_nobody, of_known = Identity(987_654_321, 3), site.wire.init_ok(known)
    site.write_unannounced("nobody", of_nobody, topic, 0, timestamp_ms=LONG_AGO_MS)
    site.write_unannounced(known, of_known, topic, 1, timestamp_ms=LONG_AGO_MS)
    site.write_unannounced(known, of_known, topic, 2)  # hangs, and is not old yet
    opened = site.wire.init_ok(honest)
    assert site.wire.add(honest, opened, (topic, 3)) == [Code.NONE]
    site.write_unannounced(honest, opened, topic, 3, timestamp_ms=LONG_AGO_MS)

    found = admin.find_hanging(topic)
    assert [
        (row.topic_partition.partition, row.producer_id, row.producer_epoch, row.start_offset) for row in found
    ] == [
        (0, of_nobody.producer_id, 3, 0),
        (1, of_known.producer_id, of_known.producer_epoch, 0),
    ]
    assert [(row.transactional_id, row.coordinator_epoch) for row in found] == [(None, None), (known, None)]
    assert all(row.last_timestamp_ms == LONG_AGO_MS for row in found)
    of_every_age = admin.find_hanging(topic, max_transaction_timeout_ms=-1)
    assert [row.topic_partition.partition for row in of_every_age] == [0, 1, 2]
    assert admin.find_hanging(topic, 1) == found[1:]
    assert set(found) <= set(admin.find_hanging())

    assert site.wire.list_offsets(topic, isolation=READ_COMMITTED, partition=1) == 0
    admin.abort_transaction(found[1].topic_partition, start_offset=found[1].start_offset)
    assert site.wire.list_offsets(topic, isolation=READ_COMMITTED, partition=1) == 2
    assert site.wire.fetch(topic, isolation=READ_COMMITTED, partition=1).aborted == ((of_known.producer_id, 0),)
    admin.abort_transaction(
        found[0].topic_partition, producer_id=of_nobody.producer_id, producer_epoch=3, coordinator_epoch=-1
    )
    assert site.wire.list_offsets(topic, isolation=READ_COMMITTED, partition=0) == 2
    assert admin.find_hanging(topic) == ()
    site.end(honest, opened, commit=True)


@pytest.mark.parametrize("name", ["kafka_3_9", pytest.param("apache_kafka_3_9", marks=pytest.mark.proof)])
def test_a_late_write_of_a_zombie_hangs_after_the_abort(name: str, request: pytest.FixtureRequest) -> None:
    """With transaction.version 0 and 1 the epoch stays the same after the end (KAFKA-9144, KIP-890)."""
    site: Site = request.getfixturevalue(name)
    topic, transactional_id = site.new_topic(), site.new_id()
    identity = site.open(transactional_id, topic)
    site.end(transactional_id, identity, commit=False)
    site.write_unannounced(transactional_id, identity, topic, sequence=1, timestamp_ms=LONG_AGO_MS)
    with TransactionAdmin(bootstrap_servers=site.bootstrap_servers) as admin:
        (found,) = admin.find_hanging(topic)
        assert (found.transactional_id, found.start_offset) == (transactional_id, 2)
        assert found.coordinator_epoch is not None
        admin.abort_transaction(
            found.topic_partition,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            coordinator_epoch=found.coordinator_epoch,
        )
        assert admin.find_hanging(topic) == ()
    assert site.wire.list_offsets(topic, isolation=READ_COMMITTED) == 4


def test_a_hanging_transaction_is_committed(emulated: Site, admin: TransactionAdmin) -> None:
    """On real brokers: `tests/apache_kafka/test_repair.py`."""
    topic, hanging = emulated.new_topic(), Identity(987_654_323, 3)
    emulated.write_unannounced("nobody", hanging, topic)
    where, prepared = TopicPartition(topic, 0), PreparedTxnState(f"{hanging.producer_id}:{hanging.producer_epoch}")
    for other in (f"{hanging.producer_id}:2", f"{hanging.producer_id}:4", f"{hanging.producer_id + 1}:3"):
        with pytest.raises(AdminError, match="nothing was committed"):
            admin.commit_transaction(where, PreparedTxnState(other))
    assert emulated.wire.list_offsets(topic, isolation=READ_COMMITTED) == 0
    admin.commit_transaction(where, prepared)
    assert emulated.wire.list_offsets(topic, isolation=READ_COMMITTED) == 2
    assert emulated.wire.fetch(topic, isolation=READ_COMMITTED).aborted == ()
    with pytest.raises(AdminError, match=r"nothing open there.*nothing was committed"):
        admin.commit_transaction(where, prepared)


def test_refused_aborts(site: Site, admin: TransactionAdmin) -> None:
    topic, name = site.new_topic(), site.new_id()
    site.wire.init_ok(name)
    identity = site.open(name, topic)
    partition = TopicPartition(topic, 0)
    with pytest.raises(AdminError, match="since offset 1; the open ones start at 0; nothing was aborted"):
        admin.abort_transaction(partition, start_offset=1)
    with pytest.raises(AdminError, match=r"INVALID_PRODUCER_EPOCH \(47\)"):
        admin.abort_transaction(
            partition,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch - 1,
            coordinator_epoch=0,
        )
    assert site.wire.list_offsets(topic, isolation=READ_COMMITTED) == 0
    site.end(name, identity, commit=True)
    assert site.wire.list_offsets(topic, isolation=READ_COMMITTED) == 2


@pytest.mark.proof
async def test_the_marker_of_the_oldest_brokers(apache_kafka_3_9: Site) -> None:
    """Brokers before 2.8 support only WriteTxnMarkers v0; the last release that still supports it stands for them."""
    site, topic = apache_kafka_3_9, apache_kafka_3_9.new_topic()
    site.write_unannounced("nobody", Identity(987_654_322, 0), topic)
    marker = write_marker(
        TopicPartition(topic, 0), producer_id=987_654_322, producer_epoch=0, coordinator_epoch=0, commits=False
    )
    loop = asyncio.get_running_loop()
    transport = AdminTransport(AdminConfig.parse(None, {"bootstrap_servers": site.bootstrap_servers}), loop)
    written = await transport.request(ANY_NODE, marker._replace(versions=(0, 0)), loop.time() + 10)
    assert written == {TopicPartition(topic, 0): (0, True)}
    await transport.close()
    assert site.wire.list_offsets(topic, isolation=READ_COMMITTED) == 2


def test_termination_fences_the_owner_and_lets_readers_go_on(site: Site, admin: TransactionAdmin) -> None:
    topic, name = site.new_topic(), site.new_id()
    identity = site.open(name, topic, timeout_ms=54_321)
    ended = admin.force_terminate_transaction(name)
    assert (ended.found.state, ended.found.producer_epoch) == ("Ongoing", identity.producer_epoch)
    assert site.wire.list_offsets(topic, isolation=READ_COMMITTED) == 2
    assert site.wire.fetch(topic, isolation=READ_COMMITTED).aborted == ((identity.producer_id, 0),)
    refused = site.wire.end(name, identity, commit=True, version=5 if site.has_tv2 else 4).error
    assert refused is site.commit_after_abort
    described = admin.describe_transaction(name)
    assert (described.state, described.transaction_timeout_ms) == ("CompleteAbort", 54_321)  # which shows the abort
    assert (described.producer_id, described.producer_epoch) == (ended.producer_id, ended.producer_epoch)


def test_termination_leaves_an_id_without_an_open_transaction_alone(site: Site, admin: TransactionAdmin) -> None:
    topic, name = site.new_topic(), site.new_id()
    identity = site.open(name, topic, timeout_ms=54_321)
    first = admin.force_terminate_transaction(name)
    again = admin.force_terminate_transaction(name)
    assert (again.found.state, again.producer_id, again.producer_epoch) == (
        "CompleteAbort",
        first.producer_id,
        first.producer_epoch,
    )
    assert again.producer_id == identity.producer_id


def test_termination_invents_no_transactional_id(site: Site, admin: TransactionAdmin) -> None:
    name = site.new_id()
    with pytest.raises(TransactionalIdNotFoundError, match="never used, or it expired"):
        admin.force_terminate_transaction(name)
    with pytest.raises(TransactionalIdNotFoundError):
        admin.describe_transaction(name)
    assert admin.transactions_of_prefix(name) == ()


def test_a_cluster_is_described_with_its_features(site: Site, admin: TransactionAdmin) -> None:
    cluster = admin.describe_cluster()
    assert [f"{broker.host}:{broker.port}" for broker in cluster.brokers] == [site.bootstrap_servers]
    (broker_id,) = [broker.broker_id for broker in cluster.brokers]
    assert cluster.controller_id == broker_id
    assert cluster.cluster_id
    (features,) = admin.describe_features().values()
    offered = {api.api_key: (api.min_version, api.max_version) for api in site.wire.api_versions().api_keys}
    assert dict(features.api_versions) == offered
    assert features.finalized_features.get("transaction.version", (0, 0))[1] == (2 if site.has_tv2 else 0)
    assert features.finalized_features_epoch >= 0
    assert features.broker_id == broker_id


def test_termination_of_a_prepared_transaction(kip_939: Site, admin: TransactionAdmin) -> None:
    _terminate_prepared(kip_939, admin)


def test_termination_of_a_prepared_transaction_of_a_real_broker(apache_kafka: Site) -> None:
    """Releases cannot recover prepared transactions, but have them, without a timeout."""
    with TransactionAdmin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        name, topic = apache_kafka.new_id(), apache_kafka.new_topic()
        identity = apache_kafka.wire.init_ok(name, version=6, enable_2pc=True)
        apache_kafka.write(name, identity, topic)
        ended = admin.force_terminate_transaction(name)
        assert not ended.found.has_timeout
        assert admin.describe_transaction(name).state == "CompleteAbort"
        assert apache_kafka.wire.list_offsets(topic, isolation=READ_COMMITTED) == 2
        refused = apache_kafka.wire.end(name, identity, commit=True).error
        assert refused is apache_kafka.commit_after_abort


def _terminate_prepared(site: Site, admin: TransactionAdmin) -> None:
    topic, name = site.new_topic(), site.new_id()
    servers = site.bootstrap_servers
    with Producer(bootstrap_servers=servers, transactional_id=name, transaction_two_phase_commit_enable=True) as owner:
        owner.init_transactions()
        owner.begin_transaction()
        owner.send(topic, value=b"1", partition=0)
        state = owner.prepare_transaction()
        assert admin.find_hanging(topic, max_transaction_timeout_ms=-1) == ()
        ended = admin.force_terminate_transaction(name)
        assert (ended.found.state, ended.found.has_timeout) == ("Ongoing", False)
        assert site.wire.list_offsets(topic, isolation=READ_COMMITTED) == 2
        with pytest.raises(PreparedTransactionLost):
            owner.complete_transaction(state)
