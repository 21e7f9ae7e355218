"""`dualwrite recover --forget-cluster`: say what is given up, ask, and give it up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click
import sqlalchemy as sa

from dualwrite.cli.connection import KafkaAccess
from dualwrite.cli.output import ask, counted
from dualwrite.recipes.recovery.forgetting import Forgotten, forget_cluster


class Chosen(NamedTuple):
    """The cluster to forget, and the rows."""

    cluster_id: str
    prefix: str | None
    transactional_ids: Sequence[str]
    schema: str | None
    lock_timeout_ms: int


def forget_each(engine: sa.Engine, access: KafkaAccess, chosen: Chosen, *, apply: bool, yes: bool) -> list[Forgotten]:
    """Give up what is in doubt in the cluster, after asking; without `apply`, only say it.

    Raises as `forget_cluster` does, and UsageError if it has to ask and cannot.
    """
    with access.admin() as admin:

        def forget(*, apply: bool) -> list[Forgotten]:
            return forget_cluster(
                engine,
                chosen.cluster_id,
                admin=admin,
                prefix=chosen.prefix,
                transactional_ids=chosen.transactional_ids,
                apply=apply,
                schema=chosen.schema,
                lock_timeout_ms=chosen.lock_timeout_ms,
            )

        found = forget(apply=False)
        _say(chosen.cluster_id, found)
        if not apply or not found:
            return found
        ask(yes=yes)
        done = forget(apply=True)
    for each in done:
        if each.error is not None:
            click.echo(f"{each.transactional_id} is not given up: {each.error}", err=True)
    return done


def sum_up(done: Sequence[Forgotten], *, apply: bool) -> None:
    """Print how many dual writes were given up, or would be; nothing if there are none."""
    count = sum(each.error is None for each in done)
    if count and apply:
        click.echo(f"{counted(count, 'dual write')} {'was' if count == 1 else 'were'} given up")
    elif count:
        click.echo(f"{counted(count, 'dual write')} would be given up; nothing was changed: --apply does it")


def _say(cluster_id: str, found: Sequence[Forgotten]) -> None:
    if not found:
        click.echo(f"no row names a transaction of the cluster {cluster_id} that may be in doubt", err=True)
        return
    records = sum(each.records for each in found)
    click.echo(
        f"gives up the proof of {counted(len(found), 'dual write')} ({counted(records, 'record')}) that the database "
        f"has committed, and that were prepared in the cluster {cluster_id}. Whether they were committed there will "
        "not be checked once the ids are used in another cluster; if that cluster comes back then, it aborts open "
        "transactions. Stop its writers first, and compare the database with the topics:",
        err=True,
    )
    for each in found:
        where = ", ".join(each.topic_partitions)
        click.echo(
            f"  {each.transactional_id} {each.prepared_state}: {counted(each.records, 'record')} in {where}", err=True
        )
