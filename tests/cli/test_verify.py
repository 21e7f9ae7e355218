"""`dualwrite verify`: it finds exactly the anomalies, and leaves no trace."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient

from dualwrite.broker_emulator import BrokerConfig, Emulator, Error, Fault, Profile
from dualwrite.testing.postgres import PostgresServer
from dualwrite.verify.anomalies import Anomaly
from dualwrite.verify.checker import check
from dualwrite.verify.lines import from_lines
from tests.cli.conftest import Call, Ended, assert_one_line, process
from tests.support.conditions import until
from tests.support.databases import unique
from tests.test_docs import ROOT

UNSUPPORTED_VERSION = 35
"""A marker that is answered with this is missing for good (docs/emulator.md)."""

DEADLINE_S = 200
pytestmark = pytest.mark.timeout(DEADLINE_S + 60)

SLOW = ("--yes", "--timeout-ms", 30_000)
"""The machine may be busy."""


@pytest.fixture
def url(postgres_server: PostgresServer) -> sa.URL:
    return postgres_server.create_database(unique("verify").replace("-", "_"))


def options(emulator: Emulator, url: sa.URL, *more: object) -> list[object]:
    where = ["--bootstrap-server", emulator.bootstrap_servers]
    return ["verify", *where, "--database", url.render_as_string(hide_password=False), *more]


def run(emulator: Emulator, url: sa.URL, tmp_path: Path, *more: object) -> Ended:
    """For some seconds, with the history in a file."""
    small = [
        "--yes",
        "--json",
        "--timeout-ms",
        30_000,
        "--seconds",
        4,
        "--workers",
        2,
        "--settle",
        5,
        "--history",
        tmp_path / "history.jsonl",
    ]
    return in_time(process(*options(emulator, url, *small, *more)))


def in_time(started: subprocess.Popen[str]) -> Ended:
    out, err = started.communicate(timeout=DEADLINE_S)
    return Ended(started.returncode, out, err)


def checked(tmp_path: Path) -> Any:
    with (tmp_path / "history.jsonl").open() as file:
        return check(from_lines(file))


def topics(emulator: Emulator) -> set[str]:
    return set(AdminClient({"bootstrap.servers": emulator.bootstrap_servers}).list_topics(timeout=60).topics)


def tables(url: sa.URL) -> set[str]:
    return set(sa.inspect(sa.create_engine(url, poolclass=sa.NullPool)).get_table_names())


def rows(url: sa.URL, table: str) -> int:
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        return int(connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one())


# ---- runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "tier", "missing"), [(Profile.KIP_939, 1, "none"), (Profile.REDPANDA, 4, "WriteTxnMarkers")]
)
def test_both_sides_agree_and_nothing_is_left(
    profile: Profile, tier: int, missing: str, url: sa.URL, tmp_path: Path
) -> None:
    report = tmp_path / "report.md"
    with Emulator(config=BrokerConfig(profile=profile)) as emulator:
        done = run(emulator, url, tmp_path, "--report", report)
        assert done.code == 0, done
        found = done.document
        assert found["topic"] not in topics(emulator)
    assert (found["clean"], found["findings"], found["unsettled"], found["left"]) == (True, [], [], [])
    assert found["committed"] > 0
    assert found["read"] == found["records"] > 0
    assert sum(found["deeds"].values()) > 0
    assert found["table"] not in tables(url)
    assert (rows(url, "kafka_transaction_state"), rows(url, "kafka_transaction_lease")) == (0, 0)
    assert checked(tmp_path).is_clean
    page = (ROOT / "docs" / "cli.md").read_text().partition("## dualwrite verify")[2]
    assert set(found) <= set(re.findall(r"`(\w+)`", page))
    text = report.read_text()
    parts = (f"| tier | {tier} (", "| anomalies | none |", "## 1 of 1 brokers", f"* APIs that are missing: {missing}\n")
    assert [part for part in parts if part not in text] == []
    names = [*emulator.bootstrap_servers.split(":"), found["run"], str(url.database)]
    assert [name for name in names if name in text] == []


def test_kept_tables_and_topics_are_named(emulator: Emulator, url: sa.URL, tmp_path: Path) -> None:
    """Even if no file can be written."""
    files = [tmp_path / "missing" / name for name in ("history.jsonl", "report.md")]
    kept = ("--keep", "--topic", "verified-topic")
    done = run(emulator, url, tmp_path, *kept, "--history", files[0], "--report", files[1])
    assert (done.code, done.document["clean"]) == (1, True), done
    assert [str(file) in done.err for file in files] == [True, True]
    assert len(done.document["left"]) == 3
    assert done.document["table"] in tables(url)
    assert "verified-topic" in topics(emulator)


def test_markers_that_are_lost_are_found(emulator: Emulator, url: sa.URL, tmp_path: Path) -> None:
    lost = Fault(action=Error(UNSUPPORTED_VERSION), api="WriteTxnMarkers", count=None)
    emulator.faults.add(lost)
    done = run(emulator, url, tmp_path)
    assert done.code == 1, done
    found = done.document
    assert found["anomalies"][Anomaly.OPEN_AT_REST] > 0
    assert found["left"] != []
    assert found["table"] in tables(url)
    assert done.document["anomalies"] == {str(kind): number for kind, number in checked(tmp_path).counts.items()}


def test_commits_that_the_broker_turns_into_aborts_are_found(emulator: Emulator, url: sa.URL, tmp_path: Path) -> None:
    numbers = itertools.count(1)

    def turn_every_fifth(request: Any) -> bool:
        for marker in request.markers:
            if marker.transaction_result and next(numbers) % 5 == 0:
                object.__setattr__(marker, "transaction_result", False)
        return False

    emulator.faults.add(Fault(action=Error(UNSUPPORTED_VERSION), api="WriteTxnMarkers", predicate=turn_every_fifth))
    done = run(emulator, url, tmp_path)
    assert done.code == 1, done
    assert {Anomaly.LOST_WRITE, Anomaly.TORN} & set(done.document["anomalies"])


def started_to_write(emulator: Emulator, url: sa.URL) -> subprocess.Popen[str]:
    """It prints a line once each worker has committed."""
    started = process(*options(emulator, url, *SLOW, "--seconds", 100, "--workers", 2))
    assert started.stdout is not None
    while "writing" not in (line := started.stdout.readline()):
        assert line
    return started


def test_ctrl_c_leaves_nothing_open(emulator: Emulator, url: sa.URL) -> None:
    started = started_to_write(emulator, url)
    started.send_signal(signal.SIGINT)
    done = in_time(started)
    assert done.code == 130, done
    assert done.out.splitlines() == ["giving up: recovering the workers' transactions"]
    assert {str(each.state) for each in emulator.transactions()} <= {"Empty", "CompleteCommit", "CompleteAbort"}
    assert [table for table in tables(url) if "verify" in table] == []
    assert (rows(url, "kafka_transaction_state"), rows(url, "kafka_transaction_lease")) == (0, 0)
    assert [topic for topic in topics(emulator) if topic.startswith("dualwrite")] == []


def test_workers_end_with_their_command(emulator: Emulator, url: sa.URL) -> None:
    started = started_to_write(emulator, url)
    started.kill()
    started.communicate(timeout=DEADLINE_S)
    until(lambda: sessions(url) == 0, 60)


def sessions(url: sa.URL) -> int:
    """How many connections the database has, besides this one."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        return int(connection.execute(sa.text(others)).scalar_one())


# ---- refusals -----------------------------------------------------------------------------------------------


def test_verify_asks_first(call: Call, emulator: Emulator, url: sa.URL) -> None:
    done = call(*options(emulator, url))
    assert done.code == 2
    assert "creates the topic dualwrite-verify-" in done.err
    assert done.err.splitlines()[-1].startswith("dualwrite verify: cannot prompt without a terminal: pass --yes")
    assert tables(url) == set()
    assert [topic for topic in topics(emulator) if topic.startswith("dualwrite")] == []


def test_a_topic_that_exists_is_not_written_to(call: Call, emulator: Emulator, url: sa.URL) -> None:
    emulator.create_topic("orders")
    done = call(*options(emulator, url, "--yes", "--topic", "orders"))
    assert (done.code, done.out) == (2, "")
    assert "the topic orders exists, and this command writes only to a topic of its own" in done.err
    assert not [table for table in tables(url) if "verify" in table]
    assert emulator.log("orders", 0).high_watermark == 0


def test_a_cluster_that_cannot_be_reached(call: Call, url: sa.URL) -> None:
    where = ["--bootstrap-server", "127.0.0.1:1", "--database", url.render_as_string(hide_password=False)]
    assert_one_line(call("verify", *where, "--yes", "--timeout-ms", 300), 2, "dualwrite:")
