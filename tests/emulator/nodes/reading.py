"""The view of a read_committed consumer, over the wire and straight from the leaders, without any client library."""

from __future__ import annotations

from dualwrite.broker_emulator import Emulator
from tests.emulator.api.raw_client import RawClient
from tests.emulator.log.writers import read_committed_rule


def read_committed(emulator: Emulator, topic: str, partitions: int) -> list[bytes]:
    """The values below the last stable offset of every partition, without those of aborted transactions."""
    values: list[bytes] = []
    for index in range(partitions):
        values += [value for _, value in read_partition(emulator, topic, index)]
    return sorted(values)


def read_partition(emulator: Emulator, topic: str, index: int) -> list[tuple[int, bytes]]:
    """Offsets and values of one partition, in one Fetch of read_committed."""
    address = emulator.bootstrap_servers.split(",")[emulator.log(topic, index).leader_id]
    with RawClient(address) as client:
        read = client.fetch(topic, partition=index, min_bytes=0, max_bytes=1 << 24, partition_max_bytes=1 << 24)
    assert read.error_code == 0
    aborted = [(row.producer_id, row.first_offset) for row in read.aborted_transactions]
    return read_committed_rule(bytes(read.records), aborted, 0)
