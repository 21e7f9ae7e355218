"""`dualwrite spark ...`: shows and ends leftovers of applications, with stable keys and exit codes."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from rich.console import Console

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import BrokerConfig, Emulator, Error, Fault, Profile, VirtualClock
from dualwrite.cli import spark_status
from dualwrite.producer import Producer
from spark_sink.options import DualMode, DualTable
from spark_sink.pause_points import PausePoint
from spark_sink.store.dual_table import DualTableWriter
from spark_sink.store.tables import StoreTables
from spark_sink.store.topic.topic_store import TopicStore
from tests.cli.conftest import Call, assert_one_line
from tests.cli.terminal import InTerminal, Interrupted
from tests.cli.test_page import keys, section
from tests.recipes.away import kafka_away
from tests.spark.applications import Applications, ApplicationWorld
from tests.spark.topic_stores import kafka_log
from tests.support.conditions import until
from tests.support.databases import Database, unique
from tests.support.topics import read_topic

NAMES = [table.name for table in StoreTables(None).metadata.sorted_tables]

REPORT_KEYS = {"applied", "clean", "sinks", "unseen", "found", "owed", "hanging"}
FOUND_KEYS = {
    *("sink", "query", "batch", "transactional_id", "status", "action", "changed", "left"),
    *("state", "pair", "age_ms", "topic_partitions", "error", "advice"),
}
VIEW_KEYS = {
    *("sink", "generation", "query", "quiet_ms", "newest_batch"),
    *("in_doubt", "lost", "attempts", "owed", "open", "no_row"),
}
ATTEMPT_KEYS = {
    *("query", "batch", "partition", "transactional_id", "status", "pair", "records", "host", "age_ms", "detail"),
}


class World(ApplicationWorld):
    """A world with the command's options that reach it."""

    def __init__(self, url: sa.URL, emulator: Emulator) -> None:
        topic = unique("topic")
        emulator.create_topic(topic, 2)
        super().__init__(sa.create_engine(url), emulator.bootstrap_servers, topic)
        self.emulator = emulator
        self.store_options = ("--database", url.render_as_string(hide_password=False))
        self.reach = ("--bootstrap-server", emulator.bootstrap_servers, *self.store_options)

    def values(self) -> list[str]:
        return sorted(value for _, value in read_topic(self.bootstrap_servers, self.topic))

    def open_ids(self) -> list[str]:
        return sorted(t.transactional_id for t in self.emulator.transactions() if t.state == "Ongoing")


@pytest.fixture
def world(database: Database, emulator: Emulator) -> Iterator[World]:
    made = World(database.url, emulator)
    yield made
    made.engine.dispose()


def test_the_spark_commands_need_no_spark_and_no_java() -> None:
    script = (
        "import sys\n"
        "class Nowhere:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('pyspark', 'pyarrow', 'pandas', 'numpy'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Nowhere())\n"
        "from dualwrite.cli.root import cli\n"
        "cli(['spark', 'init-store', '--sql', '--dialect', 'postgresql'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("CREATE TABLE") == len(NAMES)


# ---- init-store ---------------------------------------------------------------------------------------------


def test_tables_are_created_once(call: Call, database: Database) -> None:
    url = database.url.render_as_string(hide_password=False)
    first, second = (call("spark", "init-store", "--database", url) for _ in range(2))
    assert first.out.splitlines() == [f"{name}: created" for name in NAMES]
    assert second.out.splitlines() == [f"{name}: already existed" for name in NAMES]
    assert (first.code, second.code) == (0, 0)


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_the_ddl_of_every_dialect(call: Call, dialect: str, tmp_path: Path) -> None:
    done = call("spark", "init-store", "--sql", "--dialect", dialect)
    assert [line.split()[2] for line in done.out.splitlines() if line.startswith("CREATE")] == NAMES
    if dialect == "sqlite":
        engine = sa.create_engine(f"sqlite:///{tmp_path / 'by_hand.db'}")
        with engine.begin() as connection:
            for statement in done.out.split(";"):
                if statement.strip():
                    connection.execute(sa.text(statement))
        assert StoreTables(None).exist(engine)


def test_a_schema_is_named(call: Call) -> None:
    done = call("spark", "init-store", "--sql", "--dialect", "postgresql", "--schema", "sinks")
    assert "CREATE TABLE sinks.dw_batch" in done.out


# ---- recover ------------------------------------------------------------------------------------------------


def test_dry_then_apply_then_nothing(world: World, call: Call) -> None:
    world.write("s", 0, [["a"], ["b"]], die_at=PausePoint.AFTER_DECISION)
    recover = ("spark", "recover", *world.reach, "--min-age", 0)
    dry = call(*recover)
    assert dry.code == 1
    assert dry.out.splitlines()[0].split()[:7] == [
        *("Sink", "Query", "Batch", "TransactionalId", "Status", "Action", "Done"),
    ]
    assert dry.out.splitlines()[1].split()[:8] == [
        *("s", "query", "0", "s-0-0", "COMMITTING", "commit", "no", "Ongoing"),
    ]
    assert "2 left" in dry.out
    assert "--apply" in dry.out
    assert world.open_ids() == ["s-0-0", "s-1-0"]
    applied = call(*recover, "--apply")
    assert (applied.code, applied.out.splitlines()[-1]) == (0, "2 ended, 0 left, 1 sinks checked")
    again = call(*recover, "--apply", "--json")
    assert again.document.keys() == REPORT_KEYS
    assert {key: each for key, each in again.document.items() if each} == {"applied": True, "clean": True, "sinks": 1}
    assert (world.values(), world.open_ids()) == (["a", "b"], [])


def test_a_transaction_that_hangs_is_shown_with_the_command_that_ends_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_status, "DEFAULT_MIN_AGE_MS", 0)
    with Emulator(config=BrokerConfig(profile=Profile.KAFKA_4_3)) as emulator:
        world = World(sa.make_url(f"sqlite:///{tmp_path / 'store.db'}"), emulator)
        lost = Fault(api="WriteTxnMarkers", action=Error("unsupported_version"), topic=world.topic)
        emulator.faults.add(lost)
        world.write("s", 0, [["a"]])
        emulator.faults.clear()
        recover = ("spark", "recover", *world.reach, "--min-age", 0)
        seen = [call(*recover), call("spark", "status", *world.reach)]
        assert [each.code for each in seen] == [1, 1]
        seen += [call(*recover, "--apply", "--json"), call("spark", "status", *world.reach, "--json")]
        texts = [" ".join(each.out.split()) for each in seen]
        (command,) = {re.findall(r"commit it: `(dualwrite transactions commit [^`]*)`", text)[0] for text in texts}
        ended = call(*shlex.split(command)[1:], "--bootstrap-server", emulator.bootstrap_servers)
        assert (ended.code, world.values()) == (0, ["a"])
        assert [call(*each).code for each in (recover, ("spark", "status", *world.reach))] == [0, 0]
        world.engine.dispose()


def test_an_abort_by_the_broker_is_repaired(call: Call, tmp_path: Path) -> None:
    config = BrokerConfig(profile=Profile.KAFKA_4_3, transaction_max_timeout_ms=60_000)
    with Emulator(config=config, clock=VirtualClock()) as emulator:
        world = World(sa.make_url(f"sqlite:///{tmp_path / 'store.db'}"), emulator)
        emulator.set_config({"max.message.bytes": "300"}, topic=world.topic)
        values = ["a" * 1000, "b" * 1000]
        options = {"txn.timeoutMs": "60000", "kafka.compression.type": "gzip"}
        world.write("s", 0, [[each] for each in values], die_at=PausePoint.AFTER_DECISION, **options)
        settings = tmp_path / "kafka.properties"
        settings.write_text("compression.type=gzip\ntransaction.timeout.ms=60000\n")
        emulator.advance_clock(80_000)
        until(lambda: not world.open_ids())
        recover = ("spark", "recover", *world.reach, "--command-config", settings, "--min-age", 0)
        dry = call(*recover, "--json")
        assert (dry.code, [(each["action"], each["changed"]) for each in dry.document["found"]]) == (
            1,
            [("repair", False)] * 2,
        )
        applied = call(*recover, "--apply")
        assert (applied.code, applied.out.splitlines()[-1]) == (0, "2 ended, 0 left, 1 sinks checked")
        assert applied.out.count(" repair ") == 2
        assert world.values() == values
        world.engine.dispose()


def test_undecided_attempts_are_ended_only_if_their_sink_is_named(world: World, call: Call) -> None:
    world.write("s", 0, [["a"]], die_at=PausePoint.COMMIT_START)
    recover = ("spark", "recover", *world.reach, "--apply", "--json")
    left = call(*recover, "--min-age", 0)
    assert (left.code, left.document.keys()) == (1, REPORT_KEYS)
    assert keys(left.document) <= set(re.findall(r"`(\w+)`", section("dualwrite spark recover")))
    (found,) = left.document["found"]
    assert found.keys() == FOUND_KEYS
    assert (found["action"], found["status"], found["left"]) == ("undecided", "PREPARED", True)
    assert (found["state"], len(found["topic_partitions"])) == ("Ongoing", 1)
    young = call(*recover, "--condemn", "s")
    assert (young.code, young.document["found"][0]["action"]) == (0, "young")
    assert world.open_ids() == ["s-0-0"]
    gone = call(*recover, "--condemn", "s", "--min-age", 0)
    assert (gone.code, gone.document["found"][0]["action"], gone.document["found"][0]["changed"]) == (
        0,
        "condemn",
        True,
    )
    assert (world.values(), world.open_ids()) == ([], [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--once", "--interval", 1), "--once and --interval cannot be used together"),
        (("--condemn", "s", "--interval", 1), "--condemn is for a sink that you have examined"),
        (("--abort-orphans", "s", "--interval", 1), "--abort-orphans is for a sink that you have examined"),
    ],
)
def test_wrong_usage_is_one_line(world: World, call: Call, arguments: tuple[object, ...], said: str) -> None:
    assert_one_line(call("spark", "recover", *world.reach, *arguments), 2, said)


def test_a_database_without_a_store_and_an_unreachable_cluster(call: Call, tmp_path: Path, emulator: Emulator) -> None:
    (tmp_path / "empty.db").touch()
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    for command in ("recover", "status"):
        done = call("spark", command, "--bootstrap-server", emulator.bootstrap_servers, "--database", url)
        assert_one_line(done, 2, "dualwrite spark init-store")
    World(sa.make_url(url), emulator)
    away = ("--bootstrap-server", "127.0.0.1:1", "--timeout-ms", 200, "--database", url)
    assert_one_line(call("spark", "recover", *away, "--sink", "s"), 2, "127.0.0.1:1")


# ---- status -------------------------------------------------------------------------------------------------


def test_open_attempts_are_shown(world: World, call: Call) -> None:
    world.write("done", 4, [["a"]])
    world.write("doubt", 0, [["b"]], die_at=PausePoint.AFTER_DECISION)
    world.write("open", 0, [["c"], ["d"]], die_at=PausePoint.COMMIT_START)
    shown = call("spark", "status", *world.reach, "--json")
    assert (shown.code, shown.document.keys()) == (0, {"unseen", "hanging", "sinks"})
    assert keys(shown.document) <= set(re.findall(r"`(\w+)`", section("dualwrite spark status")))
    views = {view["sink"]: view for view in shown.document["sinks"]}
    assert all(view.keys() == VIEW_KEYS for view in views.values())
    assert (views["done"]["newest_batch"], views["done"]["attempts"], views["done"]["open"]) == (4, [], [])
    assert [batch["batch"] for batch in views["doubt"]["in_doubt"]] == [0]
    assert [each["transactional_id"] for each in views["open"]["open"]] == ["open-0-0", "open-1-0"]
    assert views["open"]["attempts"][0].keys() == ATTEMPT_KEYS
    assert [attempt["status"] for attempt in views["open"]["attempts"]] == ["PREPARED", "PREPARED"]
    text = call("spark", "status", *world.reach, "--sink", "open").out
    assert "open-1-0" in text
    assert "doubt" not in text


def test_a_transaction_without_a_row_is_shown_even_if_the_store_is_lost(world: World, call: Call) -> None:
    with Producer(bootstrap_servers=world.bootstrap_servers, transactional_id="lost-3-0") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(world.topic, value=b"x", partition=1)
        producer.flush()
        shown = call("spark", "status", *world.reach, "--sink", "lost")
        assert shown.code == 1
        assert "no row: lost-3-0 has been Ongoing" in shown.out
        assert f"on {world.topic}-1" in shown.out
        (view,) = call("spark", "status", *world.reach, "--sink", "lost", "--json").document["sinks"]
        assert (view["generation"], [each["transactional_id"] for each in view["no_row"]]) == (None, ["lost-3-0"])
        producer.abort_transaction()


def test_an_orphan_is_ended_only_on_order_and_by_the_store_that_has_its_sink(world: World, call: Call) -> None:
    world.write("s", 0, [["a"]], die_at=PausePoint.COMMIT_START)
    with world.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM dw_attempt"))
    order = ("spark", "recover", *world.reach, "--json", "--abort-orphans", "s")
    young = call(*order, "--apply")
    assert (young.code, young.document["found"][0]["action"]) == (0, "young")
    for more, code, action, changed in (
        (("--min-age", 0), 1, "abort", False),
        (("--min-age", 0, "--apply"), 0, "abort", True),
    ):
        done = call(*order, *more)
        (found,) = done.document["found"]
        assert (done.code, found["action"], found["changed"], found["status"]) == (code, action, changed, None)
    assert (world.values(), world.open_ids()) == ([], [])


def shown_live(world: World, *sink_ids: str, width: int = 200) -> str:
    """Return one update of the live view."""
    screen = Console(width=width, file=io.StringIO(), record=True)
    with TransactionAdmin(bootstrap_servers=world.bootstrap_servers) as admin:
        screen.print(spark_status.live_view(world.store, admin, sink_ids, width, 500))
    return screen.export_text()


def test_the_live_view_is_updated_until_an_interrupt(world: World) -> None:
    world.write("s", 0, [["a"]])
    with InTerminal("spark", "status", *world.reach, "--watch", "--interval", 0.1) as watched:
        watched.read_until(lambda shown: "1 sink, 0 open, 0 in doubt" in shown)
        world.write("s", 1, [["b"], ["c"]], die_at=PausePoint.AFTER_DECISION)
        watched.read_until(
            lambda shown: "1 sink, 2 open, 1 in doubt" in shown and "s-1-0" in shown and "COMMIT " in shown
        )
        assert watched.interrupt() == Interrupted(0, "")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_watching_without_a_terminal_shows_one_table(world: World, call: Call, more: tuple[str, ...]) -> None:
    world.write("s", 0, [["a"]])
    watched = call("spark", "status", *world.reach, "--watch", *more)
    assert (watched.code, watched.err) == (0, "")
    assert "s" in (watched.out.split() if not more else [watched.document["sinks"][0]["sink"]])


def test_the_live_view_begins_with_the_problems(world: World) -> None:
    world.write("s", 0, [["a"]], die_at=PausePoint.AFTER_DECISION)
    with Producer(bootstrap_servers=world.bootstrap_servers, transactional_id="s-7-0") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(world.topic, value=b"x", partition=1)
        producer.flush()
        title, orphan, *tables = shown_live(world).splitlines()
        assert title.endswith("1 sink, 1 open, 1 in doubt, 1 without a row")
        assert orphan.startswith("no row: s-7-0 has been Ongoing for ")
        assert [line.split()[0] for line in tables if line.strip()] == ["Sink", "s", "Sink", "s", "Sink", "s"]
        narrow = shown_live(world, width=80)
        assert "s-0-0" in narrow
        assert "Host" not in narrow
        assert "s-0-0" in shown_live(world, width=40)
        producer.abort_transaction()


def test_the_live_view_shows_the_store_while_kafka_is_away(world: World) -> None:
    world.write("s", 0, [["a"]], die_at=PausePoint.AFTER_DECISION)
    with kafka_away(world.emulator):
        title, *rest = shown_live(world).splitlines()
    assert "no broker has responded" in title
    assert any(line.split()[:2] == ["s", "query"] and " COMMIT " in line for line in rest)


def test_the_live_view_survives_an_unreachable_store(world: World) -> None:
    with world.engine.begin() as connection:
        for name in NAMES:
            connection.execute(sa.text(f"DROP TABLE {name}"))
    assert "dualwrite spark init-store" in shown_live(world, width=1_000)


# ---- gc -----------------------------------------------------------------------------------------------------


def test_old_batches_are_forgotten_and_the_newest_stay(world: World, call: Call) -> None:
    for batch_id in range(4):
        world.write("s", batch_id, [[str(batch_id)]])
    gc = ("spark", "gc", *world.store_options, "--keep", 2)
    dry = call(*gc)
    assert (dry.code, dry.out.splitlines()[0]) == (0, "s: 2 batches would be deleted")
    assert len(world.store.batches("s")) == 4
    assert call(*gc, "--apply", "--json").document == {
        "applied": True,
        "keep": 2,
        "forgotten": {"s": 2},
        "dropped": {},
        "files": {"s": 0},
        "unseen": [],
    }
    assert [batch.batch_id for batch in world.store.batches("s")] == [3, 2]
    assert call(*gc, "--apply").out == "s: 0 batches deleted\n"


def test_only_the_staging_tables_of_a_sink_that_has_ended_are_dropped(world: World, call: Call) -> None:
    with world.engine.begin() as connection:
        for table in ("target", "other"):
            connection.execute(sa.text(f"CREATE TABLE {table} (id BIGINT)"))
        connection.execute(sa.text("CREATE TABLE dw_stage_of_a_stranger (id BIGINT)"))
    tables = {}
    for sink, table in (("s", "target"), ("s", "other"), ("s.2", "target")):
        writer = DualTableWriter(DualTable(table, ("id",), DualMode.INSERT, None), sink_id=sink, store_schema=None)
        writer.create(world.engine, pa.schema([("id", pa.int64()), ("value", pa.string())]))
        tables[sink, table] = writer.staging_table
    world.write("s", 0, [["a"]])
    world.write("s.2", 0, [["a"]])
    own = sorted([tables["s", "target"], tables["s", "other"]])
    gc = ("spark", "gc", *world.store_options, "--ended", "s")
    dry = call(*gc)
    assert [line for line in dry.out.splitlines() if "staging" in line] == [
        f"s: staging table {name} would be dropped" for name in own
    ]
    refused = call(*gc, "--apply")
    assert (refused.code, "its application may be running; nothing was dropped" in refused.err) == (2, True)
    left = {name for name in sa.inspect(world.engine).get_table_names() if name.startswith("dw_stage_")}
    assert left == {*tables.values(), "dw_stage_of_a_stranger"}
    done = call(*gc, "--apply", "--min-age", 0, "--json")
    assert done.document["dropped"] == {"s": own}
    left = {name for name in sa.inspect(world.engine).get_table_names() if name.startswith("dw_stage_")}
    assert left == {tables["s.2", "target"], "dw_stage_of_a_stranger"}
    world.write("s", 1, [["b"]])


def test_staging_tables_of_a_sink_with_something_to_complete_stay(world: World, call: Call) -> None:
    world.write("s", 0, [["a"]], die_at=PausePoint.AFTER_DECISION)
    gc = ("spark", "gc", *world.store_options, "--ended", "s", "--min-age", 0, "--apply")
    refused = call(*gc)
    assert (refused.code, "attempts that are not completed; nothing was dropped" in refused.err) == (2, True)
    missing = call(*gc[:-4], "nobody", *gc[-3:])
    assert (missing.code, "has no sink 'nobody'" in missing.err) == (2, True)


# ---- acknowledge-lost ---------------------------------------------------------------------------------------


def test_a_lost_batch_is_shown_with_the_facts_until_it_is_acknowledged(call: Call, tmp_path: Path) -> None:
    clock = VirtualClock()
    with Emulator(config=BrokerConfig(profile=Profile.KAFKA_4_3), clock=clock) as emulator:
        world = World(sa.make_url(f"sqlite:///{tmp_path / 'store.db'}"), emulator)
        world.write("s", 0, [["a"]], die_at=PausePoint.AFTER_DECISION, **{"txn.timeoutMs": "60000"})
        world.forget_manifests()
        emulator.advance_clock(80_000)
        until(lambda: not world.open_ids())
        lost = call("spark", "recover", *world.reach, "--apply", "--min-age", 0, "--json")
        assert (lost.code, lost.document["found"][0]["action"]) == (1, "lost")
        shown = call("spark", "status", *world.reach, "--json")
        assert (shown.code, [batch["batch"] for batch in shown.document["sinks"][0]["lost"]]) == (1, [0])
        detail = shown.document["sinks"][0]["attempts"][0]["detail"]
        assert "CompleteAbort" in detail
        assert "dualwrite recover" not in detail, "that command is for the writers of dual writes"
        seen = [call("spark", "status", *world.reach).out, call("spark", "recover", *world.reach).out]
        (command,) = {line.partition("`")[2].rstrip("`") for out in seen for line in out.splitlines() if "`" in line}
        assert lost.document["found"][0]["advice"].endswith(f"run `{command}`")
        assert command in shown_live(world, width=1_000)
        acknowledge = (*shlex.split(command)[1:], *world.store_options)
        first, second = call(*acknowledge), call(*acknowledge)
        assert (first.code, first.out) == (
            0,
            "batch 0 of query query of sink s: acknowledged; the query can be started\n",
        )
        assert (second.code, second.out) == (1, "")
        assert "was acknowledged before" in second.err
        assert call("spark", "status", *world.reach).code == 0
        world.engine.dispose()


def test_a_cluster_that_answers_is_not_given_up(world: World, call: Call) -> None:
    world.write("s", 0, [["a"]], die_at=PausePoint.AFTER_DECISION)
    with TransactionAdmin(bootstrap_servers=world.bootstrap_servers) as admin:
        here = admin.describe_cluster().cluster_id
    batch = ("spark", "acknowledge-lost", "--sink", "s", "--query", "query", "--batch", 0)
    for reach, said in ((world.reach, "is not gone"), (world.store_options, "needs --bootstrap-server")):
        refused = call(*batch, "--forget-cluster", here, *reach)
        assert (refused.code, said in refused.err) == (2, True)
    with world.engine.begin() as connection:
        moved = sa.text("UPDATE dw_attempt SET manifest = replace(manifest, :here, 'gone')")
        connection.execute(moved, {"here": here})
    planned = call("spark", "recover", *world.reach, "--min-age", 0)
    assert (planned.code, "nothing was changed: --apply ends 0\n" in planned.out) == (1, True)
    failed = call("spark", "recover", *world.reach, "--apply", "--min-age", 0, "--json")
    (command,) = re.findall("`(dualwrite spark .*)`", failed.document["found"][0]["advice"])
    assert failed.code == 1
    assert call(*shlex.split(command)[1:], *world.reach).code == 0
    (left,) = call("spark", "recover", *world.reach, "--apply", "--min-age", 0, "--json").document["found"]
    assert left["action"] == "no-row", "the one of this cluster that has the same pair"


# ---- a store in a topic -------------------------------------------------------------------------------------


def test_a_store_in_a_topic_is_created_operated_and_recovered(call: Call, emulator: Emulator) -> None:
    topic = unique("topic")
    emulator.create_topic(topic, 2)
    store_topic = unique("commits")
    url = f"kafka:///{store_topic}"
    reach = ("--bootstrap-server", emulator.bootstrap_servers, "--database", url)
    missing = call("spark", "status", *reach)
    assert missing.code == 2
    assert store_topic in missing.err
    assert [call("spark", "init-store", *reach).code for _ in range(2)] == [0, 0]
    world = Applications(
        TopicStore(kafka_log(emulator.bootstrap_servers, store_topic)), emulator.bootstrap_servers, topic
    )
    world.write("orders", 0, [["a"], ["b"]])
    world.write("orders", 1, [["c"], ["d"]], die_at=PausePoint.AFTER_DECISION)
    in_doubt = json.loads(call("spark", "status", "--json", *reach).out)["sinks"][0]["in_doubt"]
    assert [each["batch"] for each in in_doubt] == [1]
    recovered = call("spark", "recover", "--apply", "--min-age", "0", "--json", *reach)
    assert recovered.code == 0
    assert sorted(value for _, value in read_topic(emulator.bootstrap_servers, topic)) == ["a", "b", "c", "d"]
    elsewhere = f"kafka://{emulator.bootstrap_servers}/{store_topic}"
    kept = call("spark", "gc", "--keep", "1", "--apply", "--json", "--database", elsewhere)
    assert json.loads(kept.out)["forgotten"] == {"orders": 1}
    lost = ("--sink", "orders", "--query", "query", "--batch", "1", "--database", elsewhere)
    assert call("spark", "acknowledge-lost", *lost).code == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gc", "--ended", "orders", "--database", "kafka://h:1/commits"), "a commit store in a topic has none"),
        (("gc", "--schema", "s", "--database", "kafka://h:1/commits"), "--schema has no effect"),
        (("gc", "--database", "kafka:///commits"), "needs --bootstrap-server"),
        (("gc", "--database", "kafka://commits"), "must be kafka:///topic"),
        (("init-store", "--sql", "--database", "kafka:///commits"), "--sql has no effect"),
    ],
)
def test_options_without_meaning_for_a_topic_store_are_refused(
    call: Call, arguments: tuple[str, ...], sentence: str
) -> None:
    refused = call("spark", *arguments)
    assert refused.code == 2
    assert sentence in refused.err
