"""`dualwrite transactions ...`: the commands of kafka-transactions.sh, with its columns and options (KIP-664)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console

from dualwrite.admin import (
    ActiveProducer,
    HangingTransaction,
    TopicPartition,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from dualwrite.cli.connection import KafkaAccess, json_option, kafka_options
from dualwrite.cli.failures import LEFT
from dualwrite.cli.groups import Group
from dualwrite.cli.numbers import number_option
from dualwrite.cli.output import print_json, print_table, shown
from dualwrite.hanging import next_step
from dualwrite.prepared_state import PreparedTxnState

_LISTED: Final = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
_DESCRIBED: Final = (
    "CoordinatorId",
    "TransactionalId",
    "ProducerId",
    "ProducerEpoch",
    "TransactionState",
    "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
    "TopicPartitions",
)
_PRODUCERS: Final = (
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
)
_HANGING: Final = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)
_MINUTE_MS: Final = 60_000


@click.group("transactions", cls=Group, short_help="List, describe and end transactions.")
def command() -> None:
    """List, describe and end transactions, as kafka-transactions.sh does."""


def _command(name: str, summary: str) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator for commands whose function first gets a TransactionAdmin. `summary`: the short help."""

    def decorate(function: Callable[..., None]) -> click.Command:
        def call(access: KafkaAccess, **options: Any) -> None:
            with access.admin() as admin:
                function(admin, **options)

        call.__doc__ = function.__doc__
        call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        return command.command(name, short_help=summary)(kafka_options(json_option(call)))

    return decorate


@_command("list", "List the transactional ids of the cluster.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([str(s) for s in TransactionState], case_sensitive=False),
    metavar="STATE",
    help=f"Only in this state: {', '.join(TransactionState)}; may be repeated.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    multiple=True,
    type=int,
    metavar="N",
    help="Only this producer id; may be repeated.",
)
@number_option("--duration-filter", metavar="MS", help="Only those that started longer ago (KIP-994).")
@click.option("--transactional-id-pattern", metavar="RE2", help="Only ids that this pattern matches (KIP-1152).")
def _list(
    admin: TransactionAdmin,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_filter: int | None,
    transactional_id_pattern: str | None,
    as_json: bool,
) -> None:
    """List the transactional ids of the cluster, from all coordinators."""
    listed = admin.list_transactions(
        states=states,
        producer_ids=producer_ids,
        running_longer_than_ms=duration_filter,
        transactional_id_pattern=transactional_id_pattern,
    )
    if as_json:
        print_json([asdict(row) for row in listed])
    else:
        print_table(_LISTED, map(_listed, listed))


def _listed(row: TransactionListing) -> tuple[object, ...]:
    return row.transactional_id, row.coordinator_id, row.producer_id, row.state


@_command("describe", "Describe the transaction of an id.")
@click.option("--transactional-id", required=True, metavar="ID", help="The id.")
def _describe(admin: TransactionAdmin, transactional_id: str, as_json: bool) -> None:
    """Describe the transaction of an id, as its coordinator knows it."""
    found = admin.describe_transaction(transactional_id)
    if as_json:
        print_json(described_document(found, _now_ms()))
    else:
        print_table(_DESCRIBED, [_described(found, _now_ms())])


def _described(found: TransactionDescription, now_ms: int) -> tuple[object, ...]:
    started_ms = found.transaction_start_time_ms
    return (
        found.coordinator_id,
        found.transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.state,
        found.transaction_timeout_ms,
        shown(started_ms),
        shown(None if started_ms is None else now_ms - started_ms),
        ",".join(_names(found)),
    )


def _names(found: TransactionDescription) -> list[str]:
    return [f"{topic}-{partition}" for topic, partition in sorted(found.topic_partitions)]


def described_document(found: TransactionDescription, now_ms: int) -> dict[str, Any]:
    """Return the document of one id for `--json`."""
    started_ms = found.transaction_start_time_ms
    return {
        **asdict(found),
        "topic_partitions": _names(found),
        "has_timeout": found.has_timeout,
        "transaction_duration_ms": None if started_ms is None else now_ms - started_ms,
    }


@_command("describe-producers", "Describe the producers of a partition.")
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@click.option("--partition", required=True, type=click.IntRange(min=0), metavar="N", help="Its partition.")
@number_option("--broker-id", metavar="N", help="Query the replica of this broker instead of the leader.")
def _describe_producers(
    admin: TransactionAdmin, topic: str, partition: int, broker_id: int | None, as_json: bool
) -> None:
    """Describe the producers that a partition remembers."""
    where = TopicPartition(topic, partition)
    producers = admin.describe_producers([where], broker_id=broker_id)[where]
    if as_json:
        print_json([asdict(row) for row in producers])
    else:
        print_table(_PRODUCERS, map(_producer, producers))


def _producer(row: ActiveProducer) -> tuple[object, ...]:
    epoch = -1 if row.coordinator_epoch is None else row.coordinator_epoch
    start = shown(row.current_transaction_start_offset)
    return row.producer_id, row.producer_epoch, epoch, row.last_sequence, row.last_timestamp_ms, start


@_command("find-hanging", "Find transactions that no coordinator will ever end.")
@click.option("--topic", metavar="NAME", help="Search this topic.")
@number_option("--partition", metavar="N", help="Search this partition of it.")
@number_option("--broker-id", metavar="N", help="Search the replicas of this broker.")
@number_option(
    "--max-transaction-timeout", metavar="MINUTES", default=15, help="At least the brokers' transaction.max.timeout.ms."
)
def _find_hanging(
    admin: TransactionAdmin,
    topic: str | None,
    partition: int | None,
    broker_id: int | None,
    max_transaction_timeout: int,
    as_json: bool,
) -> None:
    """Find transactions that are open on a partition but that no coordinator will ever end. Exit code 1 on a find."""
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs its --topic")
    if topic is None and broker_id is None:
        raise click.UsageError("give --topic or --broker-id to limit the search")
    with _waiting("searching"):
        hanging = admin.find_hanging(
            topic,
            partition,
            broker_id=broker_id,
            max_transaction_timeout_ms=max_transaction_timeout * _MINUTE_MS,
        )
    if as_json:
        print_json([_hanging_document(row) for row in hanging])
    else:
        print_table(_HANGING, [_hanging(row, _now_ms()) for row in hanging])
        for row in hanging:
            click.echo(next_step(row), err=True)
    if hanging:
        click.get_current_context().exit(LEFT)


def _hanging(row: HangingTransaction, now_ms: int) -> tuple[object, ...]:
    topic, partition = row.topic_partition
    return (
        topic,
        partition,
        row.producer_id,
        row.producer_epoch,
        -1 if row.coordinator_epoch is None else row.coordinator_epoch,
        row.start_offset,
        f"{datetime.fromtimestamp(row.last_timestamp_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}",
        (now_ms - row.last_timestamp_ms) // _MINUTE_MS,
    )


def _hanging_document(row: HangingTransaction) -> dict[str, Any]:
    document = asdict(row)
    document.pop("topic_partition")
    return {
        "topic": row.topic_partition.topic,
        "partition": row.topic_partition.partition,
        **document,
        "next_step": next_step(row),
    }


@_command("abort", "Abort a hanging transaction on one partition.")
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@click.option("--partition", required=True, type=click.IntRange(min=0), metavar="N", help="Its partition.")
@number_option("--start-offset", metavar="N", help="Where the transaction starts (brokers since 3.0).")
@click.option("--producer-id", type=int, metavar="N", help="For older brokers, with the next two options.")
@click.option("--producer-epoch", type=int, metavar="N", help="For older brokers.")
@click.option("--coordinator-epoch", type=int, metavar="N", help="For older brokers; -1 if it is not known.")
def _abort(
    admin: TransactionAdmin,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    as_json: bool,
) -> None:
    """Abort a hanging transaction on one partition, bypassing its coordinator.

    This tears apart a transaction that does not hang: end such a one with force-terminate.
    """
    by_ids = (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == (None in by_ids) or (start_offset is not None and by_ids != (None,) * 3):
        raise click.UsageError(
            "give --start-offset, or, for brokers before 3.0, --producer-id, --producer-epoch and --coordinator-epoch"
        )
    admin.abort_transaction(
        TopicPartition(topic, partition),
        start_offset=start_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
    )
    if as_json:
        print_json({"topic": topic, "partition": partition, "aborted": True})
    else:
        click.echo(f"aborted on {topic}-{partition}")


@_command("commit", "Commit a decided transaction that hangs on one partition.")
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@click.option("--partition", required=True, type=click.IntRange(min=0), metavar="N", help="Its partition.")
@click.option("--prepared-state", required=True, metavar="ID:EPOCH", help="As the state row has it.")
def _commit(admin: TransactionAdmin, topic: str, partition: int, prepared_state: str, as_json: bool) -> None:
    """Commit a decided transaction that hangs on one partition, bypassing its coordinator.

    Only where an error of a dual write says so, with topic, partition and state.
    """
    try:
        prepared = PreparedTxnState(prepared_state)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--prepared-state") from error
    if prepared.is_empty:
        raise click.BadParameter("which transaction?", param_hint="--prepared-state")
    admin.commit_transaction(TopicPartition(topic, partition), prepared)
    if as_json:
        print_json({"topic": topic, "partition": partition, "committed": True})
    else:
        click.echo(f"committed on {topic}-{partition}")


@_command("force-terminate", "Abort the open transaction of an id.")
@click.option("--transactional-id", required=True, metavar="ID", help="The id.")
def _force_terminate(admin: TransactionAdmin, transactional_id: str, as_json: bool) -> None:
    """Abort the open transaction of an id, prepared or not, and fence its owner (KIP-939).

    If the database has committed, this loses the records: use `dualwrite recover` first, which reads the database.
    """
    terminated = admin.force_terminate_transaction(transactional_id)
    if as_json:
        print_json(
            {
                "found": described_document(terminated.found, _now_ms()),
                "producer_id": terminated.producer_id,
                "producer_epoch": terminated.producer_epoch,
            }
        )
    else:
        pair = f"{terminated.producer_id}:{terminated.producer_epoch}"
        click.echo(
            f"{transactional_id}: was {terminated.found.state}, nothing is open now, the newest producer is {pair}"
        )


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Show an animation on standard error, if that is a terminal."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        yield
        return
    with stderr.status(what):
        yield


def _now_ms() -> int:
    return int(time.time() * 1000)
