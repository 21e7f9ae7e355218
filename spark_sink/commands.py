"""The commands of `dualwrite spark` that messages tell an operator to run, with their arguments, ready for a shell.

The environment says how to reach the database and the brokers (docs/cli.md), because a URL may have a password in it.
"""

from __future__ import annotations

import shlex


def acknowledge_lost(sink_id: str, query_id: str, batch_id: int, *, schema: str | None, owed: bool = False) -> str:
    """Return the command after which a query goes on in spite of a batch; `schema` is the store's, if not the default.

    It declares that the records of a lost batch were dealt with, or accepts that Kafka gets a batch's records twice.
    `owed`: also that the files owed to a table are not to be added to it.
    """
    more = ("--owed",) if owed else ()
    return _command("acknowledge-lost", *_batch(sink_id, query_id, batch_id), *more, schema=schema)


def forget_cluster(sink_id: str, query_id: str, batch_id: int, cluster_id: str, *, schema: str | None) -> str:
    """Return the command that gives up the transactions of a batch in a Kafka cluster that is gone."""
    return _command(
        "acknowledge-lost", *_batch(sink_id, query_id, batch_id), "--forget-cluster", cluster_id, schema=schema
    )


def export_files(sink_id: str, query_id: str, batch_id: int, *, schema: str | None) -> str:
    """Return the command that copies files to a directory which a table is owed but cannot get."""
    return _command("export-files", *_batch(sink_id, query_id, batch_id), "--to", "DIRECTORY", schema=schema)


def after_lost_files(sink_id: str, query_id: str, batch_id: int, *, schema: str | None) -> str:
    """Return an operator's next steps for decided files that a table cannot get."""
    return (
        "restore the files, or write their rows to the table by other means (Kafka has them), then run "
        f"{acknowledge_lost(sink_id, query_id, batch_id, schema=schema)}; the rest of the batch is added after that"
    )


def status(sink_id: str, *, schema: str | None) -> str:
    """Return the command that shows the store's whole state of a sink."""
    return _command("status", "--sink", sink_id, "--json", schema=schema)


def recover(sink_id: str, *, schema: str | None) -> str:
    """Return the command that completes decided batches without the application."""
    return _command("recover", "--apply", "--sink", sink_id, schema=schema)


def init_store(*, schema: str | None) -> str:
    """Return the command that creates missing tables of the store."""
    return _command("init-store", schema=schema)


def _batch(sink_id: str, query_id: str, batch_id: int) -> tuple[str, ...]:
    return "--sink", sink_id, "--query", query_id, "--batch", str(batch_id)


def _command(name: str, *arguments: str, schema: str | None) -> str:
    in_schema = () if schema is None else ("--schema", schema)
    return f"`{shlex.join(['dualwrite', 'spark', name, *arguments, *in_schema])}`"
