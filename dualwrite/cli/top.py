"""`dualwrite top`: a live view of open transactions in Kafka, and of decided, stored and owed blocks in a database."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple

import click
import sqlalchemy as sa
from rich.console import Group, RenderableType
from rich.text import Text

from dualwrite.admin import HangingTransaction, TransactionAdmin, TransactionDescription
from dualwrite.cli.colours import meaning_of
from dualwrite.cli.connection import KafkaAccess, database, database_option, json_option, kafka_options, schema_option
from dualwrite.cli.failures import LEFT, sentence
from dualwrite.cli.groups import Command
from dualwrite.cli.live import interval_option, show_live
from dualwrite.cli.numbers import number_option
from dualwrite.cli.output import (
    NONE_SEARCHED,
    columns_that_fit,
    console,
    counted,
    duration,
    only,
    print_json,
    print_labelled,
    print_table,
    table,
)
from dualwrite.errors import DualWriteError, KafkaError
from dualwrite.hanging import next_step, pair_of
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.judge import REFUSALS
from dualwrite.recipes.core.proof import is_settled
from dualwrite.recipes.recovery.hanging_elsewhere import MOST_MS, find_hanging, is_decided
from dualwrite.recipes.recovery.overview import Standing, ids_in_database, standing
from dualwrite.recipes.recovery.seen import Cluster, cluster_of
from dualwrite.recipes.recovery.service import DEFAULT_MIN_AGE_MS
from dualwrite.recipes.recovery.stored_rows import StoredRow

_HEADERS: Final = (
    "TransactionalId",
    "TransactionState",
    "Age",
    "Database",
    "Stored",
    "Owed",
    "Pair",
    "Timeout",
    "Coordinator",
    "TopicPartitions",
)
_DISPENSABLE: Final = ("Coordinator", "TopicPartitions", "Timeout", "TransactionState")
"""The columns that a narrow terminal leaves out, in this order."""
_NOT_FOUND: Final = "NotFound"
_NOT_KNOWN: Final = "NotKnown"
"""The state while Kafka cannot be queried."""
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_OWED: Final = "owed"
_HANGS: Final = "hangs"
_REFUSALS: Final = {refusal.name: refusal for refusal in REFUSALS.values()}


@dataclass(frozen=True, slots=True)
class Line:
    """One id. The database's part is read without the lock of its row, and None without a database."""

    transactional_id: str
    state: str
    age_ms: int | None = None
    database: str | None = None
    pair: str | None = None
    timeout_ms: int | None = None
    coordinator_id: int | None = None
    topic_partitions: tuple[str, ...] = ()
    stored_blocks: int | None = None
    stored_age_ms: int | None = None
    """How long the oldest stored block has waited; None if none is stored."""
    owed_records: int | None = None
    """Number of owed records; None if none are owed, or if the row does not say how many."""
    next_step: str | None = None
    """The commands that end a transaction that hangs."""


class Wanted(NamedTuple):
    """The ids to show, the schema of their table, and the topics to search besides those that their rows name.

    A transaction hangs if its last record is older than `min_age_s`.
    """

    prefix: str = ""
    schema: str | None = None
    topics: tuple[str, ...] = ()
    min_age_s: float = DEFAULT_MIN_AGE_MS / 1000


@click.command("top", cls=Command, short_help="Show the open transactions, live.")
@kafka_options
@database_option(required=False)
@schema_option
@click.option("--prefix", default="", help="Only ids that begin with this.")
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="Look here, too, for transactions that hang; repeatable."
)
@number_option(
    "--min-age",
    metavar="SECONDS",
    least=0.0,
    default=DEFAULT_MIN_AGE_MS / 1000,
    help="Show a transaction that hangs once it has had no record for this long.",
)
@interval_option
@click.option("--once", is_flag=True, help="Print the view once; the default if standard output is not a terminal.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    access: KafkaAccess,
    database_url: str | None,
    schema: str | None,
    prefix: str,
    topics: tuple[str, ...],
    min_age: float,
    interval: float,
    once: bool,
    as_json: bool,
) -> None:
    """Show the open transactions, oldest first, until Ctrl-C.

    With a database, each transaction has the state of its row: "committed" is in doubt, Kafka's commit is still
    missing; "undecided" is running, or will be aborted; "no row" does not belong to this database. Ids with nothing
    open are shown where the database stores blocks that wait for Kafka, an outbox's too ("stored"), where Kafka has
    aborted what the database decided ("owed"), where writers refuse the id because of its row ("another-cluster",
    "went-back"), and where no coordinator will ever end a transaction in a topic that the rows name ("hangs"). Changes
    nothing and takes no locks.

    Exit code of a view that is printed once: 1 if writers refuse an id, a transaction hangs, or a topic cannot be
    searched for such, else 0.
    """
    if topics and database_url is None:
        raise click.UsageError("--topic looks for transactions of a database's ids: give --database")
    wanted = Wanted(prefix, schema, topics, min_age)
    with access.admin() as admin, nullcontext() if database_url is None else database(database_url) as engine:
        if once or as_json or not console().is_terminal:
            found, unseen, searched = look(admin, engine, wanted)
            _show_once(found, as_json=as_json, hidden_s=0.0 if database_url is None else min_age)
            for each in unseen or ([] if searched else [NONE_SEARCHED]):
                click.echo(each, err=True)
            ctx.exit(LEFT if unseen or any(map(_is_wrong, found)) else 0)
        else:
            show_live(lambda width: _view(admin, engine, wanted, width, access.reach_ms), interval)


def _show_once(found: list[Line], *, as_json: bool, hidden_s: float) -> None:
    """Print the view. A transaction that hangs is not in it yet if its last record is younger than `hidden_s`."""
    if as_json:
        print_json([asdict(row) for row in found])
    elif not found:
        later = f"; a transaction that hangs is shown after {hidden_s:g} s without a record, with --min-age 0 at once"
        click.echo(f"nothing is open{later if hidden_s else ''}")
    else:
        cells = [tuple(map(str, _cells(line))) for line in found]
        headers = _headers(found)
        print_table(headers, only(headers, _HEADERS, cells))
        for name in sorted({line.database or "" for line in found if _is_wrong(line) and line.next_step is None}):
            print_labelled(name, f"writers refuse these ids: {_REFUSALS[name].remedy}", meaning_of("Database", name))
        for line in found:
            if line.next_step is not None:
                print_labelled(_HANGS, line.next_step, meaning_of("Database", _HANGS))


def _view(
    admin: TransactionAdmin,
    engine: sa.Engine | None,
    wanted: Wanted,
    width: int,
    timeout_ms: int,
) -> RenderableType:
    """Return the view, or the error of a failed update, after which updates continue.

    While Kafka cannot be queried, that error is the title of a view of the database alone. `timeout_ms` bounds the
    update, because older data would not be a live view.
    """
    clock = time.strftime("%H:%M:%S")
    try:
        try:
            found, unseen, searched = look(admin, engine, wanted, timeout_ms)
            missed = counted(len(unseen), "topic") + " not" if searched else "no topic"
            title = _title(clock, found, engine is not None) + (
                f", {missed} searched" if unseen or not searched else ""
            )
        except KafkaError as error:
            title = f"{clock}  {sentence(error)}"
            found = [] if engine is None else _by_database_alone(engine, wanted)
            if not found:
                return title
    except (DualWriteError, sa.exc.SQLAlchemyError) as error:
        return f"{clock}  {sentence(error)}"
    cells = [tuple(map(str, _cells(row))) for row in found]
    all_headers = _headers(found)
    headers = columns_that_fit(all_headers, only(all_headers, _HEADERS, cells), width, dispensable=_DISPENSABLE)
    return Group(Text(title), *table(headers, only(headers, _HEADERS, cells), width))


def _headers(found: Sequence[Line]) -> tuple[str, ...]:
    needed = {"Stored": any(line.stored_blocks for line in found), "Owed": any(map(_is_owed, found))}
    return tuple(header for header in _HEADERS if needed.get(header, True))


def _is_owed(line: Line) -> bool:
    return line.database == _OWED


def _is_wrong(line: Line) -> bool:
    """Return whether writers refuse the id."""
    return line.database in _REFUSALS


def _title(clock: str, found: Sequence[Line], has_database: bool) -> str:
    count = sum(line.state in _OPEN for line in found)
    if not has_database:
        return f"{clock}  {count} open; use --database to see which of them are in doubt"
    in_doubt = sum(line.database == "committed" for line in found)
    title = f"{clock}  {count} open, {in_doubt} in doubt"
    if blocks := sum(line.stored_blocks or 0 for line in found):
        title += f", {counted(blocks, 'stored block')}"
    if owed := sum(map(_is_owed, found)):
        title += f", {owed} owed"
    if refused := sum(map(_is_wrong, found)):
        title += f", {refused} refused"
    return title


def look(
    admin: TransactionAdmin,
    engine: sa.Engine | None,
    wanted: Wanted,
    timeout_ms: int | None = None,
) -> tuple[list[Line], list[str], bool]:
    """Return the lines, oldest first, then what hangs; why topics were not searched for that; and whether any was.

    `timeout_ms` bounds each request to Kafka.
    """
    prefix, schema = wanted.prefix, wanted.schema
    listed = [row for row in admin.transactions_of_prefix(prefix, timeout_ms=timeout_ms) if row.state in _OPEN]
    ids = [row.transactional_id for row in listed]
    known = None if engine is None else ids_in_database(engine, schema, prefix=prefix, kafka_ids=ids)
    asked = sorted({*ids, *(known or ())})
    described = admin.describe_transactions(asked, timeout_ms=timeout_ms) if asked else {}
    now_ms = int(time.time() * 1000)
    if engine is None or known is None:
        return lines_of(described, known, now_ms, _NO_CLUSTER), [], True
    cluster = cluster_of(admin, timeout_ms=timeout_ms)
    lines = lines_of(described, known, now_ms, cluster)
    if any(_is_wrong(line) for line in lines):  # unless the row was older than the description
        known = ids_in_database(engine, schema, prefix=prefix, kafka_ids=ids)
        lines = lines_of(described, known, now_ms, cluster)
    unseen: list[str] = []
    min_age_ms = int(wanted.min_age_s * 1000)
    found, searched = find_hanging(
        admin, known, wanted.topics, unseen, min_age_ms=min_age_ms, timeout_ms=timeout_ms or MOST_MS
    )
    decided = [is_decided(each, known[each.transactional_id or ""], cluster) for each in found]
    lines += [_line_of(*each, now_ms) for each in zip(found, decided, strict=True)]
    return lines, unseen, bool(searched)


def _line_of(hanging: HangingTransaction, decided: bool | None, now_ms: int) -> Line:
    return Line(
        transactional_id=hanging.transactional_id or "",
        state="Ongoing",
        age_ms=max(now_ms - hanging.last_timestamp_ms, 0),
        database=_HANGS,
        pair=str(pair_of(hanging)),
        topic_partitions=("-".join(map(str, hanging.topic_partition)),),
        next_step=next_step(hanging, is_decided=decided),
    )


_NO_CLUSTER: Final = Cluster("", 0, lambda _: True)


def _by_database_alone(engine: sa.Engine, wanted: Wanted) -> list[Line]:
    known = ids_in_database(engine, wanted.schema, prefix=wanted.prefix, kafka_ids=())
    return lines_of({}, known, int(time.time() * 1000), _NO_CLUSTER)


def lines_of(
    described: Mapping[str, TransactionDescription | None],
    known: Mapping[str, StoredRow] | None,
    now_ms: int,
    cluster: Cluster,
) -> list[Line]:
    """Return the lines, oldest first, of ids with an open transaction, stored blocks or owed records, or refused ids.

    `known` is None without a database.
    """
    lines = []
    for transactional_id in {**described, **(known or {})}:
        found = described.get(transactional_id)
        ours = None if known is None else known.get(transactional_id)
        stands = Standing() if ours is None else standing(transactional_id, ours, found, cluster)
        is_open = found is not None and found.state in _OPEN
        if is_open or stands != Standing() or (ours is not None and ours.waiting.blocks):
            state = _NOT_FOUND if transactional_id in described else _NOT_KNOWN
            line = Line(transactional_id, state) if found is None else _line(found, now_ms)
            lines.append(line if known is None else _with_database(line, ours, stands, now_ms))
    return sorted(lines, key=lambda line: (-max(line.age_ms or 0, line.stored_age_ms or 0), line.transactional_id))


def _line(found: TransactionDescription, now_ms: int) -> Line:
    """Return the line of an id as Kafka describes it."""
    started_ms = found.transaction_start_time_ms
    return Line(
        transactional_id=found.transactional_id,
        state=found.state,
        age_ms=None if started_ms is None else max(now_ms - started_ms, 0),
        pair=f"{found.producer_id}:{found.producer_epoch}",
        timeout_ms=found.transaction_timeout_ms if found.has_timeout else None,
        coordinator_id=found.coordinator_id,
        topic_partitions=tuple(f"{topic}-{partition}" for topic, partition in sorted(found.topic_partitions)),
    )


def _with_database(line: Line, ours: StoredRow | None, stands: Standing, now_ms: int) -> Line:
    """Return the line with the database's data about the id."""
    if ours is None:
        return replace(line, database="no row", stored_blocks=0)
    since_ms = ours.waiting.since_ms
    return replace(
        line,
        database=stands.refusal or (_OWED if stands.is_owed else _row_state(line, ours)),
        stored_blocks=ours.waiting.blocks,
        stored_age_ms=max(now_ms - since_ms, 0) if ours.waiting.blocks and since_ms is not None else None,
        owed_records=stands.owed_records,
    )


def _row_state(line: Line, ours: StoredRow) -> str:
    if line.state not in _OPEN:
        return "stored"
    if ours.state is None:
        return "no row"
    is_named = ours.state == line.pair and not is_settled(PreparedTxnState(ours.state), ours.manifest)
    return "committed" if is_named else "undecided"


def _cells(line: Line) -> tuple[object, ...]:
    return (
        line.transactional_id,
        line.state,
        duration(line.age_ms),
        line.database or "-",
        f"{counted(line.stored_blocks, 'block')}, {duration(line.stored_age_ms)}" if line.stored_blocks else "-",
        _owed_cell(line),
        line.pair or "-",
        "none" if line.timeout_ms is None else duration(line.timeout_ms),
        "-" if line.coordinator_id is None else line.coordinator_id,
        ",".join(line.topic_partitions) or "-",
    )


def _owed_cell(line: Line) -> str:
    if not _is_owed(line):
        return "-"
    return "not known" if line.owed_records is None else counted(line.owed_records, "record")
