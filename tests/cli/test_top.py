"""`dualwrite top`: printed once, and live."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from dualwrite.admin import TopicPartition, TransactionDescription
from dualwrite.broker_emulator import Emulator
from dualwrite.cli.output import duration
from dualwrite.cli.top import rows_of
from tests.cli.conftest import Call
from tests.crash.scenario import Predecessor, Scenario
from tests.recovery.world import left_open
from tests.support.databases import Database


def test_one_look(call: Call, database: Database, emulator: Emulator) -> None:
    decided = Scenario(database, emulator, transactional_id="a-decided")
    undecided = Scenario(database, emulator, transactional_id="b-undecided")
    undecided.leave_behind(Predecessor.ROLLED_BACK)
    decided.leave_behind(Predecessor.COMMITTED)
    left_open(emulator, "c-orphan", decided.topic, two_phase_commit=False)
    before = emulator.transactions()
    url = database.url.render_as_string(hide_password=False)
    options = ("top", "--bootstrap-server", emulator.bootstrap_servers)
    document = call(*options, "--database", url, "--once", "--json").document
    assert {row["transactional_id"]: (row["database"], row["timeout_ms"]) for row in document} == {
        decided.kafka_id: ("committed", None),
        undecided.kafka_id: ("undecided", None),
        "c-orphan": ("no row", 60_000),
    }
    assert [row["age_ms"] for row in document] == sorted((row["age_ms"] for row in document), reverse=True)
    text = call(*options, "--prefix", "a-")
    assert text.out.splitlines()[0].split()[:4] == ["TransactionalId", "TransactionState", "Age", "Database"]
    assert text.out.splitlines()[1].split()[0] == decided.kafka_id
    assert len(text.out.splitlines()) == 2
    assert emulator.transactions() == before


def test_the_oldest_is_first() -> None:
    def open_since(transactional_id: str, start_ms: int | None) -> TransactionDescription:
        where = frozenset({TopicPartition("t", 1), TopicPartition("t", 0)})
        return TransactionDescription(transactional_id, 0, "Ongoing", 7, 1, 2**31 - 1, start_ms, where)

    found = [open_since("new", 900), open_since("unknown", None), open_since("old", 100), open_since("ahead", 2_000)]
    rows = rows_of(found, {"old": "7:1", "new": "7:0"}, 1_000)
    assert [(row.transactional_id, row.age_ms, row.database) for row in rows] == [
        ("old", 900, "committed"),
        ("new", 100, "undecided"),
        ("ahead", 0, "no row"),
        ("unknown", None, "no row"),
    ]
    assert rows[0].topic_partitions == ("t-0", "t-1")
    assert {row.database for row in rows_of(found, None, 1_000)} == {None}


def test_durations() -> None:
    shown = {None: "-", 0: "0.0s", 59_900: "59.9s", 60_000: "1m", 3_661_000: "1h 1m", 90_061_000: "1d 1h"}
    assert {milliseconds: duration(milliseconds) for milliseconds in shown} == shown


def test_the_live_view_ends_with_an_interrupt(emulator: Emulator) -> None:
    left_open(emulator, "orders-1", "orders")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "dualwrite", "top", "--bootstrap-server", emulator.bootstrap_servers],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(theirs)
    shown = b""
    try:
        while b"1 open; use --database to see which" not in shown or b"orders-1" not in shown:
            shown += os.read(ours, 65_536)
    finally:
        running.send_signal(signal.SIGINT)
        # keep reading like a terminal: the view blocks on output that is not read
        threading.Thread(target=_read_to_the_end, args=(ours,), daemon=True).start()
        _, errors = running.communicate(timeout=30)
    assert (running.returncode, errors) == (0, b"")


def _read_to_the_end(terminal: int) -> None:
    with suppress(OSError):  # how a pseudo terminal says that its other side is closed
        while os.read(terminal, 65_536):
            pass
    os.close(terminal)
