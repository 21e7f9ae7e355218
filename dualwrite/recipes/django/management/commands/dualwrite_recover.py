"""`manage.py dualwrite_recover`: complete transactions of crashed processes, as `dualwrite recover` does."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

import sqlalchemy as sa
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from dualwrite.config import shared_with_admin
from dualwrite.errors import DualWriteError
from dualwrite.recipes.django.pools import new_pool, schema_of
from dualwrite.recipes.django.wrapper import DualWriteWrapper
from dualwrite.recipes.recovery.service import DEFAULT_MIN_AGE_MS, Found, RecoveryReport, RecoveryService

_LEFT: Final = 1
"""The exit code of `dualwrite recover` too, if it could not complete everything."""


class Command(BaseCommand):
    """Complete transactions of crashed processes."""

    help = (
        "Commit or abort the Kafka transactions that crashed processes left open, as the database has decided. "
        "Without --apply it only reports its plan. It may run at any time, repeatedly, and several times at once; ids "
        "in use are left alone."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="the alias of the database; default: default")
        parser.add_argument("--all", action="store_true", help="all ids of the database, not only those of its prefix")
        parser.add_argument("--apply", action="store_true", help="resolve what is found")
        parser.add_argument(
            "--min-age",
            type=float,
            default=DEFAULT_MIN_AGE_MS / 1000,
            metavar="SECONDS",
            help="leave a transaction to its owner until it has been open for so long; default: %(default)s",
        )

        parser.add_argument(
            "--topic",
            action="append",
            default=[],
            metavar="NAME",
            help="look in this topic, too, for transactions that no coordinator will end; may be repeated",
        )

    def handle(self, *arguments: Any, **options: Any) -> None:
        alias = options["database"]
        connection = connections[alias] if alias in connections.settings else None
        if not isinstance(connection, DualWriteWrapper):
            raise CommandError(f"{alias!r} is not in DATABASES, or its ENGINE has no dual writes", returncode=2)
        try:
            report = _recover(connection, options)
        except (DualWriteError, sa.exc.SQLAlchemyError) as error:
            raise CommandError(f"nothing more was recovered: {error}", returncode=2) from error
        for found in report.found:
            self.stdout.write(_line(found))
        for each in report.unseen:
            self.stdout.write(f"not checked: {each}")
        left = sum(found.is_left for found in report.found)
        self.stdout.write(f"{len(report.found)} found, {left} left, {report.settled} settled")
        if not report.is_clean:
            how = "see `dualwrite recover` in docs/cli.md" if report.applied else "--apply resolves them where possible"
            raise CommandError(f"some transactional ids are left unresolved: {how}", returncode=_LEFT)


def _recover(connection: DualWriteWrapper, options: dict[str, Any]) -> RecoveryReport:
    pool = new_pool(connection)
    try:
        prefix, given = pool.prefix, pool.producer_settings
    finally:
        pool.close()
    with RecoveryService(
        connection.new_engine(),
        prefix="" if options["all"] else f"{prefix}-",
        min_age_ms=int(options["min_age"] * 1000),
        topics=options["topic"],
        schema=schema_of(connection),
        **shared_with_admin(given),  # it sends records again as they are
    ) as service:
        return service.recover() if options["apply"] else service.plan()


def _line(found: Found) -> str:
    parts = [found.transactional_id, found.action, "done" if found.changed else "not done"]
    parts += [f"row {found.row or 'empty'}", f"Kafka {found.state}"]
    if found.error:
        parts.append(" ".join(found.error.split()))
    return ": ".join(map(str, parts[:2])) + " (" + ", ".join(map(str, parts[2:])) + ")"
