"""`dualwrite doctor`: check whether dual writes work with this cluster and this database, and name remedies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Final

import click
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.admin import TwoPhaseCommit
from dualwrite.cli.colours import coloured, meaning_of
from dualwrite.cli.connection import (
    KafkaAccess,
    database,
    database_option,
    json_option,
    kafka_options,
)
from dualwrite.cli.doctor_checks import Check, Verdict, failure
from dualwrite.cli.doctor_database import database_checks
from dualwrite.cli.doctor_ids import Ids, id_checks, ids_of, right_check
from dualwrite.cli.doctor_kafka import cluster_checks, is_missing, tier_check, topic_checks
from dualwrite.cli.failures import LEFT, UNUSABLE, sentence
from dualwrite.cli.groups import Command
from dualwrite.cli.numbers import number_option
from dualwrite.cli.output import counted, print_json, print_labelled, print_table
from dualwrite.config import BOUNDED_TRANSACTION_TIMEOUT_MS
from dualwrite.errors import DualWriteError
from dualwrite.guarantee import Guarantee, guarantee_of

_HEADERS: Final = ("Verdict", "Where", "What", "Found")
_CONCLUSIONS: Final = {
    Verdict.OK: "dual writes work here",
    Verdict.WARN: "dual writes work here, within the limits of the warnings",
    Verdict.FAIL: "dual writes do not work here until the failed checks are fixed",
}
_NO_WRITE: Final = "not known without WRITE on the ids: grant it and ask again"
_NOT_KNOWN: Final = "whether dual writes work here is unknown until both can be reached"


@click.command("doctor", cls=Command, short_help="Check whether dual writes work with this cluster and this database.")
@kafka_options
@database_option(required=False)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Test with this id whether WRITE and two-phase commit are allowed; by default with those of the database.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Check whether this client may write to this topic, and whether its aborted records can be published again; "
    "may be repeated.",
)
@number_option(
    "--max-stored-age",
    metavar="SECONDS",
    least=0.0,
    default=60.0,
    help="Warn of stored blocks that have waited for longer than this.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    access: KafkaAccess,
    database_url: str | None,
    transactional_id: str | None,
    topics: tuple[str, ...],
    max_stored_age: float,
    as_json: bool,
) -> None:
    """Check this cluster and this database, and name the guarantee that results and the remedies. Changes nothing.

    Each refusal with which writers would end a block is a failed check, by the same judge.

    Exit code: 0 dual writes work here, maybe with warnings; 1 they do not; 2 Kafka or the database cannot be reached.
    """
    guarantees: list[Guarantee | None] = []
    with ExitStack() as opened:
        looks = _Looks(access, opened, database_url, transactional_id, max_stored_age)
        in_database, has_database = _reached("database", looks.into_database)
        checks, has_kafka = _reached("kafka", lambda: _kafka(access, looks.ids, topics, guarantees))
        checks += in_database
        if has_kafka and has_database:
            checks += _reached("database", lambda: looks.at_ids(topics))[0]
    reached = has_kafka and has_database
    if as_json:
        print_json(_document(checks, guarantees))
    else:
        _print(checks, guarantees)
        worst = _worst(checks)
        click.echo(coloured(_CONCLUSIONS[worst], meaning_of("Verdict", worst)) if reached else _NOT_KNOWN)
        if database_url is None:
            click.echo("no database was checked: give --database to check one")
        if reached and not topics:
            click.echo("no topic was checked: give --topic for each that blocks send to")
    ctx.exit(UNUSABLE if not reached else LEFT if _worst(checks) is Verdict.FAIL else 0)


class _Looks:
    """The looks into the database: none without a database."""

    def __init__(
        self, access: KafkaAccess, opened: ExitStack, url: str | None, given_id: str | None, max_stored_age_s: float
    ) -> None:
        self._access, self._opened, self._url = access, opened, url
        self._given_id, self._max_stored_age_s = given_id, max_stored_age_s
        self._engine: sa.Engine | None = None
        self.ids = ids_of(None, given_id)

    def into_database(self) -> list[Check]:
        if self._url is None:
            return []
        engine = self._engine = self._opened.enter_context(database(self._url))
        checks = database_checks(engine, max_stored_age_s=self._max_stored_age_s)
        self.ids = ids_of(engine, self._given_id)
        return checks if self.ids.problem is None else [*checks, self.ids.problem]

    def at_ids(self, topics: Sequence[str]) -> list[Check]:
        return [] if self._engine is None else id_checks(self._engine, self._access, self.ids, topics)


def _kafka(access: KafkaAccess, ids: Ids, topics: tuple[str, ...], guarantees: list[Guarantee | None]) -> list[Check]:
    with access.admin() as admin:
        cluster = admin.describe_cluster()
        answers = admin.describe_two_phase_commit(ids.probed[0])
        found, tier = cluster_checks(admin.describe_features(), answers)
        described = admin.describe_topics(topics) if topics else {}
        creates_topics = admin.creates_topics() if any(map(is_missing, described.values())) else None
        if tier is not None:
            allowed = {each: admin.may_write_with(each) for each in ids.probed}
            # REFUSED may only mean that this client has no WRITE on the id with which the tier was found
            is_known = allowed[ids.probed[0]] or TwoPhaseCommit.REFUSED not in answers.values()
            found += [tier_check(tier)] if is_known else []
            found.append(right_check(ids, allowed))
            guarantees.append(guarantee_of(tier, BOUNDED_TRANSACTION_TIMEOUT_MS) if is_known else None)
            for name, topic in described.items():
                found += topic_checks(name, topic, tier if is_known else None, creates_topics)
    return [Check("kafka", "cluster", f"{cluster.cluster_id}, {counted(len(cluster.brokers), 'broker')}"), *found]


def _reached(where: str, look: Callable[[], list[Check]]) -> tuple[list[Check], bool]:
    """Return the checks, and whether the server was reached; an unreachable one does not stop the other's checks."""
    try:
        return look(), True
    except (DualWriteError, SQLAlchemyError) as error:
        return [failure(where, "reachable", "no", sentence(error))], False


def _print(checks: list[Check], guarantees: list[Guarantee | None]) -> None:
    print_table(_HEADERS, [(check.verdict, check.where, check.what, check.found) for check in checks])
    for check in checks:
        if check.remedy is not None:
            meaning = meaning_of("Verdict", check.verdict)
            print_labelled(check.verdict, f"{check.where}, {check.what}: {check.remedy}", meaning)
    for guarantee in guarantees:
        print_labelled("guarantee", _NO_WRITE if guarantee is None else guarantee.sentence, None)


def _worst(checks: list[Check]) -> Verdict:
    verdicts = {check.verdict for check in checks}
    return next(verdict for verdict in (Verdict.FAIL, Verdict.WARN, Verdict.OK) if verdict in verdicts)


def _document(checks: list[Check], guarantees: list[Guarantee | None]) -> dict[str, object]:
    """Return the document of `--json`; docs/cli.md has its keys."""
    return {
        "healthy": _worst(checks) is not Verdict.FAIL,
        "guarantee": asdict(guarantees[0]) if guarantees and guarantees[0] else None,
        "checks": [asdict(check) for check in checks],
    }
