"""Each file of a data directory, damaged in each way: nothing is lost silently, and nothing foreign is deleted."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.log.segments import StorageError
from tests.emulator.storage.directories import CONFIG, DAMAGE, FOREIGN, Prepared, judge, prepare

REFUSED, SEEN, HARMLESS = "refused", "readers see it", ""
"""A start is refused; a reader gets an error instead of the records; everything is there in spite of it."""

NOTICED = {
    "metadata.journal": REFUSED,
    "log-ends": HARMLESS,
    ".clean-shutdown": HARMLESS,
    ".lock": HARMLESS,
    "t-*/*.log": SEEN,
    "trimmed-*/*.log": SEEN,
    "__*/*.log": REFUSED,
    "*/*.index": HARMLESS,
    "*/*.snapshot": HARMLESS,
    "*/log-start-offset": HARMLESS,
}
"""The effect of a flipped byte, by pattern of files. For user records, see `expected_kind`."""

FLIPPED = tuple(damage for damage in DAMAGE if damage.startswith("flipped"))


def expected_kind(end: str, pattern: str, damage: str) -> str:
    """Return the effect of a damage.

    Every start misses deleted records. Flipped ones are missed only by a start that reads them: the one after a kill,
    as no index covers them yet.
    """
    if NOTICED[pattern] == SEEN and (end == "killed" or damage not in FLIPPED):
        return REFUSED
    return NOTICED[pattern]


FEW = [
    ("metadata.journal", "removed"),
    ("metadata.journal", "emptied"),
    ("metadata.journal", "without the last unit"),
    ("metadata.journal", "flipped at the last byte"),
    ("log-ends", "removed"),
    ("t-*/*.log", "removed"),
    ("t-*/*.log", "without the last unit"),
    ("t-*/*.log", "flipped at the first byte"),
    ("trimmed-*/*.log", "flipped at the last byte"),
    ("*/log-start-offset", "removed"),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prepared]:
    return prepare(tmp_path_factory.mktemp("prepared"))


def check(prepared: Prepared, end: str, pattern: str, damage: str, folder: Path) -> int:
    """Damage each file of a pattern on its own; return how many there are."""
    files = sorted(path.relative_to(prepared.path) for path in prepared.path.glob(pattern))
    files = [name for name in files if str(name) not in FOREIGN]
    damaged = 0
    for name in files:
        path = prepared.copy(folder / "data")
        if damage == "removed" or (path / name).stat().st_size:
            DAMAGE[damage](path / name)
            noticed = judge(path, prepared.expected)
            kind = noticed.partition(":")[0]
            assert kind == expected_kind(end, pattern, damage), f"{name}, {damage}: {noticed or 'not noticed'}"
            damaged += 1
        shutil.rmtree(path)
    return damaged


@pytest.mark.parametrize("end", ["killed", "stopped"])
@pytest.mark.parametrize(("pattern", "damage"), FEW)
def test_one_damage_has_the_expected_effect(
    prepared: dict[str, Prepared], end: str, pattern: str, damage: str, tmp_path: Path
) -> None:
    assert check(prepared[end], end, pattern, damage, tmp_path)


@pytest.mark.parametrize("end", ["killed", "stopped"])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("pattern", NOTICED)
def test_every_damage_to_every_file(
    prepared: dict[str, Prepared], end: str, pattern: str, damage: str, tmp_path: Path
) -> None:
    check(prepared[end], end, pattern, damage, tmp_path)


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_every_file_has_its_pattern(prepared: dict[str, Prepared], end: str) -> None:
    root = prepared[end].path
    matched = {path for pattern in NOTICED for path in root.glob(pattern)}
    every = {path for path in root.rglob("*") if path.is_file() and str(path.relative_to(root)) not in FOREIGN}
    assert every <= matched


@pytest.mark.parametrize("end", ["killed", "stopped"])
@pytest.mark.parametrize("name", ["t-0", "t-1", "trimmed-0", "__transaction_state-0", "__consumer_offsets-0"])
@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_missing_folder_is_reported(
    prepared: dict[str, Prepared], end: str, name: str, is_emptied: bool, tmp_path: Path
) -> None:
    path = prepared[end].copy(tmp_path / "data")
    shutil.rmtree(path / name)
    if is_emptied:
        (path / name).mkdir()
    with pytest.raises(StorageError, match=rf"{name} .*the records up to offset \d+ were acknowledged and are missing"):
        Emulator(data_dir=path, config=CONFIG).start()


def test_the_loss_of_a_topic_can_be_accepted(prepared: dict[str, Prepared], tmp_path: Path) -> None:
    path = prepared["killed"].copy(tmp_path / "data")
    shutil.rmtree(path / "t-1")
    (path / "log-ends").unlink()
    with Emulator(data_dir=path, config=CONFIG) as emulator:
        assert emulator.log("t", 1).log_end_offset == 0
        assert emulator.log("t", 0).log_end_offset > 0


def test_a_folder_of_another_is_named_and_never_becomes_a_partition(
    prepared: dict[str, Prepared], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = prepared["stopped"].copy(tmp_path / "data")
    shutil.copytree(path / "t-0", path / "saved-1")
    with caplog.at_level(logging.WARNING), Emulator(data_dir=path, config=CONFIG) as emulator:
        assert "belong to no topic; leaving them alone: backup-2024, saved-1" in caplog.text
        with pytest.raises(StorageError, match="saved-1 exists, and belongs to no topic: move it away"):
            emulator.create_topic("saved", 2)
        emulator.create_topic("saved", 1)
        with pytest.raises(StorageError, match="saved-1 exists, and belongs to no topic: move it away"):
            emulator.create_partitions("saved", 2)
    assert (path / "saved-1" / "00000000000000000000.log").exists()


def test_without_the_ends_a_folder_like_a_partition_is_suspicious(
    prepared: dict[str, Prepared], tmp_path: Path
) -> None:
    path = prepared["stopped"].copy(tmp_path / "data")
    shutil.copytree(path / "t-0", path / "saved-1")
    (path / "log-ends").unlink()
    with pytest.raises(StorageError, match=r"saved-1 has records, and .*metadata\.journal knows no such partition"):
        Emulator(data_dir=path, config=CONFIG).start()


def test_a_journal_older_than_the_data_is_refused(prepared: dict[str, Prepared], tmp_path: Path) -> None:
    path = prepared["stopped"].copy(tmp_path / "data")
    old = (path / "metadata.journal").read_bytes()
    with Emulator(data_dir=path, config=CONFIG) as emulator:
        emulator.create_topic("newer")
    (path / "metadata.journal").write_bytes(old)
    with pytest.raises(StorageError, match=r"metadata\.journal has lost its end: .* generation 1, of .* generation 2"):
        Emulator(data_dir=path, config=CONFIG).start()
