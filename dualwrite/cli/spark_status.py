"""`dualwrite spark status`: the sinks of a commit store, printed once or live."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click
from rich.console import Group, RenderableType

from dualwrite.admin import TransactionAdmin
from dualwrite.cli.connection import json_option, kafka_options
from dualwrite.cli.failures import LEFT, sentence
from dualwrite.cli.groups import Command
from dualwrite.cli.live import interval_option, show_live
from dualwrite.cli.output import columns_that_fit, console, counted, duration, only, print_json, print_table, table
from dualwrite.cli.spark_store import AnyStore, StoreAccess, sink_option, store_options
from dualwrite.errors import DualWriteError, KafkaError
from spark_sink import commands
from spark_sink.driver.finisher import advice_if_lost
from spark_sink.driver.hanging import MOST_MS, hanging_of
from spark_sink.driver.open_transactions import OpenTransaction
from spark_sink.driver.recovery import DEFAULT_MIN_AGE_MS
from spark_sink.driver.sink_view import SinkView, SinkViews, lost_batches
from spark_sink.handoff import BatchName
from spark_sink.lake.place import LakePlace
from spark_sink.store.tables import BatchRow, BatchStatus, OwedBatch

_SINKS: Final = ("Sink", "Generation", "Query", "Newest", "InDoubt", "Lost", "Attempts", "Open", "NoRow", "Quiet")
_LIVE: Final = ("Sink", "Query", "Batch", "Partition", "TransactionalId", "Status", "Age", "Host", "TransactionState")
_BATCHES: Final = ("Sink", "Query", "Batch", "Status", "Records", "Attempts", "Age")
_DISPENSABLE: Final = ("Host", "Query", "Generation", "Partition", "TransactionState", "Records", "Newest")
"""The columns that a narrow terminal leaves out of the live view, in this order."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the status, before its width is known."""

    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@click.command("status", cls=Command, short_help="Show sinks, batches in doubt or lost, and ages; once or live.")
@store_options(kafka_options)
@sink_option
@click.option(
    "--watch",
    is_flag=True,
    help="Show it live until Ctrl-C; once if standard output is not a terminal, or with --json.",
)
@interval_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    store: StoreAccess,
    sink_ids: tuple[str, ...],
    watch: bool,
    interval: float,
    as_json: bool,
) -> None:
    """Show sinks, batches in doubt or lost, attempts with their ages, and open transactions. Takes no locks.

    --sink may also name a sink that the store does not know, to see its open transactions.

    Exit code: 0 nothing is wrong, or the live view was ended; 1 a batch or a file of it is lost, a transaction is open
    without a row or hangs, or a broker could not be queried; 2 wrong usage, or Kafka or the database cannot be reached.
    """
    with store.open() as opened, store.kafka.admin() as admin:
        if watch and not as_json and console().is_terminal:
            show_live(lambda width: live_view(opened, admin, sink_ids, width, store.kafka.reach_ms), interval)
            return
        unseen: list[str] = []
        views = _look(opened, admin, sink_ids, unseen)
        hanging = _hanging(opened, admin, views, unseen)
    if as_json:
        print_json({"unseen": unseen, "hanging": hanging, "sinks": [_document(view) for view in views]})
    else:
        _print(opened, views, hanging, unseen)
    ctx.exit(LEFT if unseen or hanging or any(_is_wrong(view) for view in views) else 0)


def _is_wrong(view: SinkView) -> bool:
    return bool(view.orphans or lost_batches(view) or any(batch.detail for batch in view.owed))


def _look(
    store: AnyStore,
    admin: TransactionAdmin | None,
    sink_ids: tuple[str, ...],
    unseen: list[str],
    timeout_ms: int | None = None,
) -> list[SinkView]:
    views = SinkViews(store, admin, now_ms=lambda: int(time.time() * 1000), timeout_ms=timeout_ms)
    return views.look(sink_ids or views.all_ids(), unseen)


def _hanging(
    store: AnyStore, admin: TransactionAdmin, views: Sequence[SinkView], unseen: list[str], timeout_ms: int = MOST_MS
) -> list[str]:
    """Return a sentence about each transaction that hangs; see `hanging_of`."""
    return [
        each
        for view in views
        for each in hanging_of(store, admin, view.sink_id, unseen, min_age_ms=DEFAULT_MIN_AGE_MS, timeout_ms=timeout_ms)
    ]


def _print(store: AnyStore, views: Sequence[SinkView], hanging: Sequence[str], unseen: Sequence[str]) -> None:
    for number, each in enumerate(_tables(views)):
        if number:
            click.echo()
        print_table(each.headers, each.rows)
    for remark in _remarks(store, views, hanging, unseen):
        click.echo(remark)


def live_view(
    store: AnyStore, admin: TransactionAdmin, sink_ids: tuple[str, ...], width: int, timeout_ms: int
) -> RenderableType:
    """Return the view, or the error of a failed update, after which updates continue.

    While Kafka cannot be queried, that error is the title of a view of the store alone. `timeout_ms` bounds each
    request to Kafka, because older data would not be a live view.
    """
    clock = time.strftime("%H:%M:%S")
    unseen: list[str] = []
    hanging: list[str] = []
    try:
        try:
            views = _look(store, admin, sink_ids, unseen, timeout_ms)
            hanging = _hanging(store, admin, views, unseen, timeout_ms)
            title = f"{clock}  {_summary(views)}"
        except KafkaError as error:
            title = f"{clock}  {sentence(error)}"
            views = _look(store, None, sink_ids, unseen)
    except (DualWriteError, *store.errors) as error:
        return f"{clock}  {sentence(error)}"
    return Group(title, *_remarks(store, views, hanging, unseen), *_fitted(views, width))


def _fitted(views: Sequence[SinkView], width: int) -> Iterator[RenderableType]:
    """Yield the tables, each after an empty line, without the columns for which there is no room."""
    for each in _tables(views):
        dispensable = [header for header in _DISPENSABLE if header in each.headers]
        headers = columns_that_fit(each.headers, each.rows, width, dispensable=dispensable)
        yield ""
        yield from table(headers, only(headers, each.headers, each.rows), width)


def _summary(views: Sequence[SinkView]) -> str:
    """Return faults and work under way; they come first, because text too long for the screen is cut off."""
    parts = [
        counted(len(views), "sink"),
        f"{sum(len(view.open) for view in views)} open",
        f"{sum(len(_in_doubt(view)) for view in views)} in doubt",
    ]
    if lost := sum(len(lost_batches(view)) for view in views):
        parts.append(f"{lost} lost")
    if orphans := sum(len(view.orphans) for view in views):
        parts.append(f"{orphans} without a row")
    return ", ".join(parts)


def _tables(views: Sequence[SinkView]) -> list[_Table]:
    """Return the table of the sinks, and those of their attempts and batches unless these are empty."""
    details = [
        _Table(_LIVE, [cells for view in views for cells in _attempt_cells(view)]),
        _Table(
            _BATCHES,
            [_batch_cells(view, batch) for view in views for batch in [*_in_doubt(view), *lost_batches(view)]],
        ),
    ]
    return [_Table(_SINKS, [_sink_cells(view) for view in views]), *(each for each in details if each.rows)]


def _remarks(store: AnyStore, views: Sequence[SinkView], hanging: Sequence[str], unseen: Sequence[str]) -> list[str]:
    """Return a sentence about each transaction that hangs or has no row, unreachable broker, and lost batch."""
    return [
        *(f"hangs: {each}" for each in hanging),
        *(_orphan_sentence(orphan) for view in views for orphan in view.orphans),
        *(_owed_sentence(view, batch) for view in views for batch in view.owed),
        *(f"not checked: {each}" for each in unseen),
        *(f"to do: {_advice(store, batch)}" for view in views for batch in lost_batches(view)),
        *(f"to do: {_advice_on_files(store, batch)}" for view in views for batch in view.owed if batch.detail),
    ]


def _advice(store: AnyStore, batch: BatchRow) -> str:
    return advice_if_lost(store, batch.sink_id, BatchName(batch.query_id, batch.batch_id))


def _advice_on_files(store: AnyStore, batch: OwedBatch) -> str:
    return commands.after_lost_files(batch.sink_id, batch.query_id, batch.batch_id, schema=store.schema)


def _owed_sentence(view: SinkView, batch: OwedBatch) -> str:
    what = (
        f"owed: batch {batch.batch_id} of {batch.query_id}, {batch.rows} rows, to {LakePlace.of(batch.location).named}"
    )
    since = f"{what} for {duration(view.age_ms(batch.decided_at))}"
    return since if batch.detail is None else f"{since}: {batch.detail}"


def _orphan_sentence(orphan: OpenTransaction) -> str:
    where = ",".join(orphan.topic_partitions) or "no partition yet"
    return f"no row: {orphan.transactional_id} has been {orphan.state} for {duration(orphan.age_ms)} on {where}"


def _sink_cells(view: SinkView) -> tuple[str, ...]:
    row = view.row
    cells = (
        view.sink_id,
        "-" if row is None else row.generation,
        "-" if row is None else row.query_id or "-",
        view.batches[0].batch_id if view.batches else "-",
        len(_in_doubt(view)),
        len(lost_batches(view)),
        len(view.attempts),
        len(view.open),
        len(view.orphans),
        duration(view.quiet_ms),
    )
    return tuple(map(str, cells))


def _attempt_cells(view: SinkView) -> list[tuple[str, ...]]:
    rows = (
        (
            view.sink_id,
            attempt.query_id,
            attempt.batch_id,
            attempt.partition_id,
            attempt.transactional_id,
            attempt.status,
            duration(view.age_ms(attempt.updated_at)),
            attempt.host,
            view.open[attempt.transactional_id].state if attempt.transactional_id in view.open else "-",
        )
        for attempt in view.attempts
    )
    return [tuple(map(str, row)) for row in rows]


def _batch_cells(view: SinkView, batch: BatchRow) -> tuple[str, ...]:
    age = duration(view.age_ms(batch.decided_at))
    cells = (view.sink_id, batch.query_id, batch.batch_id, batch.status, batch.records, batch.attempts, age)
    return tuple(map(str, cells))


def _in_doubt(view: SinkView) -> list[BatchRow]:
    """Return the batches that are decided but not completed in Kafka."""
    return [batch for batch in view.batches if batch.status is BatchStatus.COMMIT]


def _document(view: SinkView) -> dict[str, Any]:
    row = view.row
    return {
        "sink": view.sink_id,
        "generation": None if row is None else row.generation,
        "query": None if row is None else row.query_id,
        "quiet_ms": view.quiet_ms,
        "newest_batch": view.batches[0].batch_id if view.batches else None,
        "in_doubt": [_batch_document(view, batch) for batch in _in_doubt(view)],
        "lost": [_batch_document(view, batch) for batch in lost_batches(view)],
        "attempts": [
            {
                "query": attempt.query_id,
                "batch": attempt.batch_id,
                "partition": attempt.partition_id,
                "transactional_id": attempt.transactional_id,
                "status": attempt.status,
                "pair": attempt.prepared_state or None,
                "records": attempt.records,
                "host": attempt.host,
                "age_ms": view.age_ms(attempt.updated_at),
                "detail": attempt.detail,
            }
            for attempt in view.attempts
        ],
        "owed": [_owed_document(view, batch) for batch in view.owed],
        "open": [_open_document(each) for each in view.open.values()],
        "no_row": [_open_document(each) for each in view.orphans],
    }


def _batch_document(view: SinkView, batch: BatchRow) -> dict[str, Any]:
    return {
        "query": batch.query_id,
        "batch": batch.batch_id,
        "records": batch.records,
        "attempts": batch.attempts,
        "age_ms": view.age_ms(batch.decided_at),
    }


def _owed_document(view: SinkView, batch: OwedBatch) -> dict[str, Any]:
    return {
        "query": batch.query_id,
        "batch": batch.batch_id,
        "location": batch.location,
        "rows": batch.rows,
        "age_ms": view.age_ms(batch.decided_at),
        "detail": batch.detail,
    }


def _open_document(found: OpenTransaction) -> dict[str, Any]:
    return {**asdict(found), "topic_partitions": list(found.topic_partitions)}
