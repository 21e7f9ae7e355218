"""`dualwrite spark ...` and tables of files: owed files are shown, published, acknowledged; dead files are deleted."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Emulator
from spark_sink.lake.files import file_name
from spark_sink.pause_points import PausePoint
from tests.cli.conftest import Call
from tests.cli.test_page import keys, section
from tests.cli.test_spark_cli import World
from tests.spark.lake_tables import KINDS, LakeTable

GC_KEYS = {"applied", "keep", "forgotten", "dropped", "files", "unseen"}
REPORT_KEYS = {"sink", "query", "batch", "location", "rows", "action", "changed", "left", "age_ms", "error", "advice"}


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    return KINDS[request.param](tmp_path)


@pytest.fixture
def world(emulator: Emulator, tmp_path: Path, table: LakeTable) -> Iterator[World]:
    made = World(sa.make_url(f"sqlite:///{tmp_path / 'store.db'}"), emulator)
    made.write("s", 0, [["a"], ["b"]], die_at=PausePoint.BEFORE_ADDITION, **options(table))
    yield made
    made.engine.dispose()


def options(table: LakeTable) -> dict[str, Any]:
    return {**table.options, "dual.columns": "value"}


def rows(table: LakeTable) -> list[str]:
    return sorted(table.read()["value"].to_pylist())


def test_owed_files_are_shown_and_published(world: World, table: LakeTable, call: Call) -> None:
    shown = call("spark", "status", *world.reach)
    assert (shown.code, f"owed: batch 0 of query, 2 rows, to {table.place.named}" in shown.out) == (0, True)
    (view,) = call("spark", "status", *world.reach, "--json").document["sinks"]
    assert [(batch["batch"], batch["rows"], batch["detail"]) for batch in view["owed"]] == [(0, 2, None)]

    recover = ("spark", "recover", *world.reach, "--json", "--min-age", 0)
    young = call("spark", "recover", *world.reach, "--apply", "--json")
    assert [(owed["action"], owed["changed"]) for owed in young.document["owed"]] == [("young", False)]
    dry = call(*recover)
    assert [(owed["action"], owed["changed"]) for owed in dry.document["owed"]] == [("publish", False)]
    assert (dry.code, rows(table)) == (1, [])
    done = call(*recover, "--apply")
    assert keys(done.document) <= set(re.findall(r"`(\w+)`", section("dualwrite spark recover")))
    assert done.document["owed"][0].keys() == REPORT_KEYS
    assert [(owed["action"], owed["changed"]) for owed in done.document["owed"]] == [("publish", True)]
    assert (done.code, rows(table), world.values()) == (0, ["a", "b"], ["a", "b"])
    assert call(*recover, "--apply").document["owed"] == []
    world.write("s", 1, [["c"]], **options(table))
    assert rows(table) == ["a", "b", "c"]


def test_a_missing_file_is_shown_until_it_is_acknowledged(world: World, table: LakeTable, call: Call) -> None:
    (batch,) = world.store.lake.owed("s")
    Path(table.directory, file_name(world.store.lake.owner("s"), batch.files[0].attempt_id)).unlink()
    recover = ("spark", "recover", *world.reach, "--apply", "--min-age", 0)
    failed = call(*recover)
    assert failed.code == 1
    assert "is gone" in failed.out
    assert "dualwrite spark acknowledge-lost --sink s --query query --batch 0" in failed.out
    shown = call("spark", "status", *world.reach)
    assert shown.code == 1
    assert "to do: restore the files" in shown.out
    acknowledge = ("spark", "acknowledge-lost", *world.store_options, "--sink", "s", "--query", "query", "--batch", 0)
    assert call(*acknowledge).code == 0
    assert call(*recover).code == 0
    assert len(rows(table)) == 1


def test_without_the_library_the_extra_is_named(
    world: World, table: LakeTable, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, {"Delta": "deltalake", "Iceberg": "pyiceberg"}[table.kind], None)
        failed = call("spark", "recover", *world.reach, "--apply", "--min-age", 0)
    assert (failed.code, f"dualwrite[spark-{table.kind.lower()}]" in failed.out) == (1, True)
    assert call("spark", "recover", *world.reach, "--apply", "--min-age", 0).code == 0
    assert rows(table) == ["a", "b"]


def test_files_of_given_up_attempts_are_deleted(world: World, table: LakeTable, call: Call) -> None:
    world.write("s", 1, [["c"]], die_at=PausePoint.COMMIT_START, **options(table))
    assert len(table.files()) == 3
    gc = ("spark", "gc", *world.store_options, "--json")
    assert call(*gc, "--apply").document["files"] == {"s": 0}
    call("spark", "recover", *world.reach, "--condemn", "s", "--apply", "--min-age", 0)
    assert (rows(table), len(table.files())) == (["a", "b"], 2)
    (aborted,) = (each for each in world.store.attempts("s") if each.batch_id == 1)
    late = Path(table.directory, file_name(world.store.lake.owner("s"), aborted.attempt_id))
    late.write_bytes(b"written by a task that woke up late")
    assert call(*gc).document["files"] == {"s": 1}
    assert call(*gc, "--apply").document["files"] == {"s": 1}
    assert len(table.files()) == 2


def test_unreferenced_files_are_deleted_when_they_are_old(world: World, table: LakeTable, call: Call) -> None:
    call("spark", "recover", *world.reach, "--apply", "--min-age", 0)
    stray = Path(table.directory, file_name(world.store.lake.owner("s"), "0" * 32))
    stray.write_bytes(b"as a killed task leaves it")
    gc = ("spark", "gc", *world.store_options, "--json")
    assert call(*gc).document["files"] == {"s": 0}
    old = time.time() - 8 * 86_400
    os.utime(stray, (old, old))
    assert call(*gc, "--file-age", 9).document["files"] == {"s": 0}
    dry = call(*gc)
    assert (dry.document["files"], dry.document.keys()) == ({"s": 1}, GC_KEYS)
    assert keys(dry.document) - {"s"} <= set(re.findall(r"`(\w+)`", section("dualwrite spark gc")))
    away = table.root.rename(table.root.with_suffix(".away"))
    table.directory.mkdir(parents=True)
    moved = stray.parent / stray.name
    moved.write_bytes(b"")
    os.utime(moved, (old, old))
    unseen = call(*gc, "--apply")
    assert (unseen.code, len(unseen.document["unseen"]), moved.exists()) == (1, 1, True)
    shutil.rmtree(table.root)
    away.rename(table.root)
    assert call(*gc, "--apply").document["files"] == {"s": 1}
    assert (stray.exists(), rows(table)) == (False, ["a", "b"])


def test_files_that_a_table_cannot_take_are_copied_and_given_up(
    world: World, table: LakeTable, call: Call, tmp_path: Path
) -> None:
    table.retype()
    batch = (*world.store_options, "--sink", "s", "--query", "query", "--batch", 0)
    failed = call("spark", "recover", *world.reach, "--apply", "--min-age", 0)
    assert (failed.code, "dualwrite spark export-files --sink s --query query --batch 0" in failed.out) == (1, True)
    done = call("spark", "export-files", *batch, "--to", tmp_path / "copies", "--json")
    copies = [Path(each["file"]) for each in done.document["copies"]]
    assert sorted(value for each in copies for value in pq.read_table(each)["value"].to_pylist()) == ["a", "b"]
    assert call("spark", "acknowledge-lost", *batch).code == 1
    assert call("spark", "acknowledge-lost", *batch, "--owed").code == 0
    assert call("spark", "export-files", *batch, "--to", tmp_path / "copies").code == 1
    assert call("spark", "recover", *world.reach, "--apply", "--min-age", 0).code == 0
