"""`dualwrite adopt`: declare which of two databases keeps the transactional ids."""

from __future__ import annotations

import click

from dualwrite.cli.connection import database, database_option, schema_option
from dualwrite.cli.groups import Command
from dualwrite.recipes.recovery.adoption import Adoption, adopt


@click.command("adopt", cls=Command, short_help="Declare that a database was moved, or copied.")
@database_option(required=True)
@schema_option
@click.option("--moved", is_flag=True, help="The original is gone for good: keep its transactional ids.")
@click.option("--copied", is_flag=True, help="The original is still in use: give this database its own ids.")
@click.option(
    "--force",
    is_flag=True,
    help="Proceed even if the database seems to be the one in which its tables were created: a copy of another "
    "database's files cannot be detected.",
)
def command(*, database_url: str, schema: str | None, moved: bool, copied: bool, force: bool) -> None:
    """Let a database that was restored, loaded from a dump or copied do dual writes again.

    Such a database is refused at its first use, because the original may still use its transactional ids. Stop the
    writers of this database first.
    """
    if moved == copied:
        raise click.UsageError("give either --moved or --copied")
    how: Adoption = "moved" if moved else "copied"
    with database(database_url) as engine:
        done = adopt(engine, how, schema=schema, force=force)
    click.echo(f"created in: {done.made_in}\nnow in: {done.found_in}")
    if moved:
        click.echo(f"transactional ids keep the suffix {done.suffix}; the next use completes transactions in doubt")
        return
    before = "none" if done.suffix_before is None else done.suffix_before
    click.echo(
        f"transactional ids get the suffix {done.suffix} instead of {before}; {done.rows_emptied} state rows were "
        "emptied, and the original completes the transactions in doubt under them"
    )
