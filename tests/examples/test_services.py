"""The worker, the pipeline and the migration from an outbox run unchanged, and do as they say."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.testing.postgres import URL_VARIABLE
from examples import leaving_outbox, pipeline, worker
from tests.support.databases import PostgresDatabase
from tests.support.threads import in_threads
from tests.support.topics import read_topic


@pytest.fixture
def engine(postgres: PostgresDatabase) -> sa.Engine:
    return postgres.engine


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("worker", "squares: 0 1 4 9 16 25 36 49 64 81\n"),
        (
            "pipeline",
            "order-0 is billed with 20\norder-1 is billed with 45\n"
            "the malformed order, which the log shows, is in the topic orders-refused\n",
        ),
        ("leaving_outbox", "1 record of the outbox was left to publish; the table can be dropped\n"),
    ],
)
def test_the_example_runs(postgres: PostgresDatabase, module: str, said: str) -> None:
    environment = {**os.environ, URL_VARIABLE: postgres.url.render_as_string(hide_password=False)}
    command = [sys.executable, "-m", f"examples.{module}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, sorted(said.splitlines())), done.stderr


def test_two_workers_share_the_jobs(engine: sa.Engine, emulator: Emulator) -> None:
    emulator.create_topic("squares")
    worker.Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(worker.Job(number=number) for number in range(20))
    stops = [threading.Event(), threading.Event()]

    def run(number: int) -> None:
        servers = emulator.bootstrap_servers
        with DualWriter(engine, bootstrap_servers=servers, transactional_id=f"worker-{number}") as writer:
            worker.work(writer, stops[number], when_idle=stops[number].set)

    in_threads(lambda: run(0), lambda: run(1))
    with Session(engine) as session:
        jobs = session.scalars(sa.select(worker.Job)).all()
    assert all(job.square == job.number**2 for job in jobs)
    published = read_topic(emulator.bootstrap_servers, "squares")
    assert sorted(key for key, _ in published) == sorted(str(job.id) for job in jobs)


def test_an_order_that_cannot_be_read_is_set_aside(engine: sa.Engine, emulator: Emulator) -> None:
    for topic in ("orders", "invoices", "orders-refused"):
        emulator.create_topic(topic)
    waiting = pipeline.place_orders(emulator.bootstrap_servers)
    consumer = pipeline.kafka_python_consumer(emulator.bootstrap_servers)
    billing = pipeline.pipeline(engine, emulator.bootstrap_servers, consumer, "1")
    while waiting > 0:
        waiting -= billing.step()
    consumer.close()
    with Session(engine) as session:
        billed = {invoice.order_id: invoice.amount for invoice in session.scalars(sa.select(pipeline.Invoice))}
    assert billed == {"order-0": 20, "order-1": 45}
    assert len(read_topic(emulator.bootstrap_servers, "invoices")) == 2
    assert read_topic(emulator.bootstrap_servers, "orders-refused") == [("", "{")]


def test_records_of_a_key_stay_in_order_while_both_ways_are_in_use(engine: sa.Engine, emulator: Emulator) -> None:
    emulator.create_topic(leaving_outbox.TOPIC)
    leaving_outbox.Base.metadata.create_all(engine)
    servers = emulator.bootstrap_servers
    with DualWriter(engine, bootstrap_servers=servers, transactional_id="accounts-1") as writer:
        for amount in range(0, 6, 2):
            with Session(engine) as session:
                leaving_outbox.book_with_outbox(session, "alice", amount)
                leaving_outbox.book_with_outbox(session, "bob", amount)
            leaving_outbox.book(writer, "alice", amount + 1)
        assert leaving_outbox.drain(writer) == 3
        assert leaving_outbox.drain(writer) == 0
    published = read_topic(servers, leaving_outbox.TOPIC)
    assert [value for key, value in published if key == "alice"] == ["0", "1", "2", "3", "4", "5"]
    assert [value for key, value in published if key == "bob"] == ["0", "2", "4"]
    with Session(engine) as session:
        assert session.scalar(sa.select(sa.func.count(leaving_outbox.Outbox.id))) == 0
        assert session.scalar(sa.select(sa.func.count(leaving_outbox.Entry.id))) == 9
