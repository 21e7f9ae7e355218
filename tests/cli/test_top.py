"""`dualwrite top`: printed once, and live."""

from __future__ import annotations

import io

from rich.console import Console

from dualwrite.admin import TopicPartition, TransactionAdmin, TransactionDescription
from dualwrite.broker_emulator import Emulator, Error, Fault
from dualwrite.cli import top
from dualwrite.cli.output import duration
from dualwrite.cli.top import lines_of
from dualwrite.delivery import Outbox
from dualwrite.recipes.core.leases import outbox_id_of
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.recovery.seen import Cluster
from dualwrite.recipes.recovery.stored_rows import StoredRecords, StoredRow
from dualwrite.recipes.sqlalchemy.state_table import create_state_table
from tests.cli.conftest import Call, assert_one_line
from tests.cli.terminal import InTerminal, Interrupted
from tests.crash.scenario import AtPoint, InjectedError, Predecessor, Scenario
from tests.interop.wire import Code, Identity, Wire
from tests.recipes.away import AWAY, kafka_away
from tests.recipes.pools import make_pool, write
from tests.recovery.world import left_open
from tests.support.conditions import until
from tests.support.databases import Database
from tests.support.kafka_ids import kafka_id_of

V2 = Cluster("", 2, lambda _: False)


def test_top_lists_all_open_transactions(call: Call, database: Database, emulator: Emulator) -> None:
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


def test_stored_and_owed_blocks_are_shown(call: Call, database: Database, emulator: Emulator) -> None:
    storing = Scenario(database, emulator, transactional_id="a-storing-0")
    owing = Scenario(database, emulator, transactional_id="b-owing")

    def fail() -> None:
        raise InjectedError

    with owing.writer(AtPoint(PausePoint.AFTER_DATABASE_COMMIT, fail)) as dies:
        owing.write(dies, 9)
    pair = Identity(owing.row().producer_id, owing.row().producer_epoch)
    with Wire(emulator.bootstrap_servers) as wire:
        assert wire.end_settled(owing.kafka_id, pair, commit=False).error == Code.NONE
    with make_pool(storing, delivery=Outbox(publishes=False)) as pool:
        for number in (1, 2):
            write(pool, storing, number)
        url = database.url.render_as_string(hide_password=False)
        options = ("top", "--bootstrap-server", emulator.bootstrap_servers, "--database", url)
        told = {row["transactional_id"]: row for row in call(*options, "--json").document}
        outbox_id = kafka_id_of(database.engine, outbox_id_of("a-storing"))
        assert told.keys() == {outbox_id, owing.kafka_id}
        stored, owed = told[outbox_id], told[owing.kafka_id]
        assert stored["database"] == "stored"
        assert (stored["stored_blocks"], stored["owed_records"]) == (2, None)
        assert stored["stored_age_ms"] >= 0
        assert (owed["state"], owed["database"]) == ("CompleteAbort", "owed")
        assert (owed["stored_blocks"], owed["stored_age_ms"]) == (0, None)
        assert owed["owed_records"] == 2
        text = call(*options, "--once").out
        assert text.splitlines()[0].split()[:6] == [
            *("TransactionalId", "TransactionState", "Age"),
            *("Database", "Stored", "Owed"),
        ]
        assert "2 blocks, " in text
        assert "2 records" in text
        assert not call(*options, "--prefix", "c-", "--json").document
        assert call(*options, "--prefix", "c-", "--once", "--min-age", 0).out == "nothing is open\n"


def test_a_hanging_transaction_is_shown(call: Call, database: Database, emulator: Emulator) -> None:
    scenario = Scenario(database, emulator)
    emulator.faults.add(Fault(api="WriteTxnMarkers", action=Error("unsupported_version"), topic=scenario.topic))
    url = database.url.render_as_string(hide_password=False)
    options = ("top", "--bootstrap-server", emulator.bootstrap_servers, "--database", url, "--once")
    with scenario.writer() as writer:
        scenario.write(writer, 1)
        until(lambda: emulator.transactions()[0].state == "CompleteCommit")
        young = call(*options)
        shown = call(*options, "--min-age", 0)
    assert young.out.startswith("nothing is open; a transaction that hangs is shown after 60 s without a record")
    assert (shown.code, shown.out.splitlines()[1].split()[3]) == (1, "hangs")
    assert f"`dualwrite transactions commit --topic {scenario.topic} --partition 0 --prepared-state" in shown.out
    (line,) = call(*options, "--min-age", 0, "--json").document
    assert (line["transactional_id"], line["pair"]) == (scenario.kafka_id, str(scenario.row()))
    assert "so the database has decided it" in line["next_step"]


def test_a_topic_is_searched_or_reported_as_not_searched(call: Call, database: Database, emulator: Emulator) -> None:
    options = ("top", "--bootstrap-server", emulator.bootstrap_servers, "--once", "--topic", "missing")
    assert_one_line(call(*options), 2, "give --database")
    create_state_table(database.engine)
    done = call(*options, "--database", database.url.render_as_string(hide_password=False))
    assert (done.code, "topic 'missing' was not searched" in done.err) == (1, True)


def test_stored_blocks_while_kafka_is_unreachable() -> None:
    row = StoredRow("7:1", "", StoredRecords(400, blocks=3))
    (line,) = lines_of({}, {"away": row, "quiet": StoredRow("7:1", "")}, 1_000, V2)
    assert (line.transactional_id, line.state, line.database) == ("away", "NotKnown", "stored")
    assert (line.stored_blocks, line.stored_age_ms) == (3, 600)


def test_the_live_view_shows_stored_blocks_while_kafka_is_away(database: Database, emulator: Emulator) -> None:
    scenario = Scenario(database, emulator, transactional_id="a-storing-0")
    shown = Console(width=200, file=io.StringIO(), record=True)
    with make_pool(scenario, **AWAY) as pool:
        with kafka_away(emulator), TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
            write(pool, scenario, 1)
            shown.print(top._view(admin, database.aside, top.Wanted(), 200, 500))
    text = shown.export_text()
    assert "no broker has responded" in text
    assert "a-storing" in text
    assert "1 block, " in text


def test_owed_records_without_a_manifest_are_shown_without_a_number() -> None:
    found = TransactionDescription("id", 0, "CompleteAbort", 7, 2, 60_000, None, frozenset())
    (line,) = lines_of({"id": found}, {"id": StoredRow("7:1", "")}, 1_000, V2)
    assert (line.database, line.owed_records) == ("owed", None)
    assert lines_of({"id": found}, {"id": StoredRow("7:1", "committed 7:1")}, 1_000, V2) == []
    assert lines_of({"id": found}, {"id": StoredRow("damaged", "")}, 1_000, V2) == []


def test_the_oldest_is_first() -> None:
    def open_since(transactional_id: str, start_ms: int | None) -> TransactionDescription:
        where = frozenset({TopicPartition("t", 1), TopicPartition("t", 0)})
        return TransactionDescription(transactional_id, 0, "Ongoing", 7, 1, 2**31 - 1, start_ms, where)

    starts = {"new": 900, "unknown": None, "old": 100, "ahead": 2_000}
    found = {name: open_since(name, start_ms) for name, start_ms in starts.items()}
    known = {"old": StoredRow("7:1", ""), "new": StoredRow("7:0", "")}
    rows = lines_of(found, known, 1_000, V2)
    assert [(row.transactional_id, row.age_ms, row.database) for row in rows] == [
        ("old", 900, "committed"),
        ("new", 100, "undecided"),
        ("ahead", 0, "no row"),
        ("unknown", None, "no row"),
    ]
    assert rows[0].topic_partitions == ("t-0", "t-1")
    assert {row.database for row in lines_of(found, None, 1_000, V2)} == {None}


def test_durations() -> None:
    shown = {None: "-", 0: "0.0s", 59_900: "59.9s", 60_000: "1m", 3_661_000: "1h 1m", 90_061_000: "1d 1h"}
    assert {milliseconds: duration(milliseconds) for milliseconds in shown} == shown


def test_the_live_view_ends_with_an_interrupt(emulator: Emulator) -> None:
    left_open(emulator, "orders-1", "orders")
    with InTerminal("top", "--bootstrap-server", emulator.bootstrap_servers) as top_in_terminal:
        top_in_terminal.read_until(lambda shown: "1 open; use --database to see which" in shown and "orders-1" in shown)
        assert top_in_terminal.interrupt() == Interrupted(0, "")
