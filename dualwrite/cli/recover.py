"""`dualwrite recover`: complete the transactions that crashed processes left open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import compress
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from rich.console import Console
from rich.progress import Progress

from dualwrite.cli.colours import Meaning, meaning_of
from dualwrite.cli.connection import (
    KafkaAccess,
    database,
    database_option,
    json_option,
    publishing_kafka_options,
    schema_option,
)
from dualwrite.cli.failures import LEFT
from dualwrite.cli.forgotten import Chosen, forget_each, sum_up
from dualwrite.cli.groups import Command
from dualwrite.cli.numbers import number_option
from dualwrite.cli.output import NONE_SEARCHED, duration, print_json, print_labelled, print_table
from dualwrite.cli.rounds import check_rounds, in_rounds, round_options
from dualwrite.cli.taken_out import Handover, block_names, document_of, take_out_each
from dualwrite.recipes.core.judge import REFUSALS
from dualwrite.recipes.core.refused import OWED
from dualwrite.recipes.recovery.forgetting import Forgotten
from dualwrite.recipes.recovery.plan import NEEDS_OPERATOR, TakenOut
from dualwrite.recipes.recovery.service import Action, Found, RecoveryReport, RecoveryService

_EXPLAINED: Final = {
    Action.YOUNG: "open for less than --min-age, so its owner may be about to end it; a later round checks again",
    Action.IN_USE: "a database transaction holds its row: a dual write is running",
    Action.ENDING: "decided; the coordinator is writing the markers",
    Action.NO_ROW: (
        "this database has no row for the id, so it decides nothing: use the database of its dual writes, or, if no "
        "other database decides it, abort it with --force-terminate ID --apply"
    ),
    Action.REPAIR: "the database has committed, and Kafka has aborted: its records are published again from the log",
    Action.PUBLISH: "the database stores blocks that wait for Kafka: they are published",
    Action.PUBLISH_AGAIN: "the last batch of this outbox is published again, because you have found it missing",
    Action.TAKE_OUT: "the records owed under this id are taken out, and not published again",
    Action.OVERDUE: (
        "a living process holds the lease of this outbox without publishing its blocks: its log has the reason, and "
        "pool.status the block that Kafka refuses"
    ),
    Action.FORGOTTEN: (
        "the row names a transaction later than any that Kafka knows: is this the right cluster, or has it lost data?"
    ),
    Action.NO_EVIDENCE: (
        "the database has committed, and nothing shows whether Kafka has: the records are no longer in the log, and "
        "the coordinator has forgotten the transaction. Compare both sides, send missing records again, then stop this "
        "report with --acknowledge-lost ID --apply"
    ),
    Action.FAILED: "the column Error says why; a later round retries",
    **{Action(each.name): each.remedy for each in REFUSALS.values() if each.name in set(Action)},
}
"""Advice to the operator on an action; the other actions are done, or would be with --apply."""

_HEADERS: Final = (
    "TransactionalId",
    "Action",
    "Done",
    "Row",
    "TransactionState",
    "Pair",
    "Age",
    "TopicPartitions",
    "Error",
)


@click.command("recover", cls=Command, short_help="Complete the transactions that crashed processes left open.")
@publishing_kafka_options
@database_option(required=True)
@schema_option
@click.option("--prefix", metavar="TEXT", help="Check the ids that begin with this.")
@click.option(
    "--transactional-id", "transactional_ids", multiple=True, metavar="ID", help="Check this id; may be repeated."
)
@click.option("--all", "everything", is_flag=True, help="Check all ids of the table and of the cluster.")
@round_options(
    apply=("Resolve the transactions that are found, or only report them, which is the default and changes nothing."),
    min_age="Leave a transaction to its owner until it has been open for this long.",
)
@number_option(
    "--lock-timeout-ms",
    metavar="MS",
    default=100,
    help="A row that is still locked after this time is in use, and is left alone.",
)
@click.option(
    "--acknowledge-lost",
    multiple=True,
    metavar="ID",
    help="You have repaired the loss under this id: it may be used again. May be repeated.",
)
@click.option(
    "--force-terminate",
    multiple=True,
    metavar="ID",
    help="Abort the open transaction of this id although no row of this database decides it. May be repeated.",
)
@click.option(
    "--publish-again",
    multiple=True,
    metavar="ID",
    help=(
        "The end of this outbox's last batch is unproven, and you have found that Kafka lacks its records. "
        "May be repeated."
    ),
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help=(
        "Look in this topic, too, for transactions of the ids that no coordinator will end; without it, in those that "
        "the state rows name. May be repeated."
    ),
)
@click.option(
    "--take-out",
    "taken",
    multiple=True,
    metavar="ID:SEQ",
    callback=block_names,
    help=(
        "Do not publish this stored block, which Kafka refuses, or the owed records (ID:0): print the records "
        "instead. May be repeated."
    ),
)
@click.option(
    "--take-out-to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the records of --take-out to this file, as lines of JSON, instead of printing them.",
)
@click.option(
    "--forget-cluster",
    metavar="CLUSTER",
    help="The Kafka cluster with this id is gone for good, and with it what is in doubt there: give that up.",
)
@click.option("--yes", is_flag=True, help="Do not ask before something is given up with --forget-cluster.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    access: KafkaAccess,
    database_url: str,
    schema: str | None,
    prefix: str | None,
    transactional_ids: tuple[str, ...],
    everything: bool,
    apply: bool,
    min_age: float,
    lock_timeout_ms: int,
    acknowledge_lost: tuple[str, ...],
    force_terminate: tuple[str, ...],
    publish_again: tuple[str, ...],
    topics: tuple[str, ...],
    taken: list[tuple[str, int]],
    take_out_to: Path | None,
    forget_cluster: str | None,
    yes: bool,
    once: bool,
    interval: float | None,
    as_json: bool,
) -> None:
    """Commit or abort the transactions that crashed processes left open, as the database has decided.

    Finds state rows and open transactions that do not match. Each id is resolved by its row, under the row's lock: the
    transaction that the row names is committed, any other one is aborted. Without --apply, the command only
    reports.

    It may run at any time, repeatedly, and several times at once. An id whose row is locked is in use, and an id
    without a row in this database is reported; neither is changed.

    Exit code: 0 nothing is left; 1 something is left in doubt, lost, without a row, or failed (without --apply: or
    would be resolved); 2 wrong usage, or Kafka or the database cannot be reached.
    """
    named = acknowledge_lost + force_terminate + publish_again + tuple(name for name, _ in taken)
    named += () if forget_cluster is None else (forget_cluster,)
    _check_usage(prefix, everything=everything, once=once, interval=interval, named=named)
    if not (prefix is not None or everything or transactional_ids or (named and forget_cluster is None)):
        raise click.UsageError("no ids selected: give --prefix, --transactional-id, or --all")
    if interval is None:
        access.reach()
    with ExitStack() as opened:
        engine = opened.enter_context(database(database_url))
        forgotten: list[Forgotten] = []
        if forget_cluster is not None:
            chosen = Chosen(forget_cluster, "" if everything else prefix, transactional_ids, schema, lock_timeout_ms)
            forgotten = forget_each(engine, access, chosen, apply=apply, yes=yes)
        stored = [(name, seq) for name, seq in taken if seq != OWED]
        handover = Handover(take_out_to, as_json, apply)
        blocks = take_out_each(engine, stored, handover, apply=apply, schema=schema)
        service = RecoveryService(
            engine,
            prefix="" if everything else prefix,
            transactional_ids=(*transactional_ids, *(name for name, _ in stored)),
            publish_again=publish_again,
            topics=topics,
            take_out_owed=[name for name, seq in taken if seq == OWED],
            keep=handover.keep,
            min_age_ms=int(min_age * 1000),
            lock_timeout_ms=lock_timeout_ms,
            acknowledge_lost=acknowledge_lost,
            force_terminate=force_terminate,
            schema=schema,
            timeout_ms=access.timeout_ms,
            **access.settings,
            **access.publishing,
        )
        opened.enter_context(service)
        if interval is None:
            done = Done(blocks, forgotten)
            ctx.exit(_once(service, done, handover, apply=apply))
        ctx.exit(_rounds(service, interval, apply=apply, as_json=as_json))


def _check_usage(
    prefix: str | None, *, everything: bool, once: bool, interval: float | None, named: tuple[str, ...]
) -> None:
    if prefix == "":
        raise click.UsageError("--prefix is empty, which would select all ids: use --all for that")
    if everything and prefix is not None:
        raise click.UsageError("--all and --prefix cannot be used together")
    check_rounds(once=once, interval=interval)
    if named and interval is not None:
        raise click.UsageError(
            "--acknowledge-lost, --force-terminate, --publish-again, --take-out and --forget-cluster are for ids that "
            "you have examined: use them without --interval"
        )


class Done(NamedTuple):
    """The decisions of the operator that were carried out, or would be, before the round."""

    taken_out: Sequence[TakenOut] = ()
    forgotten: Sequence[Forgotten] = ()

    @property
    def has_failed(self) -> bool:
        return any(each.error is not None for each in self.forgotten)


_NO_DECISIONS: Final = Done()


def _once(service: RecoveryService, done: Done, handover: Handover, *, apply: bool) -> int:
    with _progress() as watched:
        report = service.recover(watched) if apply else service.plan(watched)
    for block in report.taken_out:
        handover.tell(block)
    if handover.as_json:
        print_json(as_document(report, done))
    else:
        _print(report if apply else _without(report, done.forgotten))
        sum_up(done.forgotten, apply=apply)
    return 0 if report.is_clean and not done.has_failed else LEFT


def _without(report: RecoveryReport, forgotten: Sequence[Forgotten]) -> RecoveryReport:
    """Return the report without the ids that would be given up: its advice on them is the command that was typed."""
    ids = {each.transactional_id for each in forgotten}
    is_told = [each.action is not Action.ANOTHER_CLUSTER or each.transactional_id not in ids for each in report.found]
    return replace(report, found=tuple(compress(report.found, is_told)))


def _rounds(service: RecoveryService, interval_s: float, *, apply: bool, as_json: bool) -> int:
    def run(
        stopped: threading.Event, heard: Callable[[RecoveryReport], None], failed: Callable[[Exception], None]
    ) -> None:
        service.run(interval_s, apply=apply, stopped=stopped, heard=heard, failed=failed)

    return in_rounds("dualwrite recover", run, interval_s, show=_print, document=as_document, as_json=as_json)


@contextmanager
def _progress() -> Iterator[Any]:
    """Show a progress bar on standard error, if that is a terminal."""
    with Progress(console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal) as bar:
        task = bar.add_task("checking transactional ids", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(report: RecoveryReport) -> None:
    if report.found:
        print_table(_HEADERS, [_cells(found) for found in report.found])
    met = {found.action for found in report.found}
    for action, sentence in _EXPLAINED.items():
        if action in met:
            print_labelled(action, sentence, meaning_of("Action", action))
    for each in report.unseen:
        print_labelled("not checked", each, Meaning.WARN)
    if not (report.searched or report.unseen):
        click.echo(NONE_SEARCHED)
    click.echo(_summary(report))


def _cells(found: Found) -> tuple[str, ...]:
    return (
        found.transactional_id,
        found.action,
        "yes" if found.changed else "no",
        "none" if found.row is None else found.row or "-",
        found.state,
        found.pair or "-",
        duration(found.age_ms),
        ",".join(found.topic_partitions) or "-",
        " ".join((found.error or "-").split()),
    )


def _summary(report: RecoveryReport) -> str:
    left = sum(found.action in NEEDS_OPERATOR for found in report.found)
    waiting = sum(not found.is_left and not found.changed for found in report.found)
    resolvable = len(report.found) - left - waiting
    others = f"{left} left, {waiting} waiting, {report.settled} settled"
    if report.applied:
        return f"{resolvable} resolved, {others}"
    summary = f"{resolvable} to resolve, {others}"
    return f"{summary}; nothing was changed: --apply resolves them" if resolvable else summary


def as_document(report: RecoveryReport, done: Done = _NO_DECISIONS) -> dict[str, Any]:
    """Return the document of `--json`; docs/cli.md has its keys."""
    return {
        "applied": report.applied,
        "clean": report.is_clean,
        "settled": report.settled,
        "unseen": list(report.unseen),
        "searched": list(report.searched),
        "found": [{**asdict(found), "left": found.is_left} for found in report.found],
        "taken_out": [document_of(block) for block in (*done.taken_out, *report.taken_out)],
        "forgotten": [asdict(each) for each in done.forgotten],
    }
