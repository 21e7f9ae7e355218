"""Several brokers: coordinators are spread, move, load and go away; a result is complete, or says where it is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, cycle, repeat
from typing import Any

import pytest

from dualwrite.admin import TopicPartition, TransactionAdmin
from dualwrite.broker_emulator import DropReply, Emulator, Error, Fault, Hold, PausePoint, Profile
from dualwrite.client.admin.codec import Call
from dualwrite.client.admin.driver import AdminTransport, NoResponseError
from dualwrite.client.wire.cluster import Lease
from dualwrite.client.wire.pool import NodeState
from dualwrite.errors import (
    Api,
    AuthorizationError,
    IncompleteAnswerError,
    KafkaTimeoutError,
    UnsupportedByBrokerError,
)
from dualwrite.producer import Producer
from tests.admin.conftest import settings_of
from tests.admin.site import Site

IDS = [f"worker-{number}" for number in range(8)]
SOON_MS = 300
AMPLE_MS = 1_500
"""Enough for the responses of the other brokers on a busy machine."""
LONG_AGO = {"max_transaction_timeout_ms": -1}


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(config=settings_of(Profile.KIP_939), nodes=3, topics={"orders": 3}) as running:
        for transactional_id in IDS:
            with Producer(bootstrap_servers=running.bootstrap_servers, transactional_id=transactional_id) as producer:
                producer.init_transactions()
        yield running


@pytest.fixture
def admin(emulator: Emulator) -> Iterator[TransactionAdmin]:
    settings: dict[str, Any] = {"retry_backoff_ms": 5, "reconnect_backoff_ms": 5, "default_api_timeout_ms": 10_000}
    with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers, **settings) as made:
        yield made


def open_transaction(emulator: Emulator, transactional_id: str, partition: int = 0) -> Producer:
    producer = Producer(bootstrap_servers=emulator.bootstrap_servers, transactional_id=transactional_id)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", value=b"1", partition=partition)
    producer.flush()
    return producer


def names(listed: tuple[object, ...]) -> list[str]:
    return [row.transactional_id for row in listed]  # type: ignore[attr-defined]


def test_ids_of_every_coordinator(emulator: Emulator, admin: TransactionAdmin) -> None:
    listed = admin.list_transactions()
    assert names(listed) == IDS
    assert {row.transactional_id: row.coordinator_id for row in listed} == {
        name: emulator.coordinator(transactional_id=name) for name in IDS
    }
    assert len({row.coordinator_id for row in listed}) == 3
    described = admin.describe_transactions(IDS)
    assert {row.coordinator_id for row in described.values() if row} == {0, 1, 2}
    assert sorted(admin.describe_features()) == [0, 1, 2]
    assert len(admin.describe_cluster().brokers) == 3


def test_a_coordinator_that_moves_during_the_listing(emulator: Emulator, admin: TransactionAdmin) -> None:
    """The new coordinator responded before it had the id, and the old one responds when it no longer has it."""
    moved = IDS[0]
    before = emulator.coordinator(transactional_id=moved)
    after = (before + 1) % 3
    assert names(admin.list_transactions()) == IDS
    held = emulator.faults.add(Fault(api="ListTransactions", node=before, action=Hold()))
    answered = emulator.faults.add(Fault(api="ListTransactions", node=after))
    answers: list[list[str]] = []
    caller = threading.Thread(target=lambda: answers.append(names(admin.list_transactions())))
    caller.start()
    held.wait_held(1)
    answered.wait(1)
    emulator.move_coordinator(after, transactional_id=moved)
    held.release()
    caller.join(60)
    assert answers == [IDS]


def test_a_coordinator_that_loads_is_waited_for(emulator: Emulator, admin: TransactionAdmin) -> None:
    name = IDS[0]
    held = emulator.hold(PausePoint.BEFORE_LOAD)
    emulator.move_coordinator((emulator.coordinator(transactional_id=name) + 1) % 3, transactional_id=name)
    held.wait_reached()
    with pytest.raises(KafkaTimeoutError, match=r"COORDINATOR_LOAD_IN_PROGRESS \(14\)"):
        admin.describe_transaction(name, timeout_ms=SOON_MS)
    held.release()
    assert names(admin.list_transactions()) == IDS
    assert admin.describe_transaction(name).coordinator_id == emulator.coordinator(transactional_id=name)


def test_a_listing_is_complete_if_another_broker_takes_over(emulator: Emulator, admin: TransactionAdmin) -> None:
    assert names(admin.list_transactions()) == IDS
    emulator.crash_node(emulator.coordinator(transactional_id=IDS[0]))
    assert names(admin.list_transactions()) == IDS
    assert None not in admin.describe_transactions(IDS).values()
    assert len(admin.describe_features()) == 2


@pytest.mark.parametrize("answered", [1, 2])
def test_a_lost_response_is_requested_again(emulator: Emulator, admin: TransactionAdmin, answered: int) -> None:
    for api in ("Metadata", "ListTransactions", "FindCoordinator", "DescribeTransactions", "DescribeProducers"):
        emulator.faults.add(Fault(api=api, count=answered, action=DropReply()))
    assert names(admin.list_transactions()) == IDS
    assert admin.describe_transaction(IDS[0]).state == "Empty"
    assert admin.describe_producers([TopicPartition("orders", 0)]) == {TopicPartition("orders", 0): ()}


def test_a_broker_that_never_answers_makes_the_answer_incomplete(emulator: Emulator, admin: TransactionAdmin) -> None:
    silent = emulator.coordinator(transactional_id=IDS[0])
    missing = [name for name in IDS if emulator.coordinator(transactional_id=name) == silent]
    assert names(admin.list_transactions()) == IDS
    for api in ("ListTransactions", "DescribeTransactions"):
        emulator.faults.add(Fault(api=api, node=silent, count=None, action=Hold()))
    with pytest.raises(IncompleteAnswerError, match=f"broker {silent}") as listed:
        admin.list_transactions(timeout_ms=AMPLE_MS)
    assert set(listed.value.failures) == {silent}
    assert names(listed.value.partial) == [name for name in IDS if name not in missing]
    with pytest.raises(IncompleteAnswerError, match=f"broker {silent}") as described:
        admin.describe_transactions(IDS, timeout_ms=AMPLE_MS)
    assert sorted(described.value.failures) == missing
    assert sorted(described.value.partial) == [name for name in IDS if name not in missing]


def test_hanging_is_not_decided_without_every_coordinator(emulator: Emulator, admin: TransactionAdmin) -> None:
    """Without the results of a silent coordinator, each of its transactions would look unknown to all coordinators."""
    name = IDS[0]
    silent = emulator.coordinator(transactional_id=name)
    with open_transaction(emulator, name):
        assert admin.find_hanging("orders", **LONG_AGO) == ()
        fault = emulator.faults.add(Fault(api="ListTransactions", node=silent, count=None, action=Error(14)))
        with pytest.raises(IncompleteAnswerError) as caught:
            admin.find_hanging("orders", **LONG_AGO, timeout_ms=AMPLE_MS)
        assert caught.value.partial == ()
        assert set(caught.value.failures) == {silent, TopicPartition("orders", 0)}
        fault.remove()
        assert admin.find_hanging("orders", **LONG_AGO) == ()


def test_a_transaction_that_ends_during_the_search_does_not_hang(emulator: Emulator, admin: TransactionAdmin) -> None:
    name = IDS[0]
    with open_transaction(emulator, name) as producer:
        held = emulator.faults.add(Fault(api="ListTransactions", count=None, action=Hold()))
        found: list[object] = []
        caller = threading.Thread(target=lambda: found.append(admin.find_hanging("orders", **LONG_AGO)))
        caller.start()
        held.wait_held(3)
        producer.commit_transaction()
        held.release()
        caller.join(60)
        assert found == [()]


def test_a_leader_that_moved_is_found(emulator: Emulator, admin: TransactionAdmin) -> None:
    partition = TopicPartition("orders", 1)
    with open_transaction(emulator, IDS[0], 1) as producer:
        assert len(admin.describe_producers([partition])[partition]) == 1
        leader = emulator.log("orders", 1).leader_id
        refused = emulator.faults.add(Fault(api="DescribeProducers", node=leader, action=Error(6)))
        assert len(admin.describe_producers([partition])[partition]) == 1
        assert refused.hits == 1
        emulator.move_leader("orders", 1, (leader + 1) % 3)
        admin.abort_transaction(partition, start_offset=0)
        assert emulator.log("orders", 1).last_stable_offset == 2
        producer.close(timeout_s=0)


def test_a_copy_of_a_given_broker(emulator: Emulator, admin: TransactionAdmin) -> None:
    partition = TopicPartition("orders", 0)
    with open_transaction(emulator, IDS[0]):
        leader = emulator.log("orders", 0).leader_id
        assert len(admin.describe_producers([partition], broker_id=leader)[partition]) == 1
        follower = (leader + 1) % 3
        assert admin.describe_producers([partition], broker_id=follower) == admin.describe_producers([partition])
        assert admin.find_hanging("orders", broker_id=follower, **LONG_AGO) == ()
        with pytest.raises(KafkaTimeoutError, match="broker 99"):
            admin.describe_producers([partition], broker_id=99, timeout_ms=SOON_MS)


@pytest.mark.parametrize("lost", ["InitProducerId", "WriteTxnMarkers"])
def test_an_end_whose_answer_is_lost_is_repeated(emulator: Emulator, admin: TransactionAdmin, lost: str) -> None:
    with open_transaction(emulator, IDS[0]) as producer:
        fault = emulator.faults.add(Fault(api=lost, action=DropReply()))
        if lost == "InitProducerId":
            admin.force_terminate_transaction(IDS[0])
        else:
            admin.abort_transaction(TopicPartition("orders", 0), start_offset=0)
        assert fault.hits == 1
        assert emulator.log("orders", 0).last_stable_offset >= 2
        producer.close(timeout_s=0)


@pytest.mark.parametrize("by_ids", [False, True])
def test_a_second_marker_never_meets_the_next_transaction(by_ids: bool) -> None:
    """With transaction.version 0 and 1 it would have the same producer id and epoch, and that marker would abort it."""
    with Emulator(config=settings_of(Profile.KAFKA_3_9), topics={"t": 1}) as emulator:
        servers, partition = emulator.bootstrap_servers, TopicPartition("t", 0)
        with Site("emulator", servers, has_tv2=False) as site, TransactionAdmin(bootstrap_servers=servers) as admin:
            identity = site.wire.init_ok("x")
            site.write_unannounced("x", identity, "t")
            emulator.faults.add(Fault(api="WriteTxnMarkers", action=DropReply()))
            looks_again = emulator.faults.add(Fault(api="DescribeProducers", skip=1, action=Hold()))
            named: dict[str, Any] = {"start_offset": 0}
            if by_ids:
                named = {"producer_id": identity.producer_id, "producer_epoch": identity.producer_epoch}
                named["coordinator_epoch"] = -1
            caller = threading.Thread(target=lambda: admin.abort_transaction(partition, **named))
            caller.start()
            looks_again.wait_held(1)
            site.write("x", identity, "t", sequence=1)
            looks_again.release()
            caller.join(60)
            (row,) = admin.describe_producers([partition])[partition]
            assert row.current_transaction_start_offset == 2
            site.end("x", identity, commit=True)
            assert emulator.log("t").last_stable_offset == 4


def abort_undescribed(emulator: Emulator, admin: TransactionAdmin) -> None:
    """Abort by ids while describing producers is refused."""
    partition = TopicPartition("orders", 0)
    (row,) = admin.describe_producers([partition])[partition]
    emulator.faults.add(Fault(api="DescribeProducers", action=Error(29)))
    admin.abort_transaction(
        partition, producer_id=row.producer_id, producer_epoch=row.producer_epoch, coordinator_epoch=-1
    )


@pytest.mark.parametrize("action", [DropReply(), Error(3), Error(6)], ids=str)
def test_a_marker_by_ids_is_not_repeated_blindly(
    emulator: Emulator, admin: TransactionAdmin, action: DropReply | Error
) -> None:
    with open_transaction(emulator, IDS[0]) as producer:
        fault = emulator.faults.add(Fault(api="WriteTxnMarkers", count=None, action=action))
        with pytest.raises(KafkaTimeoutError, match="may or may not be aborted: if its producer has begun no other"):
            abort_undescribed(emulator, admin)
        assert fault.hits == 1
        producer.close(timeout_s=0)


def test_a_marker_that_was_not_sent_is_sent_later(
    emulator: Emulator, admin: TransactionAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, away = AdminTransport.request, iter([True])

    async def to_leader(transport: AdminTransport, node_id: int, call: Call[Any], deadline_s: float) -> Any:
        with monkeypatch.context() as patch:
            if call.api is Api.WRITE_TXN_MARKERS and next(away, False):
                patch.setattr(Lease, "to_node", lambda *_: NodeState.FAILED)
            return await request(transport, node_id, call, deadline_s)

    monkeypatch.setattr(AdminTransport, "request", to_leader)
    with open_transaction(emulator, IDS[0]) as producer:
        abort_undescribed(emulator, admin)
        assert emulator.log("orders", 0).last_stable_offset == 2
        producer.close(timeout_s=0)


def test_a_coordinator_that_moves_during_a_termination(emulator: Emulator, admin: TransactionAdmin) -> None:
    name = IDS[0]
    with open_transaction(emulator, name) as producer:
        emulator.faults.add(Fault(api="InitProducerId", count=2, action=Error(16)))
        emulator.faults.add(Fault(api="InitProducerId", action=Error(51)))
        ended = admin.force_terminate_transaction(name)
        assert admin.describe_transaction(name).producer_epoch == ended.producer_epoch
        producer.close(timeout_s=0)


def test_refusals_of_partitions(emulator: Emulator, admin: TransactionAdmin) -> None:
    partition = TopicPartition("orders", 0)
    emulator.faults.add(Fault(api="DescribeProducers", action=Error(29)))
    with pytest.raises(AuthorizationError, match="READ on the topic"):
        admin.describe_producers([partition])
    with open_transaction(emulator, IDS[0]) as producer:
        emulator.faults.add(Fault(api="WriteTxnMarkers", action=Error(31)))
        with pytest.raises(AuthorizationError, match="ALTER on the cluster"):
            admin.abort_transaction(partition, start_offset=0)
        producer.close(timeout_s=0)


def test_a_lost_response_about_one_coordinator_leaves_the_others(
    emulator: Emulator, admin: TransactionAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers before FindCoordinator v4 take one id in a request."""
    request, places = AdminTransport.request, count(1)

    async def find_one(transport: AdminTransport, node_id: int, call: Call[Any], deadline_s: float) -> Any:
        if call.api is Api.FIND_COORDINATOR:
            if call.versions == (4, 4):
                raise UnsupportedByBrokerError("one id in a request")
            if next(places) == 2:
                raise NoResponseError("lost")
        return await request(transport, node_id, call, deadline_s)

    monkeypatch.setattr(AdminTransport, "request", find_one)
    assert list(admin.describe_transactions(IDS)) == IDS
    assert next(places) == len(IDS) + 2  # only the lost one is repeated


def let_metadata_have_no_brokers(monkeypatch: pytest.MonkeyPatch, answers: Iterator[bool]) -> None:
    """Let brokers respond as Apache Kafka does just after its start, when it does not know of itself; True: so."""
    request = AdminTransport.request

    async def respond(transport: AdminTransport, node_id: int, call: Call[Any], deadline_s: float) -> Any:
        response = await request(transport, node_id, call, deadline_s)
        if call.api is Api.METADATA and next(answers):
            return response._replace(cluster=replace(response.cluster, brokers=()))
        return response

    monkeypatch.setattr(AdminTransport, "request", respond)


def test_a_broker_that_has_just_started_is_queried_again(
    emulator: Emulator, admin: TransactionAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_metadata_have_no_brokers(monkeypatch, cycle([True, False]))
    assert names(admin.list_transactions()) == IDS
    assert len(admin.describe_features()) == 3
    assert len(admin.describe_two_phase_commit()) == 3


@pytest.mark.parametrize("call", ["list_transactions", "describe_features", "describe_two_phase_commit"])
def test_metadata_without_brokers_is_not_an_empty_cluster(
    emulator: Emulator, admin: TransactionAdmin, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    let_metadata_have_no_brokers(monkeypatch, repeat(True))
    with pytest.raises(KafkaTimeoutError, match="does not know of any broker yet"):
        getattr(admin, call)(timeout_ms=SOON_MS)


def test_an_unreachable_cluster() -> None:
    with TransactionAdmin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=SOON_MS) as admin:
        with pytest.raises(KafkaTimeoutError, match="Connection refused"):
            admin.list_transactions()


def test_filters_that_a_broker_lacks_are_not_ignored() -> None:
    with Emulator(config=settings_of(Profile.KAFKA_3_9)) as emulator:
        with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
            assert admin.list_transactions(running_longer_than_ms=1) == ()
            with pytest.raises(UnsupportedByBrokerError, match="KIP-1152"):
                admin.list_transactions(transactional_id_pattern="(a+)+b")
