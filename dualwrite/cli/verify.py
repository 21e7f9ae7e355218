"""`dualwrite verify`: write to your cluster and database under kills, and check that both sides agree."""

from __future__ import annotations

import signal
import tempfile
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click
import sqlalchemy as sa

from dualwrite.cli.connection import (
    KafkaAccess,
    database,
    database_option,
    json_option,
    kafka_options,
    schema_option,
)
from dualwrite.cli.doctor_database import version_of
from dualwrite.cli.doctor_kafka import cluster_checks
from dualwrite.cli.failures import LEFT
from dualwrite.cli.groups import Command
from dualwrite.cli.numbers import number_option
from dualwrite.cli.output import ask, counted, print_json
from dualwrite.cli.verify_kafka import RETENTION_MS, CannotRunError
from dualwrite.cli.verify_report import Servers, report_of
from dualwrite.cli.verify_run import Plan, Run, Verified, prefix_of
from dualwrite.guarantee import Tier
from dualwrite.verify.lines import to_lines

_BYTES: Final = 2_000
"""Bytes of one dual write, on both sides together, generously."""
_MOST_SECONDS: Final = RETENTION_MS / 1000 / 4
"""The topic must keep everything until it is read."""


@click.command("verify", cls=Command, short_help="Write under kills, and check that both sides agree.")
@kafka_options
@database_option(required=True)
@schema_option
@number_option("--seconds", metavar="SECONDS", least=1.0, most=_MOST_SECONDS, default=30.0, help="How long to write.")
@number_option(
    "--workers", metavar="N", least=1, most=64, default=4, help="How many processes write; they are killed and frozen."
)
@number_option("--writers", metavar="N", least=1, most=32, default=2, help="How many threads of each process write.")
@number_option(
    "--rate",
    metavar="N",
    least=0.1,
    most=1000,
    default=50.0,
    help="How many dual writes all of them begin in a second, if the servers keep up.",
)
@click.option("--topic", metavar="NAME", help="The topic to create; by default, its name begins with dualwrite-verify.")
@number_option("--partitions", metavar="N", least=1, most=100, default=3, help="How many partitions the topic gets.")
@number_option(
    "--replication-factor",
    metavar="N",
    least=1,
    help="How many replicas the partitions get; by default, the brokers' setting.",
)
@number_option("--settle", metavar="SECONDS", least=1.0, default=60.0, help="How long recovery may take, and reading.")
@click.option("--keep", is_flag=True, help="Leave the topic, the table and the rows of the ids.")
@click.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the history in this file; by default, only a history with findings is kept.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a report to send in: versions and results, without names and addresses.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    access: KafkaAccess,
    database_url: str,
    schema: str | None,
    seconds: float,
    workers: int,
    writers: int,
    rate: float,
    topic: str | None,
    partitions: int,
    replication_factor: int | None,
    settle: float,
    keep: bool,
    history: Path | None,
    report: Path | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Write through a pool for a while, kill the writing processes, and check that both sides agree.

    It writes only to a topic and a table of its own, under transactional ids of its own, at a bounded rate, and it
    signals only processes that it has started. Its topic and table are removed, unless something is wrong.

    Exit code: 0 both sides agree; 1 an anomaly was found, or a file could not be written; 2 wrong usage, or it could
    not run.
    """
    if not hasattr(signal, "SIGSTOP"):
        raise CannotRunError("this operating system cannot freeze processes; run it on Linux or macOS, on any machine")
    run = uuid.uuid4().hex[:8]
    with database(database_url) as engine:
        servers = _servers(access, engine, prefix_of(run))
        plan = Plan(
            run=run,
            topic=f"dualwrite-verify-{run}" if topic is None else topic,
            seconds=seconds,
            workers=workers,
            writers=writers,
            rate=rate,
            partitions=partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            settle_s=settle,
            keep=keep,
            is_ordered=servers.tier is Tier.KEEP_PREPARED,
            schema=schema,
        )
        _ask(plan, yes=yes)
        with tempfile.TemporaryDirectory(prefix="dualwrite-verify-") as directory:
            made = Run(plan, engine, database_url, access.settings, access.timeout_ms)
            verified = made.verify(Path(directory), _say(as_json=as_json))
    if history is None and not verified.is_clean:
        history = Path(f"dualwrite-verify-{run}.jsonl")
    if as_json:
        print_json(_document(plan, verified, history))
    else:
        _print(verified, history)
    is_written = [_write(history, to_lines(verified.history)), _write(report, [report_of(servers, plan, verified)])]
    if not verified.report.committed and verified.is_clean:
        raise CannotRunError("no dual write was committed, so nothing is verified: see the outcomes above")
    ctx.exit(0 if verified.is_clean and all(is_written) else LEFT)


def _servers(access: KafkaAccess, engine: sa.Engine, prefix: str) -> Servers:
    """Describe the servers; the tier is that of these ids, as rights are given by id."""
    with access.admin() as admin:
        features, commits = admin.describe_features(), admin.describe_two_phase_commit(f"{prefix}-0")
    _, tier = cluster_checks(features, commits)
    if tier is None:
        raise CannotRunError("some brokers are too old for dual writes; `dualwrite doctor` says which")
    with engine.connect() as connection:
        return Servers(features, commits, tier, version_of(connection))


def _say(*, as_json: bool) -> Callable[[str], None]:
    """Return how to print progress for people, without mixing it into output for programs."""
    return lambda what: click.echo(what, err=as_json)


def _ask(plan: Plan, *, yes: bool) -> None:
    """Print the plan, and ask for confirmation."""
    most = int(plan.seconds * plan.rate)
    megabytes = max(1, most * _BYTES // 1_000_000)
    click.echo(
        f"creates the topic {plan.topic} ({counted(plan.partitions, 'partition')}) and the table {plan.table}, and "
        f"the tables of dual writes where they are missing\nwrites about {counted(most, 'dual write')}, {plan.rate:g} "
        f"in a second, under the transactional ids {plan.prefix}-*: at most about {megabytes} MB in the topic and in "
        f"the database\nkills and freezes its own {counted(plan.workers, 'worker')} at random, and recovers their "
        "transactions\n"
        + (
            "leaves the topic, the table and the rows of the ids (--keep)"
            if plan.keep
            else "removes the topic, the table and the rows of the ids, unless something is wrong"
        ),
        err=True,
    )
    ask(yes=yes)


def _write(path: Path | None, lines: Iterable[str]) -> bool:
    """Write a file, if one is wanted; print why it could not be written, as the results must not be lost with it."""
    try:
        if path is not None:
            with path.open("w", encoding="utf-8") as file:
                file.writelines(lines)
    except OSError as error:
        click.echo(f"dualwrite verify: cannot write {path}: {error.strerror}; the results above are complete", err=True)
        return False
    return True


def _print(verified: Verified, kept: Path | None) -> None:
    deeds = ", ".join(f"{number} {deed}" for deed, number in sorted(_by_kind(verified).items()))
    click.echo(f"workers: {deeds or 'none was killed or frozen'}")
    click.echo(str(verified.report))
    for each in verified.unsettled:
        click.echo(f"not recovered: {each}")
    for each in verified.left:
        click.echo(f"left: {each}")
    if kept is not None:
        click.echo(f"history: {kept}")


def _by_kind(verified: Verified) -> dict[str, int]:
    kinds = {"killed": 0, "frozen": 0}
    for deed, number in verified.deeds.items():
        kinds[deed.partition(" ")[0]] += number
    return {kind: number for kind, number in kinds.items() if number}


def _document(plan: Plan, verified: Verified, kept: Path | None) -> dict[str, Any]:
    """Return the document of `--json`; docs/cli.md has its keys."""
    report = verified.report
    return {
        "clean": verified.is_clean,
        "run": plan.run,
        "topic": plan.topic,
        "table": plan.table,
        "prefix": plan.prefix,
        "seconds": plan.seconds,
        "deeds": dict(sorted(verified.deeds.items())),
        "dual_writes": report.dual_writes,
        "committed": report.committed,
        "rolled_back": report.rolled_back,
        "records": report.records,
        "read": report.read,
        "anomalies": {str(anomaly): number for anomaly, number in report.counts.items()},
        "findings": [
            {
                "anomaly": str(finding.anomaly),
                "sentence": finding.sentence,
                "dual_writes": list(finding.dual_writes),
                "places": list(finding.places),
            }
            for finding in report.findings
        ],
        "unsettled": verified.unsettled,
        "left": verified.left,
        "history": None if kept is None else str(kept),
    }
