"""`dualwrite adopt`: say which of two databases goes on with the transactional ids."""

from __future__ import annotations

import click

from dualwrite.cli.connection import database, database_option, schema_option
from dualwrite.recipes.recovery.adoption import Adoption, adopt


@click.command("adopt", short_help="Say that a database was moved, or copied.")
@database_option(required=True)
@schema_option
@click.option("--moved", is_flag=True, help="The original is gone for good: go on with its transactional ids.")
@click.option("--copied", is_flag=True, help="The original lives on: give this database ids of its own.")
@click.option(
    "--force",
    is_flag=True,
    help="Also where the database is where its tables were made, as far as it can tell: a copy of the files of another "
    "one does not show.",
)
def command(*, database_url: str, schema: str | None, moved: bool, copied: bool, force: bool) -> None:
    """Let a database that was restored, loaded from a dump or copied do dual writes again.

    Such a database is refused at its first use, because the original may still use its transactional ids. Stop the
    writers of this one before.
    """
    if moved == copied:
        raise click.UsageError("give one of --moved and --copied")
    how: Adoption = "moved" if moved else "copied"
    with database(database_url) as engine:
        done = adopt(engine, how, schema=schema, force=force)
    click.echo(f"made in: {done.made_in}\nnow in: {done.found_in}")
    if moved:
        click.echo(f"transactional ids keep the suffix {done.suffix}; what is in doubt is completed by the next use")
        return
    before = "none" if done.suffix_before is None else done.suffix_before
    click.echo(
        f"transactional ids get the suffix {done.suffix} instead of {before}; {done.rows_emptied} state rows were "
        "emptied, and what is in doubt under them stays with the original"
    )
