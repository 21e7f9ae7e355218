"""The examples of docs/spark.md, examples/spark_stream.py and the demo's queries, in one JVM."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import URL_VARIABLE, PostgresServer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from examples import spark_stream
from examples.flights.events import read_events
from examples.flights.topic import read_topic as read_records
from examples.flights_spark import driver
from examples.flights_spark.input_files import write_input_files
from examples.flights_spark.job import Job
from examples.flights_spark.methods import Method
from examples.flights_spark.tables import METADATA, read_rows, read_totals
from examples.flights_spark.verdict import judge
from spark_sink import register
from tests.support.databases import PostgresDatabase
from tests.support.servers.apache_kafka import ApacheKafka
from tests.support.spark_session import start_session
from tests.support.topics import read_topic
from tests.support.unavailable import skip
from tests.test_docs import ROOT, examples

pytestmark = pytest.mark.timeout(300)  # a JVM takes a minute to start where all cores are busy

QUICK_START, FOREACH_BATCH, BATCH_JOB = examples(ROOT / "docs" / "spark.md")[:3]


@pytest.fixture
def store(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    made = PostgresDatabase(postgres_server)
    yield made
    made.close()


def url_of(store: PostgresDatabase) -> str:
    return store.url.render_as_string(hide_password=False)


def execute(store: PostgresDatabase, sql: str) -> None:
    with store.engine.begin() as connection:
        connection.execute(sa.text(sql))


def select(store: PostgresDatabase, sql: str) -> list[tuple[object, ...]]:
    with store.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(sql))]


class Broker(Protocol):
    """A broker that examples write to."""

    @property
    def bootstrap_servers(self) -> str: ...


@pytest.fixture(params=["emulator", "Apache Kafka"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Yield the emulator, and a released Apache Kafka with the settings that it comes with."""
    if request.param == "emulator":
        with Emulator() as emulator:
            yield emulator
        return
    try:
        kafka = ApacheKafka().start()
    except ServerUnavailableError as error:
        skip(error)
    try:
        yield kafka
    finally:
        kafka.stop()


def run(code: str, directory: Path, broker: Broker, store: PostgresDatabase, **names: object) -> dict[str, Any]:
    """Return an example with the servers of the test instead of its own."""
    for shown, real in {
        "127.0.0.1:9092": broker.bootstrap_servers,
        "postgresql+psycopg://localhost/shop": url_of(store),
        '"commitStore.urlEnv": "ORDERS_STORE_URL"': f'"commitStore.url": "{url_of(store)}"',
        '"incoming"': f'"{directory}/incoming"',
        '"checkpoints/orders"': f'"{directory}/checkpoint"',
    }.items():
        code = code.replace(shown, real)
    script = directory / "example.py"
    script.write_text(code)
    return runpy.run_path(str(script), init_globals=names, run_name="example")


def test_the_quick_start_writes_topic_and_table(broker: Broker, store: PostgresDatabase, tmp_path: Path) -> None:
    """As it is printed: it makes its input and its table, and the broker creates the topic."""
    start_session()
    run(QUICK_START, tmp_path, broker, store)
    assert select(store, "SELECT id, item FROM orders ORDER BY id") == [(1, "lamp"), (2, "chair")]
    assert sorted(read_topic(broker.bootstrap_servers, "orders")) == [
        ("1", '{"id":1,"item":"lamp"}'),
        ("2", '{"id":2,"item":"chair"}'),
    ]


def test_foreach_batch_and_batch_jobs(emulator: Emulator, store: PostgresDatabase, tmp_path: Path) -> None:
    emulator.create_topic("orders", 2)
    execute(store, "CREATE TABLE progress (batches BIGINT)")
    execute(store, "INSERT INTO progress VALUES (0)")
    write = run(FOREACH_BATCH, tmp_path, emulator, store)["write"]
    spark = start_session()
    register(spark)
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "1.json").write_text('{"value": "streamed"}\n')
    stream = spark.readStream.schema("value STRING").json(str(tmp_path / "incoming"))
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert select(store, "SELECT batches FROM progress") == [(1,)]
    options = {
        "kafka.bootstrap.servers": emulator.bootstrap_servers,
        "topic": "orders",
        "sinkId": "jobs",
        "commitStore.url": url_of(store),
    }
    df = spark.createDataFrame([("of a job",)], "value STRING")
    for _ in range(2):
        run(BATCH_JOB, tmp_path, emulator, store, df=df, options=options)
    spark.stop()
    assert sorted(value for _, value in read_topic(emulator.bootstrap_servers, "orders")) == ["of a job", "streamed"]


def test_the_example_runs(
    store: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(URL_VARIABLE, url_of(store))
    spark_stream.main()
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "table: [(0, 'lamp'), (1, 'chair')]",
        """topic: ['{"id":0,"item":"lamp"}', '{"id":1,"item":"chair"}']""",
    ]


def test_both_queries_of_the_demo_write_everything_where_nothing_is_killed(
    emulator: Emulator, store: PostgresDatabase, tmp_path: Path
) -> None:
    events = list(read_events(None, key=None, limit=60))
    write_input_files(events, tmp_path / "input", rows_per_file=30)
    for method in Method:
        emulator.create_topic(method.topic, 2)
    METADATA.create_all(store.engine)
    servers = emulator.bootstrap_servers
    driver.main(Job(url_of(store), servers, str(tmp_path / "input"), str(tmp_path / "checkpoints"), 2))
    for method in Method:
        with store.engine.connect() as connection:
            rows, totals = read_rows(connection, method), read_totals(connection, method)
        verdict = judge(events, rows, read_records(servers, method.topic), totals)
        assert (verdict.divergences, verdict.rows, verdict.records) == (0, 60, 60), json.dumps(verdict.examples(5))
