"""`dualwrite spark ...`: operate the sinks of Spark applications, without Spark.

This module and its `spark_*` neighbours alone import `spark_sink`; they are imported when one of its commands is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import click

from dualwrite.cli.colours import Meaning
from dualwrite.cli.connection import (
    KafkaAccess,
    database_option,
    json_option,
    publishing_kafka_options,
    store_kafka_options,
)
from dualwrite.cli.failures import LEFT
from dualwrite.cli.groups import Group
from dualwrite.cli.init_db import make_tables
from dualwrite.cli.output import duration, print_json, print_labelled, print_table
from dualwrite.cli.rounds import check_rounds, in_rounds, round_options
from dualwrite.cli.spark_files import command as export_files
from dualwrite.cli.spark_gc import command as gc
from dualwrite.cli.spark_phases import command as phases
from dualwrite.cli.spark_status import command as status
from dualwrite.cli.spark_store import (
    NamedBatch,
    StoreAccess,
    batch_options,
    is_topic,
    schema_option,
    sink_option,
    store_options,
    topic_store,
)
from spark_sink.driver.completion import Completion
from spark_sink.driver.recovery import CHANGES, Found, FoundOwed, RecoveryReport, SinkRecovery
from spark_sink.options import DEFAULT_COMMIT_PARALLELISM
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.tables import StoreTables

_FOUND: Final = (
    *("Sink", "Query", "Batch", "TransactionalId", "Status", "Action", "Done"),
    *("TransactionState", "Pair", "Age", "TopicPartitions", "Error"),
)


@click.group("spark", cls=Group, short_help="Operate the sinks of Spark applications.")
def command() -> None:
    """Operate the sinks of Spark applications (`format("dualwrite-kafka")`), without Spark."""


command.add_command(status)
command.add_command(phases)
command.add_command(export_files)
command.add_command(gc)


def _completion(access: KafkaAccess) -> Completion:
    """Return a completion that accepts every broker.

    It prepares no new transaction, and those it finds were left under the guarantee of the existing brokers.
    """
    given = access.settings | access.publishing
    settings = {name.replace("_", "."): value for name, value in given.items()}
    settings |= {"transaction.two.phase.commit.enable": True, "accept.bounded.guarantee": True}
    return Completion(settings, parallelism=DEFAULT_COMMIT_PARALLELISM, step_timeout_ms=access.timeout_ms)


# ---- init-store ---------------------------------------------------------------------------------------------


@command.command("init-store", short_help="Create the tables, or the topic, of the commit store.")
@store_kafka_options
@database_option(required=False)
@schema_option
@click.option("--sql", is_flag=True, help="Print the DDL instead of running it; connects to nothing.")
@click.option("--dialect", metavar="NAME", help="For --sql without --database: postgresql, mysql, mariadb, sqlite.")
def _init_store(
    *, access: KafkaAccess, database_url: str | None, schema: str | None, sql: bool, dialect: str | None
) -> None:
    """Create the tables of the commit store that are missing; existing ones stay as they are.

    For --database kafka:///topic, or kafka://host:port/topic, create the topic with the settings that it has to have.
    The sink itself creates them unless commitStore.createTables=false is set.
    """
    if database_url is not None and is_topic(database_url):
        if sql:
            raise click.UsageError("--sql has no effect with a commit store in a topic")
        with topic_store(database_url, schema, access) as store:
            store.create()
        return
    tables = StoreTables(schema)
    make_tables(tables.metadata.sorted_tables, tables.create, database_url, sql=sql, dialect=dialect)


# ---- recover ------------------------------------------------------------------------------------------------


@command.command("recover", short_help="End the transactions that an application left open.")
@store_options(publishing_kafka_options)
@sink_option
@click.option(
    "--condemn",
    multiple=True,
    metavar="ID",
    help="The application of this sink is gone: abort its undecided transactions. May be repeated.",
)
@click.option(
    "--abort-orphans",
    multiple=True,
    metavar="ID",
    help="Abort open transactions of this sink without a row, though the store cannot tell whether they are decided. "
    "May be repeated.",
)
@round_options(
    apply="End the transactions that are found, or only report them, which is the default and changes nothing.",
    min_age="Leave everything that has changed within this time to the application.",
)
@json_option
@click.pass_context
def _recover(
    ctx: click.Context,
    *,
    store: StoreAccess,
    sink_ids: tuple[str, ...],
    apply: bool,
    min_age: float,
    condemn: tuple[str, ...],
    abort_orphans: tuple[str, ...],
    once: bool,
    interval: float | None,
    as_json: bool,
) -> None:
    """End the Kafka transactions that a Spark application left open, as the commit store has decided.

    Transactions of a decided batch are committed, condemned ones are aborted, and decided files are added to the Delta
    or Iceberg table (pip install 'dualwrite[spark-delta]' or 'dualwrite[spark-iceberg]'). The command may run at any
    time, beside the application, and several times at once. Undecided transactions are left to the application, which
    ends them when it is started again; if that will not happen, name its sink with --condemn.

    A transaction without a row (no-row) is of a store that was lost or restored to an older state, or of another
    program. This store cannot tell whether it is decided: if its batch was decided in the lost part of the store's
    history, the table may have its rows, and --abort-orphans loses its records; without it, readers wait. So compare
    table and topic first: you decide. A transaction whose producer id and epoch the store does know is ended as it was
    decided, without being asked for. A sink that the store does not have is left alone, because it may be the wrong
    database.

    Exit code: 0 nothing is left; 1 something is left undecided, lost, without a row, or failed (without --apply: or
    would be ended), or a transaction hangs; 2 wrong usage, or Kafka or the database cannot be reached.
    """
    check_rounds(once=once, interval=interval)
    for option, named in (("--condemn", condemn), ("--abort-orphans", abort_orphans)):
        if named and interval is not None:
            raise click.UsageError(f"{option} is for a sink that you have examined: use it without --interval")
    with store.open() as opened, store.kafka.admin(reached=interval is None) as admin:
        recovery = SinkRecovery(
            opened,
            _completion(store.kafka),
            admin,
            sink_ids=sink_ids,
            condemn=condemn,
            abort_orphans=abort_orphans,
            min_age_ms=int(min_age * 1000),
        )
        if interval is None:
            ctx.exit(_round(recovery, apply=apply, as_json=as_json))
        ctx.exit(_rounds(recovery, interval, apply=apply, as_json=as_json))


def _round(recovery: SinkRecovery, *, apply: bool, as_json: bool) -> int:
    report = recovery.recover() if apply else recovery.plan()
    if as_json:
        print_json(_report_document(report))
    else:
        _print_report(report)
    return 0 if report.is_clean else LEFT


def _rounds(recovery: SinkRecovery, interval_s: float, *, apply: bool, as_json: bool) -> int:
    def run(
        stopped: threading.Event, heard: Callable[[RecoveryReport], None], failed: Callable[[Exception], None]
    ) -> None:
        recovery.run(interval_s, apply=apply, stopped=stopped, heard=heard, failed=failed)

    return in_rounds(
        "dualwrite spark recover", run, interval_s, show=_print_report, document=_report_document, as_json=as_json
    )


def _print_report(report: RecoveryReport) -> None:
    if report.found:
        print_table(_FOUND, [_found_cells(found) for found in report.found])
    for owed in report.owed:
        click.echo(_owed_sentence(owed))
    for advice in dict.fromkeys(each.advice for each in report.all if each.advice is not None):
        print_labelled("to do", advice, Meaning.WARN)
    for each in report.hanging:
        print_labelled("hangs", each, Meaning.WARN)
    for each in report.unseen:
        print_labelled("not checked", each, Meaning.WARN)
    ended = sum(found.changed for found in report.all)
    counted = f"{ended} ended, {len(report.left)} left, {report.sinks} sinks checked"
    changes = sum(found.action in CHANGES for found in report.all)
    click.echo(counted if report.applied else f"{counted}; nothing was changed: --apply ends {changes}")


def _found_cells(found: Found) -> tuple[object, ...]:
    attempt, opened = found.attempt, found.open
    return (
        found.sink_id,
        "-" if attempt is None else attempt.query_id,
        "-" if attempt is None else attempt.batch_id,
        found.transactional_id,
        "-" if attempt is None else attempt.status,
        found.action,
        "yes" if found.changed else "no",
        "-" if opened is None else opened.state,
        "-" if opened is None else opened.pair,
        duration(found.age_ms),
        "-" if opened is None else ",".join(opened.topic_partitions) or "-",
        found.error or "-",
    )


def _owed_sentence(owed: FoundOwed) -> str:
    batch = owed.batch
    what = f"{batch.sink_id}: batch {batch.batch_id} of {batch.query_id}, {batch.rows} rows for {batch.location}"
    done = "done" if owed.changed else "not done"
    return f"{what}: {owed.action}, {done}" + ("" if owed.error is None else f": {owed.error}")


def _report_document(report: RecoveryReport) -> dict[str, Any]:
    """Return the document of `--json`; docs/cli.md has its keys."""
    return {
        "applied": report.applied,
        "clean": report.is_clean,
        "sinks": report.sinks,
        "unseen": list(report.unseen),
        "found": [_found_document(found) for found in report.found],
        "owed": [_owed_document(owed) for owed in report.owed],
        "hanging": list(report.hanging),
    }


def _owed_document(owed: FoundOwed) -> dict[str, Any]:
    batch = owed.batch
    return {
        "sink": batch.sink_id,
        "query": batch.query_id,
        "batch": batch.batch_id,
        "location": batch.location,
        "rows": batch.rows,
        "action": owed.action,
        "changed": owed.changed,
        "left": owed.is_left,
        "age_ms": owed.age_ms,
        "error": owed.error,
        "advice": owed.advice,
    }


def _found_document(found: Found) -> dict[str, Any]:
    attempt, opened = found.attempt, found.open
    return {
        "sink": found.sink_id,
        "query": None if attempt is None else attempt.query_id,
        "batch": None if attempt is None else attempt.batch_id,
        "transactional_id": found.transactional_id,
        "status": None if attempt is None else attempt.status,
        "action": found.action,
        "changed": found.changed,
        "left": found.is_left,
        "state": None if opened is None else opened.state,
        "pair": None if opened is None else opened.pair,
        "age_ms": found.age_ms,
        "topic_partitions": [] if opened is None else list(opened.topic_partitions),
        "error": found.error,
        "advice": found.advice,
    }


# ---- acknowledge-lost ---------------------------------------------------------------------------------------


@command.command("acknowledge-lost", short_help="Declare that a lost batch has been dealt with.")
@store_options(store_kafka_options)
@batch_options
@click.option(
    "--owed",
    is_flag=True,
    help="Also give up files that a Delta or Iceberg table is owed and cannot take: it was altered, or dropped.",
)
@click.option(
    "--forget-cluster",
    "gone",
    metavar="ID",
    default="",
    help="The Kafka cluster with this id is gone for good: give up what the batch has prepared there.",
)
@click.pass_context
def _acknowledge_lost(
    ctx: click.Context,
    *,
    store: StoreAccess,
    batch: NamedBatch,
    owed: bool,
    gone: str,
) -> None:
    """Declare that the records which a LOST batch lacks in Kafka have been dealt with, so that the query may continue.

    The batch's rows are in the database. The records that Kafka dropped stay lost: nothing sends them again.

    Also after StoreWentBackError, for a batch that Kafka has and the database has lost: it is written again, so Kafka
    then has its records twice. The exit code is 1 if there is no such batch, or if it was acknowledged before.

    With --forget-cluster, decided transactions of the batch in that cluster become LOST, and are acknowledged at once;
    condemned ones are forgotten. Nothing is changed in Kafka; --bootstrap-server names the cluster that replaces it.

    With --owed, the table does not get the missing rows of the batch. The files stay where they are until `dualwrite
    spark gc` deletes them: copy them with `dualwrite spark export-files` before.
    """
    named = batch.sink_id, batch.query_id, batch.batch_id
    if gone:
        _check_gone(store.kafka, gone)
    with store.open() as opened:
        if owed and not isinstance(opened, CommitStore):
            raise click.UsageError("--owed is for a Delta or Iceberg table, and a commit store in a topic has none")
        acknowledged = (
            opened.acknowledge_lost(*named, owed=owed, gone=gone)
            if isinstance(opened, CommitStore)
            else opened.acknowledge_lost(*named, gone=gone)
        )
    if not acknowledged:
        click.echo(f"{batch} is not lost, or was acknowledged before; nothing was changed", err=True)
        ctx.exit(LEFT)
    click.echo(f"{batch}: acknowledged; the query can be started")


def _check_gone(kafka: KafkaAccess, cluster_id: str) -> None:
    """Raise UsageError unless another cluster answers."""
    if "bootstrap_servers" not in kafka.settings:
        raise click.UsageError("--forget-cluster needs --bootstrap-server: the brokers of the cluster that replaces it")
    with kafka.admin() as admin:
        answers = admin.describe_cluster().cluster_id
    if answers in (None, cluster_id):
        raise click.UsageError(
            f"the Kafka cluster {cluster_id!r} is not gone: it is the one that answers, or the one that answers does "
            "not report its id. Nothing was changed: `dualwrite spark recover --apply` completes what is in doubt there"
        )
