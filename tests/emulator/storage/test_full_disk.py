"""A disk that is full, or read-only: acknowledged records stay, and refused ones leave nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.log.segments import StorageError
from tests.emulator.api.raw_client import RawClient, plain_batch
from tests.emulator.storage.directories import CONFIG, copy_as_killed
from tests.emulator.storage.full_disk_worker import SKIPPED
from tests.emulator.test_data_directory import values


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_a_real_disk_that_is_full_and_then_read_only(fsync: str, tmp_path: Path) -> None:
    directory = tmp_path / "disk"
    directory.mkdir()
    worker = [sys.executable, "-m", "tests.emulator.storage.full_disk_worker", str(directory), fsync]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    done = subprocess.run(["unshare", "-rm", *worker], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == SKIPPED or "unshare failed" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip(f"no disk can be mounted here: {done.stdout} {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kept ")


class FailingWrites:
    """Lets some writes fail as on a full disk, after a part of the data."""

    def __init__(self, first: int, count: int) -> None:
        self.made = 0
        self._failing = range(first, first + count)
        self._write = os.pwrite

    def pwrite(self, file: int, data: bytes, offset: int) -> int:
        self.made += 1
        if self.made not in self._failing:
            return self._write(file, data, offset)
        self._write(file, data[: len(data) // 2], offset)
        raise OSError(28, "No space left on device")


def work(emulator: Emulator) -> tuple[dict[str, list[bytes]], set[str]]:
    """Create topics and produce to them; return the acknowledged records of each topic, and the refused ones."""
    acknowledged: dict[str, list[bytes]] = {"t": []}
    refused = set()
    with RawClient(emulator.bootstrap_servers) as client:
        for number in range(12):
            for topic in acknowledged:
                value = b"%d" % number * 50
                if client.produce(topic, plain_batch(value)).error_code is ErrorCode.none:
                    acknowledged[topic].append(value)
            if number % 4 == 1:
                try:
                    emulator.create_topic(f"topic-{number}")
                    acknowledged[f"topic-{number}"] = []
                except StorageError:
                    refused.add(f"topic-{number}")
    return acknowledged, refused


@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize("first", range(1, 34, 2))
def test_the_disk_is_full_from_any_write_on(
    first: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Emulator(topics={"t": 1}, data_dir=tmp_path / "data", config=CONFIG) as emulator:
        failing = FailingWrites(first, count)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", failing.pwrite)
            acknowledged, refused = work(emulator)
        assert failing.made >= first
        copy_as_killed(tmp_path / "data", tmp_path / "killed")
    with Emulator(data_dir=tmp_path / "killed", config=CONFIG) as emulator:
        for topic, expected in acknowledged.items():
            assert values(emulator, topic) == expected
        assert not refused & set(emulator.call_in_loop(lambda: list(emulator.cluster.topics)))
        emulator.create_topic("after")
