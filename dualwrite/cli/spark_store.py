"""The options for connecting to the commit store of a Spark sink, shared by the commands of `dualwrite spark`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from dualwrite.cli.connection import database
from spark_sink.store.commit_store import CommitStore


def schema_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--schema`."""
    return click.option("--schema", help="The schema of the commit store, like the option commitStore.schema.")(
        function
    )


def sink_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--sink`, which the command gets as `sink_ids`."""
    return click.option(
        "--sink", "sink_ids", multiple=True, metavar="ID", help="Only this sink; may be repeated (default: all)."
    )(function)


@contextmanager
def commit_store(url: str, schema: str | None) -> Iterator[CommitStore]:
    """Open the commit store, and create nothing in it. Raises ConfigError."""
    with database(url) as engine:
        yield CommitStore(engine, schema=schema, create_tables=False)
