"""A compaction that a crash interrupted and whose files were then damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dualwrite.broker_emulator.configs.effective import with_topic_configs
from dualwrite.broker_emulator.log import disk_log
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.segments import StorageError
from tests.emulator.log.disk import contents, open_log
from tests.emulator.log.test_cleaner import put

FIRST = f"{0:020d}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a log whose compaction died after its decision, the compaction file."""
    folder = tmp_path / "orders-0"
    log = open_log(folder, segment_bytes=150)
    for number in range(8):
        put(log, ("k", str(number)), ("other" if number % 2 else "another", str(number)))
    policy = {"cleanup.policy": "compact"}
    log.configure(with_topic_configs(LogConfig(segment_bytes=500, min_cleanable_dirty_ratio=0.0), policy))
    log.close()
    with monkeypatch.context() as patched:
        patched.setattr(disk_log, "compacted_bases", lambda _: [])
        killed = tmp_path / "killed"
        for _ in log.compact(2**62):
            if (folder / "compaction.json").exists():
                break
        shutil.copytree(folder, killed)
    assert (killed / "compaction.json").read_bytes().count(b",") >= 1  # it replaces several segments
    return killed


def newest(folder: Path) -> dict[bytes, bytes]:
    return {key or b"": value or b"" for _, key, value in contents(open_log(folder))}


EXPECTED = {b"k": b"7", b"other": b"7", b"another": b"6"}


def test_a_restart_finishes_an_interrupted_compaction(folder: Path) -> None:
    assert newest(folder) == EXPECTED
    assert not list(folder.glob("*.cleaned"))
    assert not (folder / "compaction.json").exists()


@pytest.mark.parametrize("name", ["compaction.json", f"{FIRST}.log.cleaned", f"{FIRST}.index.cleaned"])
def test_a_missing_file_of_a_compaction_does_no_harm(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert newest(folder) == EXPECTED
    assert newest(folder) == EXPECTED


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[:-4],
    "flipped": lambda data: data[:1] + bytes([data[1] ^ 1]) + data[2:],
    "something else": lambda data: b'{"a":1}',
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_compaction_file_that_is_damaged_deletes_nothing(folder: Path, damage: str) -> None:
    path = folder / "compaction.json"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    before = sorted(folder.iterdir())
    for _ in range(2):
        with pytest.raises(StorageError, match=r"compaction\.json is damaged: which segments"):
            open_log(folder)
        assert sorted(folder.iterdir()) == before
