"""Clients' access to the coordinators' topics, and coordinators that meet unreadable records."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from dualwrite.broker_emulator import BrokerConfig, Emulator
from tests.interop.wire import GROUP, Code, Identity, Wire, record_batch

STATES, OFFSETS = "__transaction_state", "__consumer_offsets"
CONFIG = BrokerConfig(transaction_state_log_num_partitions=2, offsets_topic_num_partitions=2)
ADMIN = "__admin_client"
OLD_STATE_KEY = b"\0\0\0\1x"


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
    """The partitions are added before the writes are refused, so coordinators must ignore the markers."""
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
def test_the_admin_client_cannot_write_unreadable_records(
    data_dir: Path, name: str, key: bytes, value: bytes, codec: int
) -> None:
    with emulator_on(data_dir) as emulator, Wire(emulator.bootstrap_servers) as wire:
        identity = prepare(wire, "other")
        for index in (0, 1):
            wire.produce_to(None, ((name, index), keyed(key, value, codec)), client_id=ADMIN)
    with emulator_on(data_dir) as emulator, Wire(emulator.bootstrap_servers) as wire:
        assert wire.describe("other").identity == identity
        assert wire.describe("other").state == "Ongoing"
