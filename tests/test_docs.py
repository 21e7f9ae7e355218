"""The documentation says what the code does."""

from __future__ import annotations

import re
import runpy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.producer import Producer
from tests.support.conditions import until
from tests.support.topics import read_topic

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_the_diagrams_are_those_of_the_tables() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_state_machines.py"))
    assert drawn["PAGE"].read_text() == drawn["page"](), "run: python docs/draw_state_machines.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def examples(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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


def test_the_readme_opens_with_a_dual_write_that_works(run: Run, emulator: Emulator, tmp_path: Path) -> None:
    code = examples(ROOT / "README.md")[0]
    assert len(code.splitlines()) <= 20
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    namespace = run(code.replace("postgresql+psycopg://localhost/shop", url))
    engine = namespace["engine"]
    assert isinstance(engine, sa.Engine)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT id, item FROM orders")).all() == [(1, "lamp")]
    assert read_topic(emulator.bootstrap_servers, "orders") == [("1", '{"item": "lamp"}')]


def test_the_readme_shows_a_broker_inside_a_test(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(examples(ROOT / "README.md")[1])
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", capsys.readouterr().out)


def test_the_readme_shows_the_producer_alone(run: Run, emulator: Emulator) -> None:
    code = examples(ROOT / "README.md")[2]
    run(code, stored_text="")
    run(code, stored_text="")
    assert read_topic(emulator.bootstrap_servers, "orders") == [("1", "lamp")] * 2


def test_the_emulator_page_shows_faults_and_pause_points(run: Run) -> None:
    def client(broker: Emulator) -> None:
        def transact() -> None:
            with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t") as producer:
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
