"""`dualwrite spark phases` draws the sink's log of its batches, as bars and as a picture."""

from __future__ import annotations

import datetime as dt
import logging
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.driver.batch_lines import BatchLine, Outcome, batch_lines, labels
from spark_sink.driver.batch_log import log_batch, log_completed
from spark_sink.driver.finisher import CommitSummary, Tally
from spark_sink.driver.phases import PhaseTimes
from spark_sink.handoff import TaskOutcome, TaskResult
from spark_sink.store.rules import query_of_call
from spark_sink.store.tables import BatchInDoubt, BatchRow, BatchStatus
from tests.cli.conftest import Call, assert_one_line
from tests.cli.test_page import keys, section

SVG = "{http://www.w3.org/2000/svg}"
SPARKS_PREFIX = "26/11/24 11:44:59 INFO PythonRunner: 2026-11-24 11:44:59,637 INFO spark_sink: "

Times = tuple[int, int, int, int]


def line(sink: str, query: str, batch: int, times: Times, note: str = "") -> str:
    plan, write, decide, complete = times
    return (
        f"{SPARKS_PREFIX}sink {sink}, batch {batch} of {query}{note}: attempts=2 prepared=2 committed=2 repaired=0 "
        f"aborted=0 records=10 bytes=99 table_rows=0 plan_ms={plan} write_ms={write} decide_ms={decide} "
        f"complete_ms={complete}\n"
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of two sinks, among lines of others."""
    path = tmp_path / "driver.log"
    path.write_text(
        "26/11/24 11:44:58 ERROR something of Spark\n"
        + line("orders", "8b1a0e5c-6f0a", 0, (50, 700, 50, 200))
        + line("jobs", "job:2026-11-20", 0, (0, 30, 0, 0))
        + line("orders", "8b1a0e5c-6f0a", 1, (100, 200, 100, 100))
        + "sink orders, batch 2 of 8b1a0e5c-6f0a, which was decided 12.5 s before this plan: "
        "attempts=2 committed=2 repaired=0 records=5 table_rows=5 complete_ms=250\n"
        + line("orders", "8b1a0e5c-6f0a", 2, (0, 0, 0, 0), ", which was decided before")
    )
    return path


# ---- the lines ------------------------------------------------------------------------------------------------


def test_the_log_lines_of_the_sink_are_parsed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_sink")
    done = CommitSummary(True, 30, 2, 0, 1, 0, PhaseTimes(0.031, 2.5, 0.001, 0.012))
    log_batch("s", "q", 7, [TaskResult(TaskOutcome.PREPARED, 1, "q", 7, 0, "attempt", 10, 100)], done)
    log_batch("s", "job:a, b", 0, [TaskResult(TaskOutcome.SKIPPED, 1, "job:a, b", 0, 0, "attempt", 0, 0)], done)
    row = BatchRow("s", "q", 8, BatchStatus.COMMIT, 1, 4, 40, None, dt.datetime(2026, 11, 20), None, None)
    log_completed([BatchInDoubt(row, 61_000)], Tally(1, 0, 0, 0, {}, {}), 0.5, has_table=False)
    assert list(batch_lines(caplog.messages)) == [
        BatchLine("s", "q", 7, Outcome.COMMITTED, 10, (31, 2500, 1, 12)),
        BatchLine("s", "job:a, b", 0, Outcome.REPLAYED, 0, (31, 2500, 1, 12)),
        BatchLine("s", "q", 8, Outcome.COMPLETED_LATER, 40, (0, 0, 0, 500)),
    ]


@pytest.mark.parametrize(
    ("queries", "expected"),
    [
        (["a-6f0a-4c3b"] * 2, ["7", "7"]),
        (["a-6f0a-4c3b", "b-6f0a-4c3b", "job:2026-11-20"], ["a-6f0a-4/7", "b-6f0a-4/7", "2026-11-20"]),
        (["a-6f0a-4c3b", query_of_call("a-6f0a-4c3b", 2)], ["7", "7#2"]),
        (["a-6f0a-4c3b", query_of_call("b-6f0a-4c3b", 3)], ["a-6f0a-4/7", "b-6f0a-4/7#3"]),
    ],
)
def test_labels_name_the_query_and_the_call_where_they_differ(queries: list[str], expected: list[str]) -> None:
    assert labels([BatchLine("s", query, 7, Outcome.COMMITTED, 1, (1, 1, 1, 1)) for query in queries]) == expected


# ---- bars -----------------------------------------------------------------------------------------------------


def test_bars_are_in_proportion_to_the_longest_batch(log: Path, call: Call) -> None:
    done = call("spark", "phases", "--log", log, "--sink", "orders")
    assert done.code == 0
    head, columns, first, second, later, replayed, medians, _, legend = done.out.splitlines()
    assert (head, columns.split()) == (
        "sink orders",
        ["batch", "records", "plan", "write", "decide", "complete", "total"],
    )
    assert first.split()[:7] == ["0", "10", "50", "700", "50", "200", "1000"]
    assert medians.split() == ["median", "75", "450", "75", "150"]
    marks = dict(zip(("plan", "write", "decide", "complete"), "░▒█▓", strict=True))
    longest = sum(first.count(mark) for mark in marks.values())
    assert longest >= 30
    assert abs(first.count(marks["write"]) - 0.7 * longest) <= 1
    assert abs(sum(second.count(mark) for mark in marks.values()) - 0.5 * longest) <= 1
    assert abs(later.count(marks["complete"]) - 0.25 * longest) <= 1
    assert later.endswith("completed by a later plan")
    assert re.fullmatch(r" +2 +10 +0 +0 +0 +0 +0 +decided before", replayed)
    assert all(f"{mark} {phase}" in legend for phase, mark in marks.items())
    assert max(map(len, done.out.splitlines())) <= 120


def test_the_newest_batches_of_each_sink(log: Path, call: Call) -> None:
    done = call("spark", "phases", "--log", log, "--last", 1)
    assert [text for text in done.out.splitlines() if text.startswith("sink ")] == ["sink jobs", "sink orders"]
    assert done.out.count("2026-11-20") == 1
    assert done.out.count("decided before") == 1
    assert "completed by a later plan" not in done.out


def test_programs_get_json(log: Path, call: Call) -> None:
    document = call("spark", "phases", "--log", log, "--json").document
    batches = document["batches"]
    assert [each["sink"] for each in batches] == ["jobs", "orders", "orders", "orders", "orders"]
    assert [each["outcome"] for each in batches[1:]] == ["committed", "committed", "completed-later", "replayed"]
    assert batches[1]["write_ms"] == 700
    words = set(re.findall(r"`([\w-]+)`", section("dualwrite spark phases")))
    assert keys(document) | {each["outcome"] for each in batches} <= words


def test_a_log_without_batches(log: Path, call: Call) -> None:
    assert_one_line(
        call("spark", "phases", "--log", log, "--sink", "other"), 1, "no line of a batch of other; the sink"
    )
    log.write_text("nothing\n")
    assert_one_line(call("spark", "phases", "--log", log), 1, "the log has no line of a batch; the sink writes one")


def test_a_log_that_cannot_be_read(tmp_path: Path, call: Call) -> None:
    assert_one_line(call("spark", "phases", "--log", tmp_path / "none"), 2, "No such file or directory")


# ---- the picture ----------------------------------------------------------------------------------------------


def test_the_picture_has_a_column_for_each_batch(log: Path, call: Call, tmp_path: Path) -> None:
    picture = tmp_path / "phases.svg"
    done = call("spark", "phases", "--log", log, "--svg", picture)
    assert (done.code, done.out) == (0, "")
    root = ElementTree.fromstring(picture.read_text())
    jobs, orders = root.findall(f"{SVG}g")
    columns = [each for each in orders.findall(f"{SVG}g") if each.find(f"{SVG}title") is not None]
    assert [each.findtext(f"{SVG}title") for each in columns] == [
        "batch 0 of 8b1a0e5c-6f0a: plan 50 ms, write 700 ms, decide 50 ms, complete 200 ms",
        "batch 1 of 8b1a0e5c-6f0a: plan 100 ms, write 200 ms, decide 100 ms, complete 100 ms",
        "batch 2 of 8b1a0e5c-6f0a (completed-later): plan 0 ms, write 0 ms, decide 0 ms, complete 250 ms",
        "batch 2 of 8b1a0e5c-6f0a (replayed): plan 0 ms, write 0 ms, decide 0 ms, complete 0 ms",
    ]
    heights = [[float(bar.attrib["height"]) for bar in each.findall(f"{SVG}rect")] for each in columns]
    assert heights[3] == []
    per_ms = sum(heights[0]) / 1000
    for found, times in zip(heights[:2], ((50, 700, 50, 200), (100, 200, 100, 100)), strict=True):
        assert found == pytest.approx([each * per_ms for each in times], abs=0.2)
    assert heights[2] == pytest.approx([250 * per_ms], abs=0.2)
    assert "2026-11-20" in [each.text for each in jobs.findall(f"{SVG}text")]


@given(st.lists(st.tuples(*[st.integers(0, 10**7)] * 4), min_size=1, max_size=60))
def test_everything_is_inside_the_picture(batches: list[Times]) -> None:
    from dualwrite.cli.phases_picture import picture

    found = [BatchLine("<&>", "q", number, Outcome.COMMITTED, 1, times) for number, times in enumerate(batches)]
    root = ElementTree.fromstring(picture({"<&>": found}))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for each in root.iter(f"{SVG}rect"):
        x, y = float(each.attrib.get("x", 0)), float(each.attrib.get("y", 0))
        assert 0 <= x <= x + float(each.attrib["width"]) <= width
        assert 0 <= y <= y + float(each.attrib["height"]) <= height
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height
    assert 2 <= len(list(root.iter(f"{SVG}line"))) <= 12
