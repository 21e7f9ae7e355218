"""`dualwrite spark export-files`: the data files of a decided batch that its table cannot get."""

from __future__ import annotations

from pathlib import Path

import click

from dualwrite.cli.connection import json_option, store_kafka_options
from dualwrite.cli.failures import LEFT
from dualwrite.cli.output import print_json
from dualwrite.cli.spark_store import NamedBatch, StoreAccess, batch_options, store_options
from spark_sink.lake.files import copy_file, file_name
from spark_sink.lake.place import LakePlace


@click.command("export-files", short_help="Copy the data files that a Delta or Iceberg table is owed.")
@store_options(store_kafka_options)
@batch_options
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Where the copies go; made if it is missing.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    store: StoreAccess,
    batch: NamedBatch,
    target: Path,
    as_json: bool,
) -> None:
    """Copy the Parquet files of a decided batch that a Delta or Iceberg table is owed, and flush the copies to disk.

    For a table that was altered so that it cannot take them, or was dropped. The batch stays owed: write the rows of
    the copies by other means, then run `dualwrite spark acknowledge-lost --owed`. Needs no library of the table.

    The exit code is 1 if no file of this batch is owed.
    """
    name = (batch.query_id, batch.batch_id)
    with store.open() as opened:
        owed = [each for each in opened.lake.owed(batch.sink_id) if (each.query_id, each.batch_id) == name]
        owner = opened.lake.owner(batch.sink_id) if owed else 0
    copies = [
        {"file": str(copy_file(_source(each.location, owner, file.attempt_id), target)), "rows": file.rows}
        for each in owed
        for file in each.files
    ]
    if as_json:
        print_json({"copies": copies})
    else:
        for each in copies:
            click.echo(f"{each['file']}: {each['rows']} rows")
    if not copies:
        click.echo(f"no file of {batch} is owed to a table", err=True)
        ctx.exit(LEFT)


def _source(location: str, owner: int, attempt_id: str) -> Path:
    return Path(str(LakePlace.of(location).directory), file_name(owner, attempt_id))
