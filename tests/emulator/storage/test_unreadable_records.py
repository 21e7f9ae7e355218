"""Records of the coordinators' topics that cannot be read: a start is refused with the file and the offset."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.share.state import StateKey
from tests.emulator.api.raw_client import RawClient
from tests.interop.raw_wire.share_states import StateRequests

CONFIG = BrokerConfig(
    transaction_state_log_num_partitions=2,
    offsets_topic_num_partitions=2,
    properties={"share.coordinator.state.topic.num.partitions": "2"},
)
TIME_MS = 1_700_000_000_000

SHARE_PARTITION = b"\0\1g" + bytes(16) + b"\0\0\0\1"
SHARE_KEYS = {
    **{
        f"key {kind} of a share group": ("__consumer_offsets", bytes((0, kind)) + b"\0\1g\0\1m")
        for kind in (10, 13, 14)
    },
    **{f"key {kind} of a share group": ("__consumer_offsets", bytes((0, kind)) + b"\0\1g") for kind in (11, 12, 15)},
    "a snapshot": ("__share_group_state", b"\0\0" + SHARE_PARTITION),
    "an update": ("__share_group_state", b"\0\1" + SHARE_PARTITION),
}
"""The records of share groups: topic and key."""
BATCH_OF_NO_STATE = b"\2" + bytes(16) + b"\3\0\1\0" + b"\0"

UNREADABLE = {
    "a key that is cut off": ("__transaction_state", b"\0\0\0\5ab", b""),
    "a value that is cut off": ("__transaction_state", b"\0\0\0\1a", b"\0\1\0"),
    "a value of no version": ("__transaction_state", b"\0\0\0\1a", b"\x7f\xff" + bytes(40)),
    "an offset that is cut off": ("__consumer_offsets", b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\3\0"),
    "a key of an offset that is cut off": ("__consumer_offsets", b"\0\1\0\1g", b"\0\3\0"),
    "an empty key": ("__consumer_offsets", b"", b"value"),
    "a group that is cut off": ("__consumer_offsets", b"\0\2\0\1g", b"\0\3\0"),
    "a member that is cut off": ("__consumer_offsets", b"\0\5\0\1g\0\1m", b"\0\0\x7f"),
    "a name that is no text": ("__consumer_offsets", b"\0\2\0\1\xff", b"\0\3\0"),
    "the name of a group that is cut off": ("__consumer_offsets", b"\0\2\0\5g", b"\0\3" + bytes(30)),
    **{f"{name} that is cut off": (topic, key, b"\0\0\x7f") for name, (topic, key) in SHARE_KEYS.items()},
    **{f"{name} whose own key is cut off": (topic, key[:4], b"\0\0") for name, (topic, key) in SHARE_KEYS.items()},
    "a snapshot of a batch without a state": (*SHARE_KEYS["a snapshot"], bytes(38) + BATCH_OF_NO_STATE),
    "an update of a batch without a state": (*SHARE_KEYS["an update"], bytes(18) + BATCH_OF_NO_STATE),
    **{
        f"a value of version {version} for {key[:2].hex()} in {topic}": (
            topic,
            key,
            version.to_bytes(2, "big", signed=True) + bytes(40),
        )
        for topic, key, versions in (
            ("__transaction_state", b"\0\0\0\1a", (-1, 2)),
            ("__consumer_offsets", b"\0\0\0\1g\0\1t\0\0\0\0", (-1, 5)),
            ("__consumer_offsets", b"\0\1\0\1g\0\1t\0\0\0\0", (-1, 5)),
            ("__consumer_offsets", b"\0\2\0\1g", (-1, 4)),
            ("__consumer_offsets", b"\0\3\0\1g", (-1, 1)),
            ("__consumer_offsets", b"\0\4\0\1g", (-1, 1)),
            ("__consumer_offsets", b"\0\5\0\1g\0\1m", (-1, 1)),
            ("__consumer_offsets", b"\0\6\0\1g", (-1, 1)),
            ("__consumer_offsets", b"\0\7\0\1g\0\1m", (-1, 1)),
            ("__consumer_offsets", b"\0\x08\0\1g\0\1m", (-1, 1)),
            ("__consumer_offsets", b"\0\x10\0\1g\0\1r", (-1, 1)),
            *((topic, key, (-1, 1)) for topic, key in SHARE_KEYS.values()),
        )
        for version in versions
    },
}
"""Kafka does not load a partition with one of these, whose key it knows; see `UNKNOWN_KEYS` for the others."""

UNKNOWN_KEYS = {
    "__transaction_state": (-1, 1, 2, 32767),
    "__consumer_offsets": (-1, 99, 32767),
    "__share_group_state": (-1, 2, 32767),
}
"""Key versions of no release, as a downgrade leaves behind. Kafka logs a warning and goes on to the next record."""


def put(emulator: Emulator, topic: str, key: bytes, value: bytes | None) -> int:
    """Append a record to partition 1 and return its offset."""

    def append() -> int:
        emulator.cluster.share_states.partition(StateKey("g", uuid.UUID(int=1), 0))  # which makes the topic
        partition = emulator.cluster.topics[topic].partitions[1]
        offset = partition.log.log_end_offset
        assert partition.log.append_own(key, value, now_ms=TIME_MS) is ErrorCode.none
        return offset

    return emulator.call_in_loop(append)


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_start_is_refused_with_file_and_offset(tmp_path: Path, kind: str) -> None:
    topic, key, value = UNREADABLE[kind]
    with Emulator(data_dir=tmp_path, config=CONFIG) as emulator:
        for number in range(8):  # some of them are in partition 1
            with RawClient(emulator.bootstrap_servers) as client:
                assert client.init_producer_id(f"id-{number}").error_code is ErrorCode.none
        offset = put(emulator, topic, key, value)
    where = rf"{topic}-1/0{{20}}\.log: the record at offset {offset} of {topic}-1 cannot be read"
    for _ in range(2):
        with pytest.raises(StorageError, match=where):
            Emulator(data_dir=tmp_path, config=CONFIG).start()


@pytest.mark.parametrize("value", [b"", b"\x7f\xff", b"\0\1" + bytes(40), None], ids=["empty", "v32767", "v1", "null"])
@pytest.mark.parametrize(("topic", "version"), [(name, each) for name, all_ in UNKNOWN_KEYS.items() for each in all_])
def test_a_key_of_an_unknown_version_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topic: str, version: int, value: bytes | None
) -> None:
    names = [f"id-{number}" for number in range(8)]
    with Emulator(data_dir=tmp_path, config=CONFIG) as emulator:
        put(emulator, topic, version.to_bytes(2, "big", signed=True) + b"\0\1a", value)
        with RawClient(emulator.bootstrap_servers) as client:
            before = {name: client.init_producer_id(name).producer_id for name in names}
            for name in names:
                offset = client.txn_offset_commit(name, client.init_producer_id(name), name, "t", 3)
                assert offset is ErrorCode.unknown_topic_or_partition
    with (
        caplog.at_level(logging.WARNING),
        Emulator(data_dir=tmp_path, config=CONFIG) as emulator,
        RawClient(emulator.bootstrap_servers) as client,
    ):
        assert {name: client.init_producer_id(name).producer_id for name in names} == before
        assert emulator.log(topic, 1).log_end_offset > 0
    assert f"{topic}-1 has a record with the key version {version} at offset 0" in caplog.text


@pytest.mark.parametrize("name", SHARE_KEYS)
def test_tombstones_of_absent_entries_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    with Emulator(data_dir=tmp_path, config=CONFIG) as emulator:
        put(emulator, *SHARE_KEYS[name], None)
    with (
        caplog.at_level(logging.WARNING),
        Emulator(data_dir=tmp_path, config=CONFIG) as emulator,
        RawClient(emulator.bootstrap_servers) as client,
    ):
        asked = {"group_ids": ("g",), "include_authorized_operations": False}
        assert client.call("share_group_describe", 1, **asked).groups[0].error_code is ErrorCode.group_id_not_found
    assert caplog.text == ""


@pytest.mark.parametrize("name", SHARE_KEYS)
def test_a_failover_serves_the_other_share_groups(name: str, caplog: pytest.LogCaptureFixture) -> None:
    topic, key = SHARE_KEYS[name]
    with Emulator(nodes=2, topics={"t": 1}, config=CONFIG) as emulator:
        put(emulator, topic, key, b"\0\0\x7f")
        leader = emulator.log(topic, 1).leader_id
        with caplog.at_level(logging.ERROR):
            emulator.crash_node(leader)
        assert f"the record at offset 0 of {topic}-1 cannot be read" in caplog.text
        assert "Traceback" not in caplog.text
        groups = tuple(f"g{number}" for number in range(16))
        with RawClient(emulator.bootstrap(None).split(",")[1 - leader]) as client:
            asked = {"group_ids": groups, "include_authorized_operations": False}
            known = {row.error_code for row in client.call("share_group_describe", 1, **asked).groups}
            topic_id = client.topic_id("t")
            begin = {"state_epoch": 1, "start_offset": 0}
            states = {StateRequests(client, group, topic_id).send("initialize", **begin).error_code for group in groups}
        loading = {ErrorCode.coordinator_load_in_progress}
        is_state = topic == "__share_group_state"
        assert known == {ErrorCode.group_id_not_found} | (set() if is_state else loading)
        assert states == {ErrorCode.none} | (loading if is_state else set())


@pytest.mark.parametrize("kind", ["a value that is cut off", "a group that is cut off"])
def test_a_failover_serves_every_other_partition(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    topic, key, value = UNREADABLE[kind]
    with Emulator(nodes=2, topics={"t": 4}, config=CONFIG) as emulator:
        put(emulator, topic, key, value)
        leader = emulator.log(topic, 1).leader_id
        with caplog.at_level(logging.ERROR):
            emulator.crash_node(leader)
        assert f"the record at offset 0 of {topic}-1 cannot be read" in caplog.text
        assert "Traceback" not in caplog.text
        assert {emulator.log("t", index).leader_id for index in range(4)} == {1 - leader}
        answers = []
        with RawClient(emulator.bootstrap(None).split(",")[1 - leader]) as client:
            for number in range(16):
                answers.append(client.init_producer_id(f"id-{number}").error_code)
        refused = {ErrorCode.coordinator_load_in_progress} if topic == "__transaction_state" else set()
        assert set(answers) == {ErrorCode.none} | refused
