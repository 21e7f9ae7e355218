"""The endpoints besides those of faults: each does what its description says."""

from __future__ import annotations

from dataclasses import fields

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.transactions.metadata import TransactionMetadata
from tests.emulator.control.client import Client
from tests.emulator.control.conftest import Transaction


def test_health_says_where_the_brokers_are(client: Client, controlled: Emulator) -> None:
    health = client.get("/v1/health")
    assert health["status"] == "serving"
    assert health["bootstrap_servers"] == controlled.bootstrap_servers
    assert health["living_nodes"] == [0, 1]


# pause points


def test_a_pause_point_is_held_reached_and_released(client: Client, transaction: Transaction) -> None:
    body = {"point": "before-marker", "topic": "orders", "partition": 0, "transactional_id": None}
    held = client.post("/v1/holds", body, 201)
    assert held["selectors"] == {"topic": "orders", "partition": 0}
    one = f"/v1/holds/{held['hold_id']}"
    transaction.commit()  # answered when it is decided, before any marker
    assert client.get(f"{one}/wait") == {**held, "hits": 1, "waiting": 1}
    assert client.get("/v1/holds")["holds"] == [{**held, "hits": 1, "waiting": 1}]
    assert client.post(f"{one}/release")["waiting"] == 0
    client.refused(404, "POST", f"{one}/release")


# time


def test_the_clock_is_moved(client: Client, transaction: Transaction) -> None:
    before = client.get("/v1/clock")
    assert before["kind"] == "virtual"
    after = client.post("/v1/clock/advance", {"duration_ms": 3_600_000})
    assert after["now_ms"] == before["now_ms"] + 3_600_000
    assert client.get(f"/v1/transactions?transactional_id={transaction.transactional_id}")
    assert "at least 0" in client.refused(400, "POST", "/v1/clock/advance", {"duration_ms": -1})["message"]
    assert "missing" in client.refused(400, "POST", "/v1/clock/advance", {})["message"]


def test_the_machines_clock_cannot_be_moved() -> None:
    with Emulator(control="127.0.0.1:0") as emulator:
        client = Client(emulator.control_url)
        assert client.get("/v1/clock")["kind"] == "system"
        assert "--clock virtual" in client.refused(409, "POST", "/v1/clock/advance", {"duration_ms": 1})["message"]


# nodes, leaders, coordinators


def test_nodes_crash_stop_and_start(client: Client, controlled: Emulator) -> None:
    assert client.post("/v1/nodes/1/crash")["is_alive"] is False
    assert controlled.living_nodes == [0]
    assert client.refused(409, "POST", "/v1/nodes/1/stop")["message"] == "node 1 is not running"
    started = client.post("/v1/nodes/1/start")
    assert started["is_alive"] is True
    assert next(iter(started["addresses"].values())) in controlled.bootstrap_servers
    client.refused(409, "POST", "/v1/nodes/1/start")
    assert client.post("/v1/nodes/0/stop")["leads"] == 0
    assert client.get("/v1/nodes/1")["is_controller"] is True
    assert client.refused(404, "POST", "/v1/nodes/7/crash")["known"] == ["0", "1"]


def test_leaders_are_moved(client: Client) -> None:
    leader = "/v1/topics/orders/partitions/1/leader"
    for node in (1, 0):
        assert client.put(leader, {"node": node})["leader"] == node
    assert client.refused(404, "PUT", leader, {"node": 7})["known"] == ["0", "1"]
    client.refused(404, "PUT", "/v1/topics/orders/partitions/2/leader", {"node": 0})
    error = client.refused(404, "PUT", "/v1/topics/order/partitions/0/leader", {"node": 0})
    assert "did you mean 'orders'?" in error["message"]
    client.post("/v1/nodes/1/crash")
    client.refused(409, "PUT", leader, {"node": 1})


@pytest.mark.parametrize("named", [{"transactional_id": "a/b&c"}, {"group": "g"}], ids=lambda named: next(iter(named)))
def test_coordinators_are_found_and_moved(client: Client, named: dict[str, str]) -> None:
    ((name, value),) = named.items()
    for node in (0, 1):
        moved = client.put("/v1/coordinators", {**named, "node": node})
        assert moved["node"] == node
        asked = client.get(f"/v1/coordinators?{name}={value.replace('/', '%2F').replace('&', '%26')}")
        assert asked == moved


def test_a_coordinator_is_somebodys(client: Client) -> None:
    for query in ("", "?group=g&transactional_id=t"):
        assert client.refused(400, "GET", f"/v1/coordinators{query}")["known"] == ["transactional_id", "group"]


def test_replication_is_held_and_released_in_part(client: Client, controlled: Emulator) -> None:
    client.post("/v1/topics", {"name": "held"}, 201)
    one = "/v1/topics/held/partitions/0"
    assert client.post(f"{one}/hold-replication")["is_replication_held"] is True
    client.refused(409, "POST", f"{one}/hold-replication")
    assert "up_to" in client.refused(400, "POST", f"{one}/release-replication", {"up_to": 5})["message"]
    assert client.post(f"{one}/release-replication", {})["is_replication_held"] is False
    client.refused(409, "POST", f"{one}/release-replication")


# clients, topics


def test_connections_are_listed_and_broken(client: Client, controlled: Emulator) -> None:
    consumer = KafkaConsumer("orders", bootstrap_servers=controlled.bootstrap_servers, client_id="reader <1>")
    consumer.topics()
    shown = client.get("/v1/connections?client_id=reader%20%3C1%3E")
    assert shown["total"] >= 1
    assert shown["connections"][0]["principal"] == "User:ANONYMOUS"
    assert client.delete("/v1/connections?client_id=reader%20%3C1%3E")["disconnected"] == shown["total"]
    consumer.close()


def test_topics_are_created_and_deleted(client: Client, controlled: Emulator) -> None:
    body = {"name": "compacted", "partitions": 3, "configs": {"cleanup.policy": "compact"}, "replication_factor": 1}
    created = client.post("/v1/topics", body, 201)
    assert (created["partitions"], created["configs"]) == (3, {"cleanup.policy": "compact"})
    assert created in client.get("/v1/topics")["topics"]
    assert client.get("/v1/topics/compacted") == created
    client.refused(409, "POST", "/v1/topics", body)
    client.refused(400, "POST", "/v1/topics", {"name": "no/topic"})
    client.refused(400, "POST", "/v1/topics", {"name": "other", "replication_factor": 9})
    client.refused(400, "POST", "/v1/topics", {"name": "other", "configs": {"cleanup.policy": "shred"}})
    assert client.delete("/v1/topics/compacted") == created
    client.refused(404, "DELETE", "/v1/topics/compacted")
    client.refused(409, "DELETE", "/v1/topics/__transaction_state")


def test_topics_get_more_partitions(client: Client, controlled: Emulator) -> None:
    client.post("/v1/topics", {"name": "growing", "partitions": 2}, 201)
    assert client.put("/v1/topics/growing/partitions", {"count": 4})["partitions"] == 4
    assert client.get("/v1/partitions?topic=growing")["total"] == 4
    error = client.refused(409, "PUT", "/v1/topics/growing/partitions", {"count": 3})
    assert error["message"] == "growing has 4 partitions and cannot have 3"
    client.refused(404, "PUT", "/v1/topics/grwing/partitions", {"count": 5})
    client.refused(409, "PUT", "/v1/topics/__consumer_offsets/partitions", {"count": 60})


# copies and elections


def test_copies_are_moved_and_the_preferred_leaders_elected(client: Client) -> None:
    client.post("/v1/topics", {"name": "moved"}, 201)
    one = "/v1/topics/moved/partitions/0"
    assert client.put(f"{one}/replicas", {"replicas": [1]})["leader"] == 1
    both = client.put(f"{one}/replicas", {"replicas": [0, 1]})
    assert (both["replicas"], both["leader"], both["adding_replicas"]) == ([0, 1], 1, [])
    assert {"topic": "moved", "partition": 0, "leader": 0} in client.post("/v1/elect-preferred-leaders")["moved"]
    assert client.get(one)["partition"]["leader"] == 0
    assert client.post("/v1/elect-preferred-leaders") == {"moved": []}


def test_a_reassignment_is_under_way_and_given_up(client: Client) -> None:
    client.post("/v1/topics", {"name": "underway", "replication_factor": 1}, 201)
    one = "/v1/topics/underway/partitions/0"
    (there,) = client.get(one)["partition"]["replicas"]
    other = 1 - there
    client.post(f"{one}/hold-replication")
    moving = client.put(f"{one}/replicas", {"replicas": [other]})
    assert (moving["adding_replicas"], moving["removing_replicas"], moving["leader"]) == ([other], [there], there)
    assert client.post(f"{one}/cancel-reassignment")["replicas"] == [there]
    assert "under way" in client.refused(409, "POST", f"{one}/cancel-reassignment")["message"]
    client.post(f"{one}/release-replication", {})
    assert client.refused(404, "PUT", f"{one}/replicas", {"replicas": [7]})["known"] == ["0", "1"]
    for wrong in ([], [0, 0]):
        assert (
            "need distinct nodes, at least one"
            in client.refused(400, "PUT", f"{one}/replicas", {"replicas": wrong})["message"]
        )


# quotas


def test_quotas_are_set_shown_and_taken_away(client: Client) -> None:
    both = {"client-id": None, "user": "alice"}
    quotas = {"producer_byte_rate": 1000, "request_percentage": 0.5}
    assert client.put("/v1/quotas", {"entity": both, "quotas": quotas}) == {"entity": both, "quotas": quotas}
    changed = client.put("/v1/quotas", {"entity": both, "quotas": {"request_percentage": None}})
    assert changed["quotas"] == {"producer_byte_rate": 1000}
    assert client.get("/v1/quotas") == {"quotas": [changed]}
    assert client.delete("/v1/quotas") == {"quotas": [changed]}
    assert client.get("/v1/quotas") == {"quotas": []}


@pytest.mark.parametrize(
    ("entity", "quota", "message"),
    [
        ({}, "producer_byte_rate", "Invalid empty client quota entity"),
        ({"client_id": "a"}, "producer_byte_rate", "Unhandled client quota entity type: client_id"),
        ({"user": "a"}, "producer_bytes", "Invalid configuration key producer_bytes"),
    ],
)
def test_quotas_that_cannot_be(client: Client, entity: dict[str, str], quota: str, message: str) -> None:
    assert client.refused(400, "PUT", "/v1/quotas", {"entity": entity, "quotas": {quota: 1}})["message"] == message


# state


def test_a_transaction_is_shown_with_every_field(client: Client, controlled: Emulator) -> None:
    transaction = Transaction(controlled, "shown", two_phase_commit=True)
    transaction.send("orders")
    (shown,) = client.get("/v1/transactions?transactional_id=shown")["transactions"]
    assert (shown["state"], shown["is_two_phase_commit"], shown["is_open"]) == ("Ongoing", True, True)
    assert shown["partitions"] == [{"topic": "orders", "partition": 0, "is_marker_written": False}]
    client.post("/v1/clock/advance", {"duration_ms": 1500})
    (later,) = client.get("/v1/transactions?prefix=sho&open=true&state=Ongoing")["transactions"]
    assert later["open_for_ms"] == shown["open_for_ms"] + 1500
    assert set(TransactionMetadata._fields) - {"topic_partitions"} <= set(shown)
    transaction.commit()
    (ended,) = client.get("/v1/transactions?transactional_id=shown&open=false")["transactions"]
    assert (ended["state"], ended["open_for_ms"], ended["partitions"]) == ("CompleteCommit", None, [])
    transaction.producer.close()


def test_transactions_that_are_not_there(client: Client) -> None:
    client.refused(404, "GET", "/v1/transactions?transactional_id=nobody")
    assert "did you mean 'Ongoing'?" in client.refused(400, "GET", "/v1/transactions?state=Onging")["message"]


def test_internal_topics_are_shown_on_request(client: Client) -> None:
    some, every = client.get("/v1/partitions"), client.get("/v1/partitions?internal=true&limit=3")
    assert all(not each["topic"].startswith("__") for each in some["partitions"])
    assert (len(every["partitions"]), every["total"]) == (3, some["total"] + 100)
    assert client.get("/v1/partitions?topic=__consumer_offsets")["total"] == 50


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_shown_with_members_and_offsets(client: Client, controlled: Emulator, protocol: str) -> None:
    group = f"group/{protocol}"
    settings = {"bootstrap.servers": controlled.bootstrap_servers, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**settings, "client.id": "reader"})
    consumer.subscribe(["orders"])
    while not consumer.assignment():
        consumer.poll(0.05)
    consumer.commit(offsets=[TopicPartition("orders", 0, 5)], asynchronous=False)
    (shown,) = client.get(f"/v1/groups?group={group}")["groups"]
    assert (shown["type"], shown["state"], shown["group"]) == (protocol, "Stable", group)
    (member,) = shown["members"]
    assert member["client_id"] == "reader"
    assert member["assignment"] == [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 1}]
    (offset,) = client.get(f"/v1/groups/group%2F{protocol}/offsets")["offsets"]
    assert (offset["topic"], offset["partition"], offset["offset"], offset["is_pending"]) == ("orders", 0, 5, False)
    consumer.close()


def test_groups_that_are_not_there(client: Client) -> None:
    client.refused(404, "GET", "/v1/groups?group=nobody")
    client.refused(404, "GET", "/v1/groups/nobody/offsets")


def test_a_snapshot_shows_one_moment(client: Client, transaction: Transaction) -> None:
    client.post("/v1/faults", {"api": "EndTxn"}, 201)
    client.post("/v1/holds", {"point": "before-load"}, 201)
    state = client.get("/v1/state?limit=1")
    assert set(state) == {"health", "clock", "nodes", "faults", "holds", "transactions", "partitions", "groups"}
    assert state["transactions"]["transactions"][0]["is_open"]  # those come first
    assert len(state["transactions"]["transactions"]) == 1 <= state["transactions"]["total"]
    for part, path in (("faults", "/v1/faults"), ("nodes", "/v1/nodes"), ("holds", "/v1/holds")):
        assert state[part] == client.get(path)[part]


# features, settings, metrics


@pytest.mark.parametrize(
    ("feature", "newest"), [("transaction.version", 2), ("group.version", 1), ("share.version", 1)]
)
def test_levels_of_features_are_finalized(client: Client, feature: str, newest: int) -> None:
    (before,) = (each for each in client.get("/v1/features")["features"] if each["feature"] == feature)
    assert (before["finalized_level"], before["supported_max_level"]) == (newest, newest)
    path = f"/v1/features/{feature}"
    assert client.put(path, {"level": newest - 1})["finalized_level"] == newest - 1
    assert client.put(path, {"level": newest}) == {**before, "epoch": before["epoch"] + 2}
    client.refused(409, "PUT", path, {"level": newest + 1})
    known = client.refused(404, "PUT", "/v1/features/kraft.version", {"level": 1})["known"]
    assert known == ["group.version", "share.version", "transaction.version"]


def test_settings_are_shown_by_kafkas_names(client: Client) -> None:
    config = client.get("/v1/config")
    assert config["profile"] == "kip-939"
    assert config["settings"]["transaction.max.timeout.ms"] == 900_000
    named = {field.name.replace("_", ".") for field in fields(BrokerConfig)} - {"properties"}
    assert set(config["settings"]) == named


def test_metrics_are_prometheus_text(client: Client, transaction: Transaction) -> None:
    answer = client.ask("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert b"# TYPE " in answer.body
