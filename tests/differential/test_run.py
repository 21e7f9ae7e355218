"""A long run: processes that end, its output, and its exit status."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from tests.differential.__main__ import play
from tests.differential.explained import EXPLANATIONS, explanation_of
from tests.differential.logs import INTERNAL_PARTITIONS
from tests.differential.report import Report
from tests.differential.steps import Step
from tests.differential.workers import Addresses, GivenUpError, Order, Player, Result, played
from tests.interop.differences import DIFFERENCES
from tests.interop.wire import wait_until

NOWHERE = "127.0.0.1:1"
SEEDS = [f"7:{number}" for number in range(6)]


CONFIG = BrokerConfig(
    profile=Profile.KAFKA_4_3,
    transaction_state_log_num_partitions=INTERNAL_PARTITIONS,
    offsets_topic_num_partitions=INTERNAL_PARTITIONS,
)


@contextmanager
def two(other: BrokerConfig = CONFIG) -> Iterator[Addresses]:
    """Two emulators; the second one may have other settings."""
    with Emulator(config=CONFIG) as one, Emulator(config=other) as another:
        yield one.bootstrap_servers, another.bootstrap_servers


def test_a_player_that_is_killed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sequence is played by another one, and the others go on."""
    players: list[Player] = []
    mended: list[int] = []

    class KilledAtFirst(Player):
        def assign(self, order: Order) -> None:
            super().assign(order)
            if not players:
                os.kill(self.pid, signal.SIGKILL)
            players.append(self)

    monkeypatch.setattr("tests.differential.workers.Player", KilledAtFirst)
    with two() as addresses:
        results = list(played(addresses, SEEDS, 2, Order, lambda: mended.append(1)))
    failed = [result for result in results if result.failure is not None]
    assert [(result.seed, result.is_given_up) for result in failed] == [("7:0", False)]
    assert Counter(result.seed for result in results) == Counter([*SEEDS, "7:0"])
    assert mended == [1]


def test_a_run_in_which_every_process_fails_is_given_up() -> None:
    with pytest.raises(GivenUpError, match="11 processes on end have failed"):
        list(played((NOWHERE, NOWHERE), (f"7:{number}" for number in range(1000)), 1, Order, lambda: None))


def options(sequences: int, shrink: int = 1) -> argparse.Namespace:
    return argparse.Namespace(seed=7, first=0, sequences=sequences, seconds=0, workers=2, shrink=shrink)


def test_a_run_without_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    with two() as addresses:
        assert play(options(8), addresses, lambda: None) == 0
    assert "seed 7: 8 sequences in" in capsys.readouterr().out


def test_a_run_goes_on_after_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    with two(replace(CONFIG, transaction_max_timeout_ms=1_000)) as addresses:
        assert play(options(12), addresses, lambda: None) == 1
    printed = capsys.readouterr().out
    assert "seed 7: 12 sequences in" in printed
    counts = re.findall(r"^ +(\d+) init_producer_id.error_code 0 / 50 \(7:", printed, re.MULTILINE)
    assert [int(times) > 1 for times in counts] == [True]


def test_what_is_explained_is_on_the_page_of_differences() -> None:
    assert {each.row for each in EXPLANATIONS} <= {row for rows in DIFFERENCES.values() for row in rows}


def test_a_difference_is_explained_only_in_its_own_sequences() -> None:
    about = "describe_groups.groups.error_code 0 / 69"
    commit = Step("offset_commit", 9, {"group": "g", "metadata": "long"})
    describe = Step("describe_groups", 6, {"group": "g"})
    assert explanation_of(about, [commit, describe]) == "a group whose first commit has no valid offset"
    assert explanation_of(about, [describe]) is None
    assert explanation_of("describe_groups.groups.error_code 69 / 0", [commit, describe]) is None


def test_what_is_explained_fails_no_run() -> None:
    report = Report(seed=7, wanted=1, most_shrunk=1)
    report.add(Result("7:0", explained={"a row": 1}))
    assert report.status == 0
    assert "     1 a row (on the page of differences)" in report.summary()


PARENT = """
import subprocess, sys, time
from pathlib import Path
from tests.differential.guard import Guard
from tests.differential.workers import Player
server = subprocess.Popen(["sleep", "600"])
with Guard() as guard:
    guard.watch(server.pid, Path(sys.argv[1]))
    print(server.pid, Player(("127.0.0.1:1", "127.0.0.1:1")).pid, flush=True)
    time.sleep(600)
"""


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(files)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert [is_running(pid) for pid in pids] == [True, True]
    parent.kill()
    parent.communicate()
    wait_until(lambda: not any(is_running(pid) for pid in pids) and not files.exists(), 60)


def is_running(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE, text=True, check=False)
    return listed.stdout.strip()[:1] not in ("", "Z")
