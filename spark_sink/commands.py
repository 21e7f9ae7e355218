"""The commands of `dualwrite spark` that messages tell an operator to run, with their arguments, ready for a shell.

How the database and the brokers are reached is left to the environment (docs/cli.md): a URL may have a password in it.
"""

from __future__ import annotations

import shlex


def acknowledge_lost(sink_id: str, query_id: str, batch_id: int, *, schema: str | None, owed: bool = False) -> str:
    """Return the command after which a query goes on in spite of a batch; `schema` is the store's, if not the default.

    It declares that the records of a lost batch were dealt with, or accepts that Kafka gets those of a batch twice.
    `owed`: also that the files which a table is owed are not to be added to it.
    """
    more = ("--owed",) if owed else ()
    return _command("acknowledge-lost", *_batch(sink_id, query_id, batch_id), *more, schema=schema)


def export_files(sink_id: str, query_id: str, batch_id: int, *, schema: str | None) -> str:
    """Return the command that copies the files which a table is owed, and cannot get, to a directory."""
    return _command("export-files", *_batch(sink_id, query_id, batch_id), "--to", "DIRECTORY", schema=schema)


def after_lost_files(sink_id: str, query_id: str, batch_id: int, *, schema: str | None) -> str:
    """Return what an operator has to do about decided files that a table cannot get."""
    return (
        "bring the files back, or write their rows to the table by other means (Kafka has them), then run "
        f"{acknowledge_lost(sink_id, query_id, batch_id, schema=schema)}; what is left of the batch is added after that"
    )


def status(sink_id: str, *, schema: str | None) -> str:
    """Return the command that shows all that the store has of a sink."""
    return _command("status", "--sink", sink_id, "--json", schema=schema)


def recover(sink_id: str, *, schema: str | None) -> str:
    """Return the command that completes what is decided, without the application."""
    return _command("recover", "--apply", "--sink", sink_id, schema=schema)


def init_store(*, schema: str | None) -> str:
    """Return the command that creates what is missing of the store's tables."""
    return _command("init-store", schema=schema)


def _batch(sink_id: str, query_id: str, batch_id: int) -> tuple[str, ...]:
    return "--sink", sink_id, "--query", query_id, "--batch", str(batch_id)


def _command(name: str, *arguments: str, schema: str | None) -> str:
    in_schema = () if schema is None else ("--schema", schema)
    return f"`{shlex.join(['dualwrite', 'spark', name, *arguments, *in_schema])}`"
