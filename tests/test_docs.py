"""The documentation agrees with the code."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import runpy
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, get_overloads

import psycopg
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

import dualwrite
from dualwrite import errors
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.client.metrics import Metrics
from dualwrite.config import ACKS, COMPRESSION_TYPES, ProducerConfig
from dualwrite.errors import KafkaTimeoutError
from dualwrite.producer import Producer
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.security_config import SecurityConfig
from tests.crash.psycopg_scenario import conninfo_of
from tests.recipes.away import kafka_away
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase
from tests.support.topics import read_topic

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("script", ["draw_state_machines.py", "draw_profiles.py", "draw_errors.py"])
def test_a_drawn_page_matches_the_code(script: str) -> None:
    drawn = runpy.run_path(str(DOCS / script))
    assert drawn["PAGE"].read_text() == drawn["page"](), f"run: python docs/{script}"


def test_every_error_of_a_call_says_what_to_do() -> None:
    """The others are bases, whose subclasses say it."""
    found = [
        each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.DualWriteError)
    ]
    silent = {each.__name__ for each in found if "\n    Remedy: " not in (each.__doc__ or "")}
    assert silent == {"DualWriteError", "KafkaError", "RecipeError", "ConsumedLogError"}


def prose_of(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@cache
def anchors_of(page: Path) -> set[str]:
    """Return the fragments of a page's headings."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchors.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, fragment in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", prose_of(page)):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if fragment and linked.suffix == ".md":
            assert fragment in anchors_of(linked), f"{page.name} links to {target}#{fragment}"


def test_the_page_of_installing_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    _, _, below = (DOCS / "platforms.md").read_text().partition("| extra | brings |")
    table, _, _ = below.partition("\n## ")
    named = re.findall(r"`([\w-]+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert sorted(named) == sorted(extras)


def test_no_line_is_longer_than_a_screen() -> None:
    """Rows of tables are left out: Markdown has no way to continue them on another line."""
    reflow = runpy.run_path(str(DOCS / "reflow.py"))
    too_long = {str(page.relative_to(ROOT)): reflow["too_long"](page.read_text()) for page in PAGES}
    assert {page: lines for page, lines in too_long.items() if lines} == {}, "run: python docs/reflow.py"


def examples(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples_compile(page: Path) -> None:
    for number, code in enumerate(examples(page)):
        compile(code, f"{page.name}[{number}]", "exec")


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(emulator: Emulator, tmp_path: Path) -> Run:
    """Run an example against the emulator instead of the address that it shows."""

    def run_example(code: str, **names: object) -> dict[str, Any]:
        script = tmp_path / "example.py"
        script.write_text(code.replace("127.0.0.1:9092", emulator.bootstrap_servers))
        return runpy.run_path(str(script), init_globals=names, run_name="example")

    return run_example


def test_the_readme_opens_with_a_dual_write_that_works(
    run: Run, emulator: Emulator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = examples(ROOT / "README.md")[0]
    assert len(code.splitlines()) <= 12
    namespace = run(in_file(code, tmp_path / "shop.db"))
    assert capsys.readouterr().out == "committed\n"
    engine = namespace["engine"]
    assert isinstance(engine, sa.Engine)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT id, item FROM orders")).all() == [(1, "lamp")]
    assert read_topic(emulator.bootstrap_servers, "orders") == [("1", '{"item": "lamp"}')]


def test_the_readme_is_one_screen_or_two() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900


@pytest.mark.parametrize(
    ("part", "orders"),
    [
        ("", [(4, "lamp")]),
        ("await writer.recover()", [(1, "lamp")]),
        ("async_sessionmaker(engine)", [(2, "lamp"), (3, "shade")]),
    ],
    ids=["first", "awaited", "decorator and sessions"],
)
def test_the_dual_write_page_writes_orders(
    run: Run,
    emulator: Emulator,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    part: str,
    orders: list[tuple[int, str]],
) -> None:
    code = next(code for code in examples(DOCS / "dual-write.md") if part in code)
    shop = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with shop.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"))
    emulator.create_topic("orders")
    run(in_file(code, tmp_path / "shop.db"))
    if len(orders) == 1:
        assert "committed RecordMetadata(topic='orders', partition=0, offset=0" in capsys.readouterr().out
    with shop.connect() as connection:
        assert connection.execute(sa.text("SELECT id, item FROM orders")).all() == orders
    assert read_topic(emulator.bootstrap_servers, "orders") == [(str(order), item) for order, item in orders]


def in_file(code: str, database: Path) -> str:
    """Let an example write to a database in a file."""
    code = code.replace("postgresql+psycopg://localhost/shop", f"sqlite:///{database}")
    return code.replace("postgresql+asyncpg://localhost/shop", f"sqlite+aiosqlite:///{database}")


def test_the_page_of_the_drivers_shows_their_writers_and_pools(
    run: Run, emulator: Emulator, postgres: PostgresDatabase
) -> None:
    written = [(1, "lamp"), (1, "torch"), (3, "bulb"), (4, "cord"), (6, "fuse")]
    conninfo = conninfo_of(postgres.url)
    for code in examples(DOCS / "drivers.md"):
        run(code.replace("postgresql://localhost/shop", conninfo))
    with psycopg.connect(conninfo) as connection:
        orders = connection.execute("SELECT * FROM orders ORDER BY id").fetchall()
    by_the_pool = [(order, "lamp") for order in range(100, 140)]
    assert orders == [*dict(written).items(), *by_the_pool]
    records = [(int(key), value) for key, value in read_topic(emulator.bootstrap_servers, "orders")]
    assert records[: len(written)] == written
    assert sorted(records[len(written) :]) == by_the_pool


def test_the_page_of_consuming_shows_a_pipeline_in_a_loop(run: Run, emulator: Emulator, tmp_path: Path) -> None:
    (code,) = (code for code in examples(ROOT / "docs" / "consume.md") if "asyncio.run(main())" in code)
    database = tmp_path / "shop.db"
    with sa.create_engine(f"sqlite:///{database}").begin() as connection:
        connection.execute(sa.text("CREATE TABLE invoices (item TEXT)"))
    emulator.create_topic("orders")
    with Producer(bootstrap_servers=emulator.bootstrap_servers) as producer:
        for item in ("lamp", "shade", "last"):
            producer.send("orders", item, key="k")
    run(in_file(code, database))
    with sa.create_engine(f"sqlite:///{database}").connect() as connection:
        assert connection.scalars(sa.text("SELECT item FROM invoices")).all() == ["lamp", "shade", "last"]
    assert [value for _, value in read_topic(emulator.bootstrap_servers, "invoices")] == ["lamp", "shade", "last"]


def test_the_emulator_page_shows_faults_and_pause_points(run: Run) -> None:
    def client(broker: Emulator) -> None:
        def transact() -> None:
            # the broker of the example ends with its block, perhaps before the last response
            with (
                suppress(KafkaTimeoutError),
                Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t") as producer,
            ):
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("orders", value=b"lamp", partition=0)
                producer.commit_transaction()

        threading.Thread(target=transact, daemon=True).start()

    code = examples(ROOT / "docs" / "emulator.md")[0]
    assert "    ...  #" in code
    wait = "    held.release()\n"
    settled = wait + "    until(lambda: all(t.state.startswith('Complete') for t in broker.transactions()))\n"
    code = code.replace("    ...  #", "    client(broker)  #").replace(wait, settled)
    run(code, client=client, until=until)


def test_the_emulator_page_shows_a_schema_registry(run: Run) -> None:
    (code,) = (code for code in examples(DOCS / "emulator.md") if "AvroSerializer(registry" in code)
    assert run(code)["record"].value == b"\x00\x00\x00\x00\x01\x08lamp"


def test_the_page_of_the_pool_writes_and_recovers(
    run: Run, emulator: Emulator, postgres: PostgresDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgres.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (id integer PRIMARY KEY, item text)"))
        connection.execute(sa.text("CREATE TABLE invoices (id integer PRIMARY KEY)"))
    url = postgres.url.render_as_string(hide_password=False)
    threads, tasks, outbox, recovery = examples(ROOT / "docs" / "pool.md")
    for code in (threads, tasks, recovery):
        run(code.replace("postgresql+psycopg://localhost/shop", url))
    run(outbox.replace("postgresql://localhost/shop", conninfo_of(postgres.url)))
    assert sorted(int(key) for key, _ in read_topic(emulator.bootstrap_servers, "orders")) == list(range(100))
    assert sorted(int(key) for key, _ in read_topic(emulator.bootstrap_servers, "invoices")) == [
        *range(20),
        *range(3000, 3100),
    ]
    assert "max_writers=8, in_use=0" in capsys.readouterr().out


def test_the_tutorial_dies_on_both_sides_of_the_decision(
    run: Run, emulator: Emulator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, look = examples(DOCS / "tutorial.md")
    (tmp_path / "shop.py").write_text(code.replace("127.0.0.1:9092", emulator.bootstrap_servers))

    def shop(die: str = "") -> tuple[int, str]:
        words = [sys.executable, "shop.py"]
        environment = os.environ | {"DIE": die, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
        return done.returncode, done.stdout

    def orders() -> list[int]:
        with sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}").connect() as connection:
            return list(connection.scalars(sa.text("SELECT id FROM orders ORDER BY id")))

    assert shop() == (0, "order 1\n")
    assert shop("before-database-commit") == (137, "")
    assert orders() == [1]
    assert shop("after-database-commit") == (137, "")
    assert orders() == [1, 2]
    assert read_topic(emulator.bootstrap_servers, "orders") == [("1", "lamp")]
    assert shop() == (0, "order 3\n")
    assert read_topic(emulator.bootstrap_servers, "orders") == [(str(order), "lamp") for order in (1, 2, 3)]
    run(look)
    assert capsys.readouterr().out == "b'1' b'lamp'\nb'2' b'lamp'\nb'3' b'lamp'\n"


def test_the_page_of_the_order_sends_the_version_of_a_row(
    run: Run, emulator: Emulator, postgres: PostgresDatabase
) -> None:
    with postgres.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE accounts (owner text PRIMARY KEY, version integer, sum integer)"))
        connection.execute(sa.text("INSERT INTO accounts VALUES ('anna', 0, 0)"))
    (code,) = examples(DOCS / "order.md")
    url = postgres.url.render_as_string(hide_password=False)
    named = run(code.replace("postgresql+psycopg://localhost/shop", url))
    with named["pool"]:
        named["deposit"]("anna", 5)
        named["deposit"]("anna", 7)
    assert read_topic(emulator.bootstrap_servers, "accounts") == [("anna", "1: 5"), ("anna", "2: 7")]


def test_the_page_of_fastapi_is_a_whole_service(run: Run, emulator: Emulator, postgres: PostgresDatabase) -> None:
    url = postgres.url.render_as_string(hide_password=False)
    (code,) = examples(DOCS / "fastapi.md")
    with TestClient(run(code.replace("postgresql+psycopg://localhost/shop", url))["app"]) as client:
        orders = ("1?item=lamp", "1?item=lamp", "1?item=shade")
        assert [client.put(f"/orders/{order}").status_code for order in orders] == [201, 200, 409]
        with kafka_away(emulator):
            refused = client.put("/orders/2?item=lamp")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert refused.json() == {"detail": "this was not written"}
    assert read_topic(emulator.bootstrap_servers, "orders") == [("1", "lamp")]
    with postgres.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT id, item FROM orders")).all() == [(1, "lamp")]


def test_the_page_of_fastapi_tests_its_service(postgres: PostgresDatabase, tmp_path: Path) -> None:
    page = (DOCS / "fastapi.md").read_text()
    (shop,), (tests,) = examples(DOCS / "fastapi.md"), re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    shop = shop.replace('"postgresql+psycopg://localhost/shop"', 'os.environ["DATABASE_URL"]')
    (tmp_path / "shop.py").write_text("import os\n" + shop.replace('"127.0.0.1:9092"', 'os.environ["KAFKA"]'))
    (tmp_path / "test_shop.py").write_text(tests)
    url = postgres.url.render_as_string(hide_password=False)
    environment = os.environ | {"DATABASE_URL": url, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "pytest", "-q", "test_shop.py"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_of_faststream_is_a_whole_service(run: Run, emulator: Emulator, postgres: PostgresDatabase) -> None:
    url = postgres.url.render_as_string(hide_password=False)
    service, shop = examples(DOCS / "faststream.md")
    emulator.create_topic("invoices")
    run(shop)
    app = run(service.replace("postgresql+psycopg://localhost/shop", url))["app"]

    async def serve() -> None:
        running = asyncio.create_task(app.run())
        await asyncio.to_thread(until, lambda: len(emulator.records("invoices")) == 1)
        app.exit()
        await running

    asyncio.run(serve())
    assert read_topic(emulator.bootstrap_servers, "invoices") == [("1", "one lamp")]
    with postgres.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT id, item FROM invoices")).all() == [(1, "lamp")]


@pytest.mark.parametrize("number", range(len(examples(DOCS / "reading.md"))))
def test_readers_of_each_client_skip_aborted_records(run: Run, emulator: Emulator, number: int) -> None:
    emulator.create_topic("orders")
    with Producer(bootstrap_servers=emulator.bootstrap_servers, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", key="1", value="aborted")
        producer.abort_transaction()
        with producer.transaction():
            producer.send("orders", key="1", value="lamp")
    record = run(examples(DOCS / "reading.md")[number])["record"]
    assert (record.value() if callable(record.value) else record.value) == b"lamp"


def test_the_page_of_the_pool_names_everything_in_its_status() -> None:
    named = re.findall(r"`(\w+)`", " ".join(row[0] for row in rows("writer-reference.md", "`pool.status`")))
    assert named == [field.name for field in fields(PoolStatus)]


RUN_AS_THEY_ARE = [
    (page, number)
    for page in ("producer.md", "guarantees.md", "operations.md", "coming-from.md")
    for number in range(len(examples(DOCS / page)))
]


@pytest.mark.parametrize("number", range(len(examples(DOCS / "emulator-security.md"))))
def test_examples_of_the_emulators_security_run(run: Run, number: int) -> None:
    run(examples(DOCS / "emulator-security.md")[number])


ADMINISTRATION = [*examples(DOCS / "emulator-settings.md"), *examples(DOCS / "emulator-admin.md")]


@pytest.mark.parametrize("number", range(len(ADMINISTRATION)))
def test_examples_of_the_emulators_administration_run(run: Run, number: int) -> None:
    run(ADMINISTRATION[number])


@pytest.mark.parametrize(("page", "number"), RUN_AS_THEY_ARE)
def test_examples_of_the_producer_run(run: Run, emulator: Emulator, page: str, number: int) -> None:
    with Producer(bootstrap_servers=emulator.bootstrap_servers) as producer:  # for the examples that consume
        producer.send("orders", key="0", value="shade")
    run(examples(DOCS / page)[number])
    assert all(transaction.state != "Ongoing" for transaction in emulator.transactions())


def test_all_clients_of_the_comparison_write_the_same(run: Run, emulator: Emulator) -> None:
    one_transaction = examples(DOCS / "coming-from.md")[:5]
    for code in one_transaction:
        run(code)
    assert read_topic(emulator.bootstrap_servers, "orders") == [("1", "lamp")] * len(one_transaction)


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    _, _, below = (DOCS / page).read_text().partition(f"\n## {heading}\n")
    found = re.search(r"^\|[-| ]+\|\n((?:\|.*\n)+)", below, re.MULTILINE)
    assert found, f"{page} has no table below {heading}"
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found[1].splitlines()]


def written(name: str, default: object) -> str:
    """A default as the page writes it."""
    named = {"compression_type": COMPRESSION_TYPES, "acks": ACKS}.get(name)
    if named is not None:
        return next(text for text, number in named.items() if number == default)
    if default is MISSING:
        return ""
    return {None: "none", True: "true", False: "false"}.get(default, str(default).strip("`"))  # type: ignore[call-overload, no-any-return]


def test_every_setting_is_in_the_table_with_its_default() -> None:
    table = {name.strip("`"): default.strip("`") for name, default, _ in rows("producer-reference.md", "Settings")}
    security = {field.name for field in fields(SecurityConfig)}
    expected = {
        field.name.replace("_", "."): written(field.name, field.default)
        for field in fields(ProducerConfig)
        if field.name not in security
    }
    assert table == expected
    page = (DOCS / "security.md").read_text()
    assert [name for name in security if f"`{name.replace('_', '.')}`" not in page] == []


def test_every_metric_is_in_the_table() -> None:
    metrics = Metrics().snapshot(buffer_total=0, buffer_used=0, in_flight=0)
    assert [name.strip("`") for name, _ in rows("producer-reference.md", "Metrics")] == list(metrics)


OTHER_ERRORS = (errors.RecipeError, errors.AdminError, errors.IncompleteAnswerError)
OTHER_MODULES = ("dualwrite.admin", "dualwrite.outcome", "dualwrite.recipes")


def is_of_the_producer(name: str, module: str) -> bool:
    value = getattr(dualwrite, name)
    return not module.startswith(OTHER_MODULES) and not (isinstance(value, type) and issubclass(value, OTHER_ERRORS))


def test_the_pages_of_the_producer_have_every_public_name() -> None:
    pages = "".join(
        (DOCS / page).read_text() for page in ("producer.md", "producer-reference.md", "guarantees.md", "errors.md")
    )
    names = {name for name, module in dualwrite._MODULES.items() if is_of_the_producer(name, module)}
    assert {name for name in names if not re.search(rf"\b{name}\b", pages)} == set()
    calls = {name for name in dir(Producer) if not name.startswith("_")}
    assert {name for name in calls if f"`{name}" not in pages} == set()


@pytest.mark.parametrize("name", [name for name in dualwrite.__all__ if name.endswith("DualWriter")])
def test_every_setting_of_a_writer_is_in_the_table_with_its_default(name: str) -> None:
    made = getattr(dualwrite, name)
    declared = [list(inspect.signature(each).parameters.values()) for each in get_overloads(made.__init__) or [made]]
    settings = [each for parameters in declared for each in parameters[:-1] if each.kind is each.KEYWORD_ONLY]
    assert all(parameters[-1].kind is inspect.Parameter.VAR_KEYWORD for parameters in declared)
    listed = rows("writer-reference.md", "Settings")
    table = {setting: default for names, default, _ in listed for setting in ids_in(names)}
    for setting in settings:
        assert setting.name in table
        if setting.default is not setting.empty and setting.name != "session_factory":
            assert table[setting.name].strip("`").strip('"') == str(setting.default)


def ids_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)
