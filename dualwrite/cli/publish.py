"""`dualwrite publish`: publish the outboxes of pools, as a process of its own."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import click
import sqlalchemy as sa

from dualwrite.cli.connection import KafkaAccess, database_option, publishing_kafka_options, schema_option
from dualwrite.cli.failures import sentence
from dualwrite.cli.groups import Command
from dualwrite.cli.numbers import number_option
from dualwrite.delivery import Outbox
from dualwrite.errors import ConfigError, DualWriteError, StateRowError, StateTableError
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.recipes.writer import ThreadWriter

AnyPool = ThreadWriter[Any, Any]

_LOOK_S: Final = 1.0
"""How often to look which process publishes."""


@click.command("publish", cls=Command, short_help="Publish the outboxes of pools, until SIGTERM or SIGINT.")
@publishing_kafka_options
@database_option(required=True)
@schema_option
@click.option(
    "--prefix", "prefixes", multiple=True, required=True, metavar="TEXT", help="Of the pool; may be repeated."
)
@number_option(
    "--poll-ms", metavar="MS", least=1, default=5, help="How soon blocks added by other processes are noticed."
)
@number_option(
    "--linger-ms",
    metavar="MS",
    default=0,
    help="How long to let blocks wait after a batch, for larger and fewer batches.",
)
@number_option(
    "--prepare-threshold",
    metavar="N",
    help="With psycopg: prepare a statement once it was executed N times. Not through a pooler like PgBouncer.",
)
def command(
    *,
    access: KafkaAccess,
    database_url: str,
    schema: str | None,
    prefixes: tuple[str, ...],
    poll_ms: int,
    linger_ms: int,
    prepare_threshold: int | None,
) -> None:
    """Publish the blocks that pools have added to their outboxes, until SIGTERM or SIGINT.

    One process publishes an outbox at a time: this one stands by while another does, and takes over when that has
    ended. It is for services whose own processes are not to publish (delivery=Outbox(publishes=False)), or as a spare.
    The tables must exist: dualwrite init-db --outbox.

    Exit code: 0 stopped by a signal; 2 wrong usage, or the database cannot be used.
    """
    _show_log()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with ExitStack() as opened:
        make = _maker(database_url, opened, prepare_threshold)
        pools = [
            opened.enter_context(
                make(
                    prefix=prefix,
                    max_writers=1,
                    create_table=False,
                    schema=schema,
                    delivery=Outbox(poll_ms=poll_ms, linger_ms=linger_ms),
                    **access.settings,
                    **access.publishing,
                )
            )
            for prefix in dict.fromkeys(prefixes)
        ]
        _begin(pools)
        _report_until(stopped, pools)


def _maker(database_url: str, opened: ExitStack, prepare_threshold: int | None) -> Callable[..., AnyPool]:
    """Return a maker of pools: on psycopg alone, if that is the driver, in half the time of SQLAlchemy."""
    engine = sa.create_engine(database_url)
    opened.callback(engine.dispose)
    if engine.dialect.driver != "psycopg":
        return partial(DualWriter, engine)
    import psycopg  # which may not be installed if another driver is used

    from dualwrite.recipes.psycopg.writer import PsycopgDualWriter

    _, parameters = engine.dialect.create_connect_args(engine.url)
    parameters.pop("context", None)
    try:
        conninfo = psycopg.conninfo.make_conninfo(**parameters)
    except psycopg.ProgrammingError:  # the URL has parameters of psycopg that libpq does not know
        return partial(DualWriter, engine)
    return partial(PsycopgDualWriter, conninfo, prepare_threshold=prepare_threshold)


def _show_log() -> None:
    """Show the log, which alone has the reason if an outbox is not published."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("dualwrite").addHandler(handler)


def _begin(pools: Iterable[AnyPool]) -> None:
    """Start publishing; retry in the background while Kafka cannot be reached."""
    for pool in pools:
        try:
            pool.recover()
        except (ConfigError, StateRowError, StateTableError):
            raise  # which another attempt would meet again
        except DualWriteError as error:
            click.echo(f"{pool.prefix}: {sentence(error)}; this is tried again", err=True)


def _report_until(stopped: threading.Event, pools: Iterable[AnyPool]) -> None:
    """Print which outboxes this process publishes, whenever that changes."""
    known: dict[str, bool] = {}
    while True:
        for pool in pools:
            publishes = pool.status.publishes_outbox
            if known.get(pool.prefix) is not publishes:
                known[pool.prefix] = publishes
                what = "published by this process" if publishes else "published by another process, or by none yet"
                click.echo(f"{pool.prefix}: {what}")
        if stopped.wait(_LOOK_S):
            return
