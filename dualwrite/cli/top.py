"""`dualwrite top`: a live view of the open transactions, and of their state in the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import click
import sqlalchemy as sa
from rich.live import Live

from dualwrite.admin import TransactionAdmin, TransactionDescription
from dualwrite.cli.connection import KafkaAccess, database, database_option, json_option, kafka_options, schema_option
from dualwrite.cli.failures import sentence
from dualwrite.cli.output import columns_that_fit, console, duration, only, print_json, print_table, table
from dualwrite.errors import DualWriteError
from dualwrite.recipes.recovery.service import known_database, stored_rows

_HEADERS: Final = (
    "TransactionalId",
    "TransactionState",
    "Age",
    "Database",
    "Pair",
    "Timeout",
    "Coordinator",
    "TopicPartitions",
)
_DISPENSABLE: Final = ("Coordinator", "TopicPartitions", "Timeout", "TransactionState")
"""The columns that a narrow terminal leaves out, in this order."""
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """One line of the view. `database` is the state of the row, read without its lock."""

    transactional_id: str
    state: str
    age_ms: int | None
    database: str | None
    pair: str
    timeout_ms: int | None
    coordinator_id: int
    topic_partitions: tuple[str, ...]


@click.command("top", short_help="Show the open transactions, live.")
@kafka_options
@database_option(required=False)
@schema_option
@click.option("--prefix", default="", help="Only ids that begin with this.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two updates.",
)
@click.option("--once", is_flag=True, help="Print the view once; the default if standard output is not a terminal.")
@json_option
def command(
    *,
    access: KafkaAccess,
    database_url: str | None,
    schema: str | None,
    prefix: str,
    interval: float,
    once: bool,
    as_json: bool,
) -> None:
    """Show the open transactions, oldest first, until Ctrl-C.

    With a database, each transaction has the state of its row: "committed" is in doubt, Kafka's commit is still
    missing; "undecided" is running, or will be aborted; "no row" does not belong to this database. Changes nothing and
    takes no locks.
    """
    with access.admin() as admin, nullcontext() if database_url is None else database(database_url) as engine:
        if once or as_json or not console().is_terminal:
            _show_once(look(admin, engine, prefix, schema=schema), as_json=as_json)
        else:
            _show_live(lambda width: _view(admin, engine, prefix, width, access.reach_ms, schema), interval)


def _show_once(found: list[OpenTransaction], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(row) for row in found])
    else:
        print_table(_HEADERS, map(_cells, found))


def _show_live(view: Callable[[int], Any], interval_s: float) -> None:
    """Show the view until Ctrl-C, always as wide as the terminal."""
    out = console()
    with Live(console=out, screen=True, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            live.update(view(out.width), refresh=True)
            time.sleep(interval_s)


def _view(
    admin: TransactionAdmin,
    engine: sa.Engine | None,
    prefix: str,
    width: int,
    timeout_ms: int,
    schema: str | None = None,
) -> Any:
    """Return the view, or the error of a failed update, after which updates continue.

    `timeout_ms` bounds the update, because older data would not be a live view.
    """
    title = time.strftime("%H:%M:%S")
    try:
        found = look(admin, engine, prefix, timeout_ms, schema)
    except (DualWriteError, sa.exc.SQLAlchemyError) as error:
        return f"{title}  {sentence(error)}"
    cells = [tuple(map(str, _cells(row))) for row in found]
    headers = columns_that_fit(_HEADERS, cells, width, dispensable=_DISPENSABLE)
    made = table(headers, only(headers, _HEADERS, cells), width)
    made.title = _title(title, found, engine is not None)
    made.title_justify = "left"
    return made


def _title(clock: str, found: Sequence[OpenTransaction], has_database: bool) -> str:
    if not has_database:
        return f"{clock}  {len(found)} open; use --database to see which of them are in doubt"
    in_doubt = sum(row.database == "committed" for row in found)
    return f"{clock}  {len(found)} open, {in_doubt} in doubt"


def look(
    admin: TransactionAdmin,
    engine: sa.Engine | None,
    prefix: str,
    timeout_ms: int | None = None,
    schema: str | None = None,
) -> list[OpenTransaction]:
    """Return the open transactions, oldest first. `timeout_ms` bounds each request to Kafka."""
    listed = [row for row in admin.transactions_of_prefix(prefix, timeout_ms=timeout_ms) if row.state in _OPEN]
    ids = [row.transactional_id for row in listed]
    described = admin.describe_transactions(ids, timeout_ms=timeout_ms) if ids else {}
    texts = None if engine is None else _texts_of(engine, schema, ids)
    found = (each for each in described.values() if each is not None and each.state in _OPEN)
    return rows_of(found, texts, int(time.time() * 1000))


def _texts_of(engine: sa.Engine, schema: str | None, kafka_ids: list[str]) -> dict[str, str]:
    """Return the states in the rows, by the ids as Kafka sees them."""
    pinned, identity = known_database(engine, schema)
    names = {name for each in kafka_ids if (name := identity.name_of(each)) is not None}
    rows = stored_rows(engine, pinned, prefix=None, transactional_ids=names)
    return {identity.kafka_id(name): row.state for name, row in rows.items()}


def rows_of(
    found: Iterable[TransactionDescription], texts: dict[str, str] | None, now_ms: int
) -> list[OpenTransaction]:
    """Return the lines, oldest first; `texts` are the states in the database's rows, None without a database."""
    rows = [_row(each, texts, now_ms) for each in found]
    return sorted(rows, key=lambda row: (-(row.age_ms or 0), row.transactional_id))


def _row(found: TransactionDescription, texts: dict[str, str] | None, now_ms: int) -> OpenTransaction:
    started_ms = found.transaction_start_time_ms
    pair = f"{found.producer_id}:{found.producer_epoch}"
    return OpenTransaction(
        transactional_id=found.transactional_id,
        state=found.state,
        age_ms=None if started_ms is None else max(now_ms - started_ms, 0),
        database=None if texts is None else _row_state(texts.get(found.transactional_id), pair),
        pair=pair,
        timeout_ms=found.transaction_timeout_ms if found.has_timeout else None,
        coordinator_id=found.coordinator_id,
        topic_partitions=tuple(f"{topic}-{partition}" for topic, partition in sorted(found.topic_partitions)),
    )


def _row_state(text: str | None, pair: str) -> str:
    if text is None:
        return "no row"
    return "committed" if text == pair else "undecided"


def _cells(row: OpenTransaction) -> tuple[object, ...]:
    return (
        row.transactional_id,
        row.state,
        duration(row.age_ms),
        row.database or "-",
        row.pair,
        "none" if row.timeout_ms is None else duration(row.timeout_ms),
        row.coordinator_id,
        ",".join(row.topic_partitions) or "-",
    )
