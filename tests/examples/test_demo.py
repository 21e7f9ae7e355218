"""The demo itself, small: its output, and its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.testing.postgres import URL_VARIABLE, PostgresServer
from examples.flights.__main__ import main
from examples.flights.kill_plan import most_kills
from tests.support.databases import unique


def run_demo(server: PostgresServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.flights", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={
            **os.environ,
            URL_VARIABLE: server.url.render_as_string(hide_password=False),
            "COLUMNS": "120",
        },
        cwd=Path(__file__).parents[2],
    )


def cells(output: str, row: str) -> list[str]:
    """Return the numbers in the line of the table that starts with `row`."""
    (line,) = [line for line in output.splitlines() if line.strip(" │┃").startswith(row)]
    return [cell.strip() for cell in line.strip(" │").split("│")[1:]]


def test_both_sides_agree_after_every_kill_and_those_of_the_naive_writer_do_not(
    postgres_server: PostgresServer,
) -> None:
    done = run_demo(postgres_server, "--rows", "600", "--kills", "4", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cells(done.stdout, "rows in the table") == ["600", "600"]
    assert cells(done.stdout, "records in the topic")[0] == "600"
    assert cells(done.stdout, "kills") == ["4", "4"]
    assert int(cells(done.stdout, "transactions rolled forward")[0]) >= 1
    assert int(cells(done.stdout, "transactions rolled back")[0]) >= 1
    ours, naive = cells(done.stdout, "divergences")
    assert ours == "0"
    assert int(naive) >= 20  # at least the group that was committed and never sent


def test_a_worker_is_killed_at_every_pause_point(postgres_server: PostgresServer) -> None:
    """As by `make demo`, whose plan has each of them once before it has one twice."""
    kills = str(len(PausePoint))
    done = run_demo(postgres_server, "--rows", "600", "--kills", kills, "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cells(done.stdout, "kills") == [kills, kills]
    assert cells(done.stdout, "divergences")[0] == "0"


def test_a_record_that_does_not_belong_there_gives_exit_status_1(
    postgres_server: PostgresServer, emulator: Emulator
) -> None:
    topic = unique("tampered")
    emulator.create_topic(topic, partitions=2)
    stranger = Producer({"bootstrap.servers": emulator.bootstrap_servers})
    stranger.produce(topic, key="x", value='{"event": 3}')
    assert stranger.flush(10) == 0
    done = run_demo(
        postgres_server,
        *("--rows", "60", "--kills", "0", "--no-naive"),
        *("--bootstrap-servers", emulator.bootstrap_servers, "--topic", topic),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "DIVERGE" in done.stdout


def test_own_events_are_taken(postgres_server: PostgresServer, emulator: Emulator, tmp_path: Path) -> None:
    topic = unique("own")
    emulator.create_topic(topic, partitions=2)
    path = tmp_path / "orders.csv"
    path.write_text("customer,item\n" + "".join(f"c{number % 3},lamp {number}\n" for number in range(30)))
    done = run_demo(
        postgres_server,
        *("--input", str(path), "--group-size", "4", "--kills", "1", "--no-naive"),
        *("--bootstrap-servers", emulator.bootstrap_servers, "--topic", topic),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert cells(done.stdout, "records in the topic") == ["30"]
    assert cells(done.stdout, "transactions rolled forward") == ["1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--input", "nowhere.csv"), "nowhere.csv: No such file"),
        (("--rows", "40", "--group-size", "20", "--kills", "9"), "--kills at most "),
        (("--rows", "0"), "0 is less than 1"),
        (("--kills", "some"), "'some' is not a whole number"),
        (("--topic", "a b"), "'a b' is not a valid topic name"),
        (("--bootstrap-servers", "nowhere"), "'nowhere' is not host:port"),
        (("--bootstrap-servers", "127.0.0.1:1"), "no broker responds at 127.0.0.1:1: "),
    ],
)
def test_an_impossible_run_is_refused_in_one_line_with_exit_status_2(
    postgres_server: PostgresServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setenv(URL_VARIABLE, postgres_server.url.render_as_string(hide_password=False))
    try:
        status = main(arguments)
    except SystemExit as end:  # of an error that is found before any comparison
        status = int(str(end.code))
    complaint = capsys.readouterr().err
    assert status == 2
    assert said in complaint
    assert complaint.startswith("error: ")
    assert complaint.count("\n") == 1


def test_a_small_input_has_as_many_kills_as_there_is_room_for(postgres_server: PostgresServer) -> None:
    done = run_demo(postgres_server, "--rows", "4", "--group-size", "2", "--seed", "1", "--no-naive")
    assert done.returncode == 0, done.stdout + done.stderr
    kills = most_kills(1, wanted=30, events=4, group_size=2)
    assert cells(done.stdout, "kills") == [str(kills)]
    assert f"{kills} kills: 2 transactions are too few for more" in done.stdout
    assert "To repeat the same kills: --seed 1" in done.stdout


def test_without_kills_no_kills_are_reported(postgres_server: PostgresServer) -> None:
    done = run_demo(postgres_server, "--rows", "4", "--kills", "0", "--no-naive")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compared at the end" in done.stdout
    assert "again" not in done.stdout
    assert "Killed at" not in done.stdout
