"""`dualwrite spark gc`: delete old rows of the commit store, and data files that no table of files needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from dualwrite.cli.colours import Meaning
from dualwrite.cli.connection import json_option, store_kafka_options
from dualwrite.cli.failures import LEFT
from dualwrite.cli.numbers import number_option
from dualwrite.cli.output import print_json, print_labelled
from dualwrite.cli.spark_store import AnyStore, StoreAccess, sink_option, store_options
from dualwrite.errors import DualWriteError
from spark_sink.driver.recovery import DEFAULT_MIN_AGE_MS
from spark_sink.lake.janitor import Janitor
from spark_sink.lake.strays import Strays
from spark_sink.options import DEFAULT_RETENTION_BATCHES
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.rules import expired

_DAY_S: Final = 86_400
_FILE_AGE_DAYS: Final = 7


@click.command("gc", short_help="Delete old batches from the commit store.")
@store_options(store_kafka_options)
@sink_option
@number_option(
    "--keep",
    metavar="BATCHES",
    least=1,
    default=DEFAULT_RETENTION_BATCHES,
    help="How many to keep of each query, and of all batch jobs of a sink together.",
)
@click.option(
    "--ended",
    multiple=True,
    metavar="ID",
    help="The application of this sink will not be started again: drop its staging tables. May be repeated.",
)
@number_option(
    "--min-age",
    metavar="SECONDS",
    least=0.0,
    default=DEFAULT_MIN_AGE_MS / 1000,
    help="Drop nothing of a sink that has changed within this time.",
)
@number_option(
    "--file-age",
    metavar="DAYS",
    least=0.0,
    default=_FILE_AGE_DAYS,
    help="Delete unreferenced data files that are older than the sink's last plan by this.",
)
@click.option("--apply/--dry-run", default=False, help="Delete, or only report how many, which is the default.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    store: StoreAccess,
    sink_ids: tuple[str, ...],
    keep: int,
    ended: tuple[str, ...],
    min_age: float,
    file_age: float,
    apply: bool,
    as_json: bool,
) -> None:
    """Delete old batches from the commit store. The sink itself does so, too (store.retentionBatches).

    The newest batches of each query stay, and so do batches that are not completed, or lost and not acknowledged. A
    batch job whose batch was deleted would write its records again under the same jobId.

    Data files for a Delta or Iceberg table are deleted, too, if their attempts were given up; or after --file-age, if
    neither the store nor a version that the table keeps knows them, as after a killed task. The table gets an empty
    commit then. On a machine without the table's directory nothing is deleted.

    Staging tables (of dual.table) stay until their sink is named with --ended. Tables of other sinks, and of sinks that
    have changed lately or have something left to complete, are never dropped.

    Exit code: 0; 1 the files of a table could not be checked; 2 wrong usage, or the database cannot be reached.
    """
    with store.open() as opened:
        if ended and not isinstance(opened, CommitStore):
            raise click.UsageError("--ended is for staging tables, and a commit store in a topic has none")
        dropped = _staging_tables(opened, ended, min_age, apply=apply)
        chosen = sink_ids or [row.sink_id for row in opened.sinks()]
        # Before the batches: attempts are deleted with them, and tell which files are unneeded.
        unseen: list[str] = []
        files = {each: _data_files(opened, each, file_age, unseen, apply=apply) for each in chosen}
        counts = {
            sink_id: opened.prune(sink_id, keep) if apply else len(expired(opened.batches(sink_id), keep))
            for sink_id in chosen
        }
    found = {"forgotten": counts, "dropped": dropped, "files": files, "unseen": unseen}
    if as_json:
        print_json({"applied": apply, "keep": keep, **found})
    else:
        _print(counts, files, dropped, unseen, apply=apply)
    ctx.exit(LEFT if unseen else 0)


def _staging_tables(store: AnyStore, ended: Sequence[str], min_age_s: float, *, apply: bool) -> Mapping[str, list[str]]:
    """Drop the staging tables of these sinks, or only find them; return them by sink."""
    if not isinstance(store, CommitStore):
        return {}
    found = {
        sink_id: store.drop_staging(sink_id, min_age_ms=int(min_age_s * 1000))
        if apply
        else store.staging_tables(sink_id)
        for sink_id in ended
    }
    return {sink_id: [str(table) for table in tables] for sink_id, tables in found.items()}


def _data_files(store: AnyStore, sink_id: str, age_days: float, unseen: list[str], *, apply: bool) -> int:
    """Delete the unneeded data files of a sink, or only count them; return their number."""
    janitor = Janitor(sink_id, store.lake, schema=store.schema)
    count = janitor.clean_all() if apply else janitor.left()
    strays = Strays(sink_id, store, min_age_s=age_days * _DAY_S)
    try:
        return count + (strays.delete() if apply else len(strays.find()))
    except DualWriteError as error:
        unseen.append(f"data files of the sink {sink_id!r}: {' '.join(str(error).split())}")
        return count


def _print(
    counts: Mapping[str, int],
    files: Mapping[str, int],
    dropped: Mapping[str, Sequence[str]],
    unseen: Sequence[str],
    *,
    apply: bool,
) -> None:
    for sink_id, count in counts.items():
        click.echo(f"{sink_id}: {count} batches {'deleted' if apply else 'would be deleted'}")
    for sink_id, count in files.items():
        if count:
            click.echo(f"{sink_id}: {count} data files {'deleted' if apply else 'would be deleted'}")
    for sink_id, tables in dropped.items():
        for table in tables:
            click.echo(f"{sink_id}: staging table {table} {'dropped' if apply else 'would be dropped'}")
    for each in unseen:
        print_labelled("not checked", each, Meaning.WARN)
    if not apply:
        click.echo("nothing was changed: --apply deletes them")
