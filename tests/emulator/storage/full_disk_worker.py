"""Run in a mount namespace of its own: `python -m tests.emulator.storage.full_disk_worker DIRECTORY FSYNC`.

A broker fills a small disk, is killed, and is started again, first on the disk made read-only, then on a larger one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.record_batch import iter_records
from dualwrite.broker_emulator.log.segments import StorageError
from tests.emulator.api.raw_client import RawClient, plain_batch

SKIPPED = 77
"""The exit status where nothing can be mounted."""


def mount(directory: str, options: str, *, again: bool = True) -> None:
    """Mount a disk in memory, or change it."""
    how = ["mount", "-t", "tmpfs", "-o", f"remount,{options}" if again else options, "none", directory]
    done = subprocess.run(how, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr)
        sys.exit(SKIPPED)


def config(fsync: str) -> BrokerConfig:
    return BrokerConfig(
        fsync=Fsync(fsync),
        transaction_state_log_num_partitions=1,
        offsets_topic_num_partitions=1,
        log_segment_bytes=100_000,
    )


def fill(directory: str, fsync: str, acknowledged: Path) -> None:
    """Produce until the disk is full, go on for a while, and die as by SIGKILL."""
    with Emulator(topics={"t": 1}, data_dir=directory, config=config(fsync)) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        accepted, refused = [], 0
        number = 0
        while refused < 20:
            number += 1
            value = b"%d " % number * (100 if refused else 2000)
            answer = client.produce("t", plain_batch(value))
            if answer.error_code is ErrorCode.none:
                accepted.append(number)
            else:
                assert answer.error_code is ErrorCode.kafka_storage_error, answer
                refused += 1
        acknowledged.write_text(" ".join(map(str, accepted)))
        os._exit(0)


def in_a_process(work: Callable[[], None]) -> None:
    """Run a function in a process that ends with it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status


def check(directory: str, fsync: str, expected: list[int]) -> None:
    """Start, compare the contents, and go on."""
    with Emulator(data_dir=directory, config=config(fsync)) as emulator:
        batches = emulator.log("t").batches
        found = [int((record.value or b"").split()[0]) for batch in batches for record in iter_records(batch)]
        assert found == expected, (found[-5:], expected[-5:])
        assert RawClient(emulator.bootstrap_servers).produce("t", plain_batch(b"0")).error_code is ErrorCode.none


def main(directory: str, fsync: str) -> None:
    """Run all phases."""
    mount(directory, "size=1m", again=False)
    acknowledged = Path(directory).with_name("acknowledged")
    in_a_process(lambda: fill(directory, fsync, acknowledged))
    expected = [int(number) for number in acknowledged.read_text().split()]
    assert len(expected) > 50
    mount(directory, "ro")
    with pytest.raises(StorageError, match="Read-only file system"):
        Emulator(data_dir=directory, config=config(fsync)).start()
    mount(directory, "rw,size=4m")
    check(directory, fsync, expected)
    print("kept", len(expected))


if __name__ == "__main__":
    main(*sys.argv[1:])
