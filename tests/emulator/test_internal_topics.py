"""Clients' access to the coordinators' topics, and coordinators that meet unreadable records."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.log.partition_log import AppendOrigin
from dualwrite.broker_emulator.log.record_batch import build_batch
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.transactions.transaction_log import partition_for
from tests.interop.wire import GROUP, Code, Identity, Wire, record_batch

STATES, OFFSETS = "__transaction_state", "__consumer_offsets"
CONFIG = BrokerConfig(transaction_state_log_num_partitions=2, offsets_topic_num_partitions=2)
ADMIN = "__admin_client"
OLD_STATE_KEY = b"\0\0\0\1x"
LATER_KEY = b"\0\x63anything"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def emulator_on(data_dir: Path | None, nodes: int = 1) -> Emulator:
    return Emulator(config=CONFIG, data_dir=data_dir, topics={"t": 1}, nodes=nodes)


def keyed(key: bytes, value: bytes, codec: int = 0) -> bytes:
    """A batch of one record, as a client sends it."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    builder.append(0, 1_000, key, value, [])
    return bytes(builder.build())


def prepare(wire: Wire, transactional_id: str) -> Identity:
    """Open a transaction that no other client may end."""
    identity = wire.init_ok(transactional_id, version=6, enable_2pc=True)
    assert wire.produce(transactional_id, identity, "t", 0).error == Code.NONE
    return identity


def test_a_transaction_with_internal_partitions(data_dir: Path) -> None:
    """They are added before the writes are refused, so its end writes markers there; coordinators must ignore those."""
    partitions = [(name, index) for name in (STATES, OFFSETS) for index in (0, 1)]
    with emulator_on(data_dir) as emulator, Wire(emulator.bootstrap_servers) as wire:
        identity = wire.init_ok("evil")
        batch = record_batch([b"v"], identity, 0, transactional=True)
        codes = wire.produce_to("evil", *((partition, batch) for partition in partitions))
        assert codes == [Code.INVALID_TOPIC_EXCEPTION] * 4
        assert wire.end_settled("evil", identity, commit=True).error == Code.NONE
        for name, index in partitions:
            assert wire.write_marker(identity.bumped(), name, commit=False, partition=index) == Code.NONE
        other = prepare(wire, "other")
    with emulator_on(data_dir) as emulator, Wire(emulator.bootstrap_servers) as wire:
        assert (wire.describe("other").state, wire.describe("other").identity) == ("Ongoing", other)
        assert wire.describe("evil").state == "CompleteCommit"
        wire.wait_for_coordinator("group", GROUP)


@pytest.mark.parametrize("name", [STATES, OFFSETS])
@pytest.mark.parametrize(
    ("key", "value", "codec"),
    [
        (b"", b"", 0),
        (b"\0", b"junk", 0),
        (OLD_STATE_KEY, b"\0\1\2", 0),
        (OLD_STATE_KEY, b"\0\x09" + b"\0" * 40, 0),
        (OLD_STATE_KEY, b"\0\1" + b"\xff" * 60, 0),
        (b"\0\2\0\5group", b"\0\x63", 0),
        (b"\0\2\xff\xffgroup", b"\0\3", 0),
        (b"\0\0\0\1g\0\1t\0\0\0\0", b"\0", 0),
        (b"\0\3\0\1g", b"", 0),
        (b"\0\5\0\1g\0\1m", b"\0\0\xff\xff\xff\xff\xff", 0),
    ],
)
def test_the_admin_client_cannot_write_what_cannot_be_read(
    data_dir: Path, name: str, key: bytes, value: bytes, codec: int
) -> None:
    with emulator_on(data_dir) as emulator, Wire(emulator.bootstrap_servers) as wire:
        identity = prepare(wire, "other")
        for index in (0, 1):
            wire.produce_to(None, ((name, index), keyed(key, value, codec)), client_id=ADMIN)
    with emulator_on(data_dir) as emulator, Wire(emulator.bootstrap_servers) as wire:
        assert wire.describe("other").identity == identity
        assert wire.describe("other").state == "Ongoing"


@pytest.mark.parametrize("name", [STATES, OFFSETS])
def test_records_of_a_later_version_are_left_alone(data_dir: Path, name: str) -> None:
    with emulator_on(data_dir) as emulator, Wire(emulator.bootstrap_servers) as wire:
        prepare(wire, "other")
        codes = [wire.produce_to(None, ((name, index), keyed(LATER_KEY, b"?")), client_id=ADMIN)[0] for index in (0, 1)]
        assert codes == [Code.NONE] * 2
    with emulator_on(data_dir) as emulator, Wire(emulator.bootstrap_servers) as wire:
        assert wire.describe("other").state == "Ongoing"


def plant(emulator: Emulator, name: str, partition: int, key: bytes) -> int:
    """Put a record into the log past every check, as a damaged disk or another program could; return its offset."""
    log = emulator.cluster.topics[name].partitions[partition].log
    planted = build_batch([(key, b"\0\x63junk")], timestamp_ms=1_000)
    result = log.append(planted, now_ms=1_000, origin=AppendOrigin.COORDINATOR)
    assert result.error.value == 0
    return result.base_offset


@pytest.mark.parametrize(("name", "key"), [(STATES, OLD_STATE_KEY), (OFFSETS, b"\0\2\0\5group")])
def test_a_start_names_the_record_that_it_cannot_read(data_dir: Path, name: str, key: bytes) -> None:
    with emulator_on(data_dir) as emulator:
        offset = plant(emulator, name, 1, key)
    where = rf"{name}-1/0{{20}}\.log: the record at offset {offset} of {name}-1 cannot be read"
    for _ in range(2):
        with pytest.raises(StorageError, match=where):
            emulator_on(data_dir).start()
    command = [sys.executable, "-m", "dualwrite.broker_emulator", "--data-dir", str(data_dir)]
    for setting in ("transaction.state.log.num.partitions=2", "offsets.topic.num.partitions=2"):
        command += ["--config", setting]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"{name}-1" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("name", "key"), [(STATES, OLD_STATE_KEY), (OFFSETS, b"\0\2\0\5group")])
def test_a_new_coordinator_that_cannot_read_its_log_says_so_and_serves_the_rest(
    caplog: pytest.LogCaptureFixture, name: str, key: bytes
) -> None:
    ids = {partition_for(each, 2): each for each in "abcdefgh"}
    with emulator_on(None, nodes=2) as emulator:
        leader = emulator.cluster.topics[name].partitions[1].leader_id
        plant(emulator, name, 1, key)
        with caplog.at_level(logging.ERROR):
            emulator.crash_node(leader)
        (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert f"offset 0 of {name}-1" in line
        (survivor,) = emulator.living_nodes
        (endpoint,) = emulator.cluster.nodes[survivor].endpoints.values()
        with Wire(endpoint.address) as wire:
            errors = [
                wire.init(ids[index]).error if name == STATES else wire.offset_fetch(ids[index], "t")[0]
                for index in (0, 1)
            ]
            assert errors == [Code.NONE, Code.COORDINATOR_LOAD_IN_PROGRESS]
