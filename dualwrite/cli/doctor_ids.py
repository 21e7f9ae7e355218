"""The checks of the transactional ids of a database: whether writers may use them, and whether their rows are refused.

The judge of the writers judges here too: the ids are planned as `dualwrite recover` does, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa

from dualwrite.admin import PROBED_ID
from dualwrite.cli.connection import KafkaAccess
from dualwrite.cli.doctor_checks import Check, failure, of_error, warning
from dualwrite.cli.output import counted
from dualwrite.errors import DualWriteError
from dualwrite.recipes.core.judge import REFUSALS
from dualwrite.recipes.recovery.plan import NEEDS_OPERATOR, Action, Found
from dualwrite.recipes.recovery.service import RecoveryService
from dualwrite.recipes.recovery.stored_rows import known_database, stored_rows
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state

_WHERE: Final = "database"
_MOST_PROBED: Final = 10
_REMEDIES: Final = {refusal.name: refusal.remedy for refusal in REFUSALS.values()} | {
    Action.FORGOTTEN: "see whether this is the right cluster, or whether it has lost data",
    Action.NO_EVIDENCE: "compare both sides, then dualwrite recover --acknowledge-lost ID --apply",
}
_MAY_PASS: Final = (Action.FAILED, Action.OVERDUE, Action.NO_EVIDENCE)


class Ids(NamedTuple):
    """The ids of a database: `names` as its rows have them, `probed` as Kafka knows them, for tests of rights.

    `is_used`: the probed ids are known to be those of writers. `problem` is the refusal of the whole database.
    """

    names: Sequence[str] = ()
    probed: Sequence[str] = (PROBED_ID,)
    is_used: bool = False
    problem: Check | None = None


def ids_of(engine: sa.Engine | None, given: str | None) -> Ids:
    """Return the ids of a database, or the id that was given."""
    alone = Ids() if given is None else Ids(probed=[given], is_used=True)
    if engine is None or not sa.inspect(engine).has_table(kafka_transaction_state.name):
        return alone
    try:
        pinned, identity = known_database(engine, None)
        names = sorted(stored_rows(engine, pinned, prefix="", transactional_ids=()))
    except DualWriteError as error:
        return alone._replace(problem=of_error(_WHERE, error))
    except sa.exc.DBAPIError:
        return alone  # the checks of the tables and of the rights on them name the cause
    if given is not None and (names or identity.name_of(given)):
        return Ids(names, [identity.kafka_id(identity.name_as_given(given))], is_used=True)
    if given is not None or not names:
        return alone._replace(names=names)
    return Ids(names, [identity.kafka_id(name) for name in names[:_MOST_PROBED]], is_used=True)


def right_check(ids: Ids, allowed: Mapping[str, bool]) -> Check:
    """Return whether this client is allowed WRITE on the ids that were probed."""
    what = "right to write"
    refused = [name for name in ids.probed if not allowed[name]]
    if not refused:
        return Check("kafka", what, f"WRITE on the transactional id {', '.join(ids.probed)}")
    if not ids.is_used:
        remedy = "give --transactional-id with an id that your writers use"
        return warning(
            "kafka", what, f"not known: this client has no WRITE on the transactional id {PROBED_ID}", remedy
        )
    remedy = "grant WRITE on the transactional id, as a prefix: the database adds a suffix to each (docs/security.md)"
    return failure("kafka", what, f"no WRITE on the transactional id {', '.join(refused)}", remedy)


def id_checks(engine: sa.Engine, access: KafkaAccess, ids: Ids, topics: Sequence[str]) -> list[Check]:
    """Return whether writers refuse the ids of the database, by their rows or by what hangs in the topics."""
    if not ids.names:
        return []
    with RecoveryService(
        engine, transactional_ids=ids.names, topics=topics, timeout_ms=access.timeout_ms, **access.settings
    ) as service:
        report = service.plan()
    checks = [_check(found) for found in report.found if found.action in NEEDS_OPERATOR]
    if report.unseen:
        checks.append(warning(_WHERE, "transactional ids", "not all checked", "; ".join(report.unseen)))
    return checks or [Check(_WHERE, "transactional ids", _sound(ids, len(report.found)))]


def _sound(ids: Ids, others: int) -> str:
    count = counted(len(ids.names), "id")
    return f"{count}, whose rows agree with Kafka" if not others else f"{count}, {others} of them to be completed"


def _check(found: Found) -> Check:
    report = warning if found.action in _MAY_PASS else failure
    remedy = _REMEDIES.get(found.action, "run dualwrite recover, which says more")
    return report(_WHERE, f"{found.action}: {found.transactional_id}", found.error or found.action, remedy)
