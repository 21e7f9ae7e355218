"""The Celery worker: its processes are killed between the steps of their tasks, and both sides agree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import RetriableError
from dualwrite.outcome import Outcome, note_outcome, outcome_of
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.testing.postgres import PostgresServer
from examples import celery_worker
from examples.celery_worker import TOPIC, app, place_order, queue_in
from tests.crash.scenario import AtPoint
from tests.recipes.repairs import lose_decided
from tests.support.conditions import until
from tests.support.databases import unique
from tests.support.topics import read_topic
from tests.test_docs import DOCS, examples

ORDERS = 8


@contextmanager
def worker(
    shop: dict[str, str], module: str, *arguments: str, directory: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, **shop},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # its prefork processes are killed with it
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def shop(postgres_server: PostgresServer, emulator: Emulator, tmp_path: Path) -> dict[str, str]:
    """The environment of a worker. The queue is a folder, which the tests of Celery itself use too."""
    emulator.create_topic(TOPIC)
    url = postgres_server.create_database(unique("celery").replace("-", "_"))
    app.conf.broker_transport_options = queue_in(str(tmp_path))
    return {
        "SHOP_DATABASE_URL": url.render_as_string(hide_password=False),
        "SHOP_BOOTSTRAP_SERVERS": emulator.bootstrap_servers,
        "SHOP_QUEUE": str(tmp_path),
    }


def rows(shop: dict[str, str]) -> Counter[tuple[str, str]]:
    engine = sa.create_engine(shop["SHOP_DATABASE_URL"], poolclass=sa.NullPool)
    if not sa.inspect(engine).has_table("orders"):
        return Counter()
    with engine.connect() as connection:
        return Counter((str(key), item) for key, item in connection.execute(sa.text("SELECT id, item FROM orders")))


def records(shop: dict[str, str]) -> Counter[tuple[str, str]]:
    return Counter(read_topic(shop["SHOP_BOOTSTRAP_SERVERS"], TOPIC))


def test_processes_are_killed_and_tasks_repeated(shop: dict[str, str]) -> None:
    """Each task is sent twice, as a client does that got no response; each process dies after one or two of them."""
    everything = Counter((str(number), f"item {number}") for number in range(ORDERS))
    for number in [*range(ORDERS), *range(ORDERS)]:
        place_order.delay(number, f"item {number}")
    with worker(shop, "tests.examples.dying_celery_worker"):
        until(lambda: rows(shop) == everything, timeout_s=200)
        until(lambda: records(shop) == everything)
    assert (rows(shop), records(shop)) == (everything, everything)


def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.celery_worker"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "10 orders are placed\n"), done.stderr


def test_only_a_violation_by_the_order_counts_as_an_earlier_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL reports one, too, where two processes create a table at the same time: that order is not written."""

    def create_what_another_process_creates() -> None:
        raise IntegrityError("CREATE TABLE orders", {}, Exception("pg_type_typname_nsp_index"))

    monkeypatch.setattr(celery_worker, "writers", create_what_another_process_creates)
    with pytest.raises(IntegrityError):
        place_order.run(1, "lamp")


def test_a_task_whose_record_is_lost_is_no_success(
    shop: dict[str, str], emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of the task is there: a retry would find it, and consider the task done."""
    lose = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, lambda: lose_decided(emulator.bootstrap_servers, TOPIC))
    engine = sa.create_engine(shop["SHOP_DATABASE_URL"])
    celery_worker.Base.metadata.create_all(engine)
    with DualWriter(engine, prefix="shop", bootstrap_servers=emulator.bootstrap_servers, pause=lose) as pool:
        monkeypatch.setattr(celery_worker, "writers", lambda: pool)
        lost = place_order.apply((1, "lamp"))
    assert (lost.state, lost.result.outcome) == ("FAILURE", Outcome.COMMITTED)
    assert (rows(shop), records(shop)) == (Counter([("1", "lamp")]), Counter())
    engine.dispose()


@pytest.mark.parametrize("outcome", [Outcome.ROLLED_BACK, Outcome.UNKNOWN])
def test_a_task_that_may_not_be_written_is_repeated(outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        error = RetriableError("of Kafka")
        note_outcome(error, outcome)
        raise error

    monkeypatch.setattr(celery_worker, "writers", lambda: MagicMock(transaction=MagicMock(side_effect=fail)))
    monkeypatch.setattr(celery_worker, "LONGEST_PAUSE_S", 0)
    monkeypatch.setattr(place_order, "max_retries", 2)
    asked = MagicMock(wraps=outcome_of)
    monkeypatch.setattr(celery_worker, "outcome_of", asked)
    assert place_order.apply((1, "lamp")).state == "FAILURE"
    assert asked.call_count == 3


def test_the_tasks_of_the_page_run(postgres_server: PostgresServer, emulator: Emulator, tmp_path: Path) -> None:
    (code,) = examples(DOCS / "celery.md")
    url = postgres_server.create_database(unique("tasks").replace("-", "_")).render_as_string(hide_password=False)
    code = code.replace("postgresql+psycopg://localhost/shop", url)
    (tmp_path / "tasks.py").write_text(code.replace("127.0.0.1:9092", emulator.bootstrap_servers))
    shop = {
        "SHOP_DATABASE_URL": url,
        "SHOP_BOOTSTRAP_SERVERS": emulator.bootstrap_servers,
        "PYTHONPATH": str(DOCS.parent),
    }
    send = "from tasks import place_order\nfor number in (1, 1, 2, 3): place_order.delay(number, 'lamp')"
    subprocess.run([sys.executable, "-c", send], cwd=tmp_path, env={**os.environ, **shop}, check=True)
    expected = Counter((number, "lamp") for number in "123")
    with worker(shop, "celery", "-A", "tasks", "worker", "--concurrency", "2", directory=tmp_path):
        until(lambda: rows(shop) == expected, timeout_s=100)
        until(lambda: records(shop) == expected)
