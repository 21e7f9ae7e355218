"""The sink's use of a checkpoint, and its behaviour without one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_sink.driver.checkpoint import Checkpoint, find_checkpoint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write a checkpoint inside batch 1, with Spark's additional files."""
    directory = tmp_path / "check point"
    for log in ("offsets", "commits"):
        (directory / log).mkdir(parents=True)
        (directory / log / ".0.crc").touch()
    (directory / "metadata").write_text('{"id":"the-query"}')
    (directory / "offsets" / "0").write_text("v1\nzero")
    (directory / "offsets" / "1").write_text("v1\none")
    (directory / "commits" / "0").write_text("v1\n{}")
    return directory


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_local_directory(directory: Path, scheme: str) -> None:
    checkpoint = Checkpoint(f"{scheme}{directory}/")
    assert checkpoint.query_id() == "the-query"
    assert checkpoint.offsets_digest(0) != checkpoint.offsets_digest(1) is not None
    assert checkpoint.offsets_digest(2) is None


def test_the_digest_is_of_the_content(directory: Path) -> None:
    before = Checkpoint(str(directory)).offsets_digest(1)
    assert Checkpoint(str(directory)).offsets_digest(1) == before
    (directory / "offsets" / "1").write_text("v1\nuno")
    assert Checkpoint(str(directory)).offsets_digest(1) != before


def test_whether_a_batch_is_under_way(directory: Path) -> None:
    checkpoint = Checkpoint(str(directory))
    assert checkpoint.is_inside_batch() is True
    (directory / "commits" / "1").touch()
    assert checkpoint.is_inside_batch() is False


def test_before_the_first_batch_there_is_no_commit_log(directory: Path) -> None:
    for file in (directory / "commits").iterdir():
        file.unlink()
    (directory / "commits").rmdir()
    assert Checkpoint(str(directory)).is_inside_batch() is True
    (directory / "commits").touch()
    assert Checkpoint(str(directory)).is_inside_batch() is None, "it cannot be listed"


@pytest.mark.parametrize("location", [None, "/not/here", "hdfs://nowhere/checkpoint", "s3a://bucket/checkpoint"])
def test_an_unreadable_checkpoint_gives_no_digest(location: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)  # as if they were not installed
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    checkpoint = Checkpoint(location)
    assert checkpoint.query_id() is None
    assert checkpoint.offsets_digest(0) is None
    assert checkpoint.is_inside_batch() is None


def test_foreign_metadata_gives_no_query_id(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    (directory / "metadata").write_text("{}")
    assert Checkpoint(str(directory)).query_id() is None
    assert "does not have the content that Spark writes" in caplog.text


class Bucket:
    """A file system like those of fsspec: it caches its listings until the cache is emptied."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._listed: dict[str, list[str]] = {}

    def invalidate_cache(self) -> None:
        self._listed.clear()

    def cat_file(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def ls(self, name: str, detail: bool) -> list[str]:
        assert not detail
        return self._listed.setdefault(name, [f"{name}/{each.name}" for each in (self._directory / name).iterdir()])


def test_another_file_system_through_fsspec(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(directory)
    core = SimpleNamespace(url_to_fs=lambda url: (bucket, url.removeprefix("s3a://bucket/")))
    monkeypatch.setitem(sys.modules, "fsspec.core", core)
    checkpoint = Checkpoint("s3a://bucket")
    assert checkpoint.query_id() == "the-query"
    assert checkpoint.offsets_digest(1) == Checkpoint(str(directory)).offsets_digest(1)
    assert checkpoint.is_inside_batch() is True
    (directory / "commits" / "1").touch()
    assert checkpoint.is_inside_batch() is False


def test_where_spark_keeps_it(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    directory.rename(root / "named")
    found = str(root / "named")
    assert find_checkpoint(found, None, None, "another").location == found, "the option comes first"
    assert find_checkpoint(None, f"{root}/", "named", "the-query").location == found
    assert find_checkpoint(None, str(root), None, "the-query").location == found, "without a name it is random"
    assert find_checkpoint(None, str(root), "named", "another").location is None, "a query of this name that is over"
    assert find_checkpoint(None, str(root), "unnamed", "the-query").location is None
    assert find_checkpoint(None, "/not/here", None, "the-query").location is None
    monkeypatch.setattr("tempfile.tempdir", str(root))
    assert find_checkpoint(None, None, None, "the-query").location is None
    (root / "named").rename(root / "temporary-1")
    assert find_checkpoint(None, None, None, "the-query").location == str(root / "temporary-1")


def test_another_file_system_through_pyarrow(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.fs as arrow

    def from_uri(uri: str) -> tuple[arrow.FileSystem, str]:
        assert uri == "s3://a-bucket/", "the name that pyarrow has for it"
        return arrow.SubTreeFileSystem(str(directory.parent.parent), arrow.LocalFileSystem()), directory.parent.name

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    monkeypatch.setattr("pyarrow.fs.FileSystem", SimpleNamespace(from_uri=from_uri))
    checkpoint = Checkpoint(f"s3a://a-bucket/{directory.name}/")
    assert checkpoint.query_id() == "the-query"
    assert checkpoint.offsets_digest(1) == Checkpoint(str(directory)).offsets_digest(1)
    assert checkpoint.offsets_digest(2) is None
    assert checkpoint.is_inside_batch() is True
