"""Consumer groups of KIP-848 in the emulator alone: time, failover, restart, settings, retention, feature level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, PausePoint
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup
from dualwrite.broker_emulator.log.record_batch import iter_records
from dualwrite.broker_emulator.profiles import Profile
from dualwrite.broker_emulator.security.acl import Acl, AclOperation, ResourceType
from tests.emulator.api.config_requests import GROUP, SET, alter
from tests.emulator.api.group_requests import join, join_fields
from tests.emulator.api.raw_client import RawClient, milliseconds
from tests.support.conditions import until

MINUTE_MS = 60_000


@pytest.fixture
def emulator(config: BrokerConfig) -> Iterator[Emulator]:
    with Emulator(config=config, clock=VirtualClock(), topics={"t": 4, "other": 1}) as broker:
        yield broker


def heartbeat(client: RawClient, member: str, epoch: int, **values: Any) -> Any:
    """Send a heartbeat; a join subscribes to topic "t" by default."""
    fields: dict[str, Any] = {"subscribed_topic_regex": None, "topic_partitions": None}
    fields["rebalance_timeout"] = milliseconds(MINUTE_MS if epoch == 0 else -1)
    if epoch == 0:
        fields |= {"subscribed_topic_names": ("t",), "topic_partitions": ()}
    names = {"group_id": "g", "member_id": member, "member_epoch": epoch}
    return client.call("consumer_group_heartbeat", 1, **{**names, **fields, **values})


def owned(client: RawClient, *indexes: int) -> dict[str, Any]:
    return {"topic_partitions": ({"topic_id": client.topic_id("t"), "partitions": indexes},)}


def address(emulator: Emulator, node_id: int) -> str:
    return emulator.bootstrap_servers.split(",")[node_id]


def group_of(emulator: Emulator) -> ConsumerGroup:
    (group,) = emulator.groups()
    assert isinstance(group, ConsumerGroup)
    return group


def shape(emulator: Emulator) -> dict[str, Any]:
    """Return the epochs of the group, and the epoch, state and partitions of every member."""
    group = group_of(emulator)
    members = {
        name: (member.member_epoch, member.state.name, sorted(part.partition for part in member.assigned))
        for name, member in group.members.items()
    }
    return {"epochs": (group.group_epoch, group.assignment_epoch), **members}


def alter_group(client: RawClient, **configs: str) -> None:
    changes = [(name.replace("_", "."), SET, value) for name, value in configs.items()]
    assert alter(client, GROUP, "g", *changes) == (0, None)


def test_a_member_that_does_not_release_partitions_in_time_is_fenced(emulator: Emulator, client: RawClient) -> None:
    heartbeat(client, "m1", 0)
    heartbeat(client, "m2", 0)
    heartbeat(client, "m1", 2)
    emulator.advance_clock(30_000)
    assert [heartbeat(client, "m1", 2, **owned(client, 0, 1, 2, 3)).error_code for _ in range(2)] == [0, 0]
    heartbeat(client, "m2", 3)
    emulator.advance_clock(30_000)
    assert set(group_of(emulator).members) == {"m2"}
    assert heartbeat(client, "m1", 2).error_code == 25


def test_a_classic_member_that_does_not_sync_or_join_is_given_up(emulator: Emulator, client: RawClient) -> None:
    heartbeat(client, "m1", 0)
    join(client)
    assert len(group_of(emulator).members) == 2
    for _ in range(2):
        emulator.advance_clock(5_000)
        heartbeat(client, "m1", group_of(emulator).members["m1"].member_epoch)
    assert set(group_of(emulator).members) == {"m1"}


def test_settings_of_the_group_count_before_those_of_the_brokers(emulator: Emulator, client: RawClient) -> None:
    assert heartbeat(client, "m1", 0).heartbeat_interval == milliseconds(5_000)
    alter_group(client, consumer_heartbeat_interval_ms="6000", consumer_session_timeout_ms="50000")
    assert heartbeat(client, "m1", 2).heartbeat_interval == milliseconds(6_000)
    emulator.advance_clock(49_999)
    assert set(group_of(emulator).members) == {"m1"}
    emulator.advance_clock(1)
    assert not group_of(emulator).members


def test_a_loading_group_returns_a_retriable_error(config: BrokerConfig) -> None:
    with (
        Emulator(config=config, nodes=2, topics={"t": 1}) as emulator,
        RawClient(address(emulator, 1 - emulator.coordinator(group="g"))) as client,
    ):
        held = emulator.hold(PausePoint.BEFORE_LOAD)
        emulator.move_coordinator(1 - emulator.coordinator(group="g"), group="g")
        held.wait_reached()
        assert heartbeat(client, "m", 0).error_code == 14
        held.release()
        until(lambda: heartbeat(client, "m", 0).error_code == 0)


def test_a_restart_on_a_data_directory_goes_on(config: BrokerConfig, tmp_path: Path) -> None:
    with Emulator(config=config, data_dir=tmp_path, topics={"t": 4}) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            heartbeat(client, "m1", 0, instance_id="i", subscribed_topic_regex="[t]")
            joined = join(client)
            heartbeat(client, "m1", 2)
        before = shape(emulator)
    with Emulator(config=config, data_dir=tmp_path) as emulator, RawClient(emulator.bootstrap_servers) as client:
        group = group_of(emulator)
        assert shape(emulator) == before
        assert group.members["m1"].instance_id == "i"
        assert group.regular_expressions["[t]"].topics == {"t"}
        assert group.members[joined.member_id].is_classic
        assert heartbeat(client, "m1", 1).error_code == 110
        assert heartbeat(client, "m1", group.members["m1"].member_epoch).error_code == 0


def test_a_compacted_log_restores_the_same_group(config: BrokerConfig, tmp_path: Path) -> None:
    small = replace(config, offsets_topic_segment_bytes=2_000)
    with Emulator(config=small, clock=VirtualClock(), data_dir=tmp_path, topics={"t": 4}) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            for _ in range(30):
                heartbeat(client, "m1", 0)
                heartbeat(client, "m1", -1)
            heartbeat(client, "m2", 0)
            log = emulator.cluster.topics["__consumer_offsets"].partitions[group_partition(emulator)].log
            emulator.advance_clock(40_000)

            def kept() -> int:
                return sum(len(list(iter_records(batch))) for batch in log.batches())

            until(lambda: emulator.call_in_loop(kept) < log.log_end_offset / 2)
        before = shape(emulator)
    with Emulator(config=small, data_dir=tmp_path) as emulator:
        assert shape(emulator) == before


def test_answers_wait_for_the_record_to_be_replicated(config: BrokerConfig) -> None:
    with Emulator(config=config, topics={"t": 1}) as emulator, RawClient(emulator.bootstrap_servers) as client:
        partition = group_partition(emulator)
        held = emulator.hold_replication("__consumer_offsets", partition)
        fields = {"subscribed_topic_names": ("t",), "subscribed_topic_regex": None, "topic_partitions": ()}
        names = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": milliseconds(1_000)}
        waiting = client.send("consumer_group_heartbeat", 1, **names, **fields)
        assert client.is_silent()
        held.release()
        assert client.receive("consumer_group_heartbeat", 1, waiting).member_epoch == 2


def group_partition(emulator: Emulator) -> int:
    return int(emulator.cluster.group_partition("g"))


def test_policies_of_migration(config: BrokerConfig) -> None:
    config = replace(config, group_consumer_migration_policy="disabled")
    with Emulator(config=config, topics={"t": 1}) as emulator, RawClient(emulator.bootstrap_servers) as client:
        join(client)
        refused = heartbeat(client, "m1", 0)
        assert refused.error_code == 69
        assert "because online upgrade is disabled" in refused.error_message
        heartbeat(client, "m1", 0, group_id="h")
        join(client, "h")
        heartbeat(client, "m1", -1, group_id="h")
        assert [type(group) is ConsumerGroup for group in emulator.groups()] == [False, True]


def test_kafka_3_9_has_the_request_and_refuses_it() -> None:
    with (
        Emulator(config=BrokerConfig(profile=Profile.KAFKA_3_9)) as emulator,
        RawClient(emulator.bootstrap_servers) as client,
    ):
        fields = {"subscribed_topic_names": ("t",), "topic_partitions": ()}
        names = {"group_id": "g", "member_id": "", "member_epoch": 0, "rebalance_timeout": milliseconds(1)}
        assert client.call("consumer_group_heartbeat", 0, **names, **fields).error_code == 35
        asked = {"group_ids": ("g",), "include_authorized_operations": False}
        assert client.call("consumer_group_describe", 0, **asked).groups[0].error_code == 35


def test_access_to_groups_and_topics(config: BrokerConfig) -> None:
    me = "User:ANONYMOUS"
    rules = {
        name: Acl.allow(me, operation, kind, resource)
        for name, operation, kind, resource in (
            ("read", AclOperation.READ, ResourceType.GROUP, "g"),
            ("t", AclOperation.DESCRIBE, ResourceType.TOPIC, "t"),
            ("other", AclOperation.DESCRIBE, ResourceType.TOPIC, "other"),
        )
    }
    topics = {"t": 1, "other": 1}
    with (
        Emulator(config=config, topics=topics, acls=()) as emulator,
        RawClient(emulator.bootstrap_servers) as client,
    ):
        assert heartbeat(client, "m", 0).error_code == 30
        assert described(client) == (30, None, 0)
        emulator.add_acls(rules["read"])
        assert heartbeat(client, "m", 0).error_code == 29
        emulator.add_acls(rules["t"])
        assert heartbeat(client, "m", 0, subscribed_topic_names=("t", "other")).error_code == 29
        assert heartbeat(client, "m", 0, subscribed_topic_regex=".*").error_code == 0
        until(lambda: "m" in group_of(emulator).members and group_of(emulator).group_epoch == 3)
        assert group_of(emulator).subscribed_topics == {"t"}  # an expression matches only topics that may be described
        assert described(client) == (0, None, 1)
        emulator.remove_acls()
        emulator.add_acls(rules["read"], rules["other"])
        message = "The group has described topic(s) that the client is not authorized to describe."
        assert described(client) == (29, message, 0)


def test_no_expression_of_a_member_stops_the_broker(emulator: Emulator, client: RawClient) -> None:
    """A backtracking engine would run longer than any session; nor does it know `(?i:..)`."""
    emulator.create_topic("a" * 240)
    expression = r"(a+)+!|(?i:T)\b"
    assert heartbeat(client, "m", 0, subscribed_topic_names=None, subscribed_topic_regex=expression).error_code == 0
    until(lambda: group_of(emulator).subscribed_topics == {"t"})
    assert heartbeat(client, "o", 0, subscribed_topic_names=None, subscribed_topic_regex=r"a\Z").error_code == 128


def described(client: RawClient) -> tuple[int, str | None, int]:
    asked = {"group_ids": ("g",), "include_authorized_operations": False}
    (group,) = client.call("consumer_group_describe", 1, **asked).groups
    return int(group.error_code), group.error_message, len(group.members)


def test_a_waiting_join_must_be_repeated_when_the_group_is_upgraded(emulator: Emulator, client: RawClient) -> None:
    stable = join(client)
    with RawClient(emulator.bootstrap_servers) as second:
        fields = join_fields(9)
        named = second.call("join_group", 9, **fields)
        waiting = second.send("join_group", 9, **{**fields, "member_id": named.member_id})
        until(lambda: len(emulator.groups()[0].members) == 2)
        assert heartbeat(client, "m", 0).error_code == 0
        assert second.receive("join_group", 9, waiting).error_code == 27
        assert set(group_of(emulator).members) == {stable.member_id, named.member_id, "m"}
