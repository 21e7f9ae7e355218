"""Single steps of the tests of dual writes."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.orm import Session

from dualwrite.outcome import Outcome
from dualwrite.recipes.sqlalchemy.writer import DualTransaction
from tests.crash.scenario import Scenario
from tests.support.databases import events


def put(tx: DualTransaction, scenario: Scenario, number: int) -> None:
    """Write one event to the table and to the topic."""
    tx.connection.execute(sa.insert(events), {"id": number, "event_key": "k", "body": str(number)})
    tx.send(scenario.topic, key="k", value=str(number))


def break_a_statement(execute: Callable[..., object]) -> None:
    """Violate the primary key of event 1."""
    execute(sa.insert(events), {"id": 1, "event_key": "k", "body": "again"})


def raw_rollback(connection: sa.Connection, *, begins: bool = False) -> None:
    """End the transaction past SQLAlchemy, and go on past it in another one, so that the driver reports one again."""
    cursor = connection.connection.cursor()
    begin = ["BEGIN"] if begins else []
    for statement in ("ROLLBACK", *begin, "INSERT INTO events (id, event_key, body) VALUES (7, 'k', '7')"):
        cursor.execute(statement)
    cursor.close()


def roll_back_in_part(session: Session) -> None:
    session.execute(sa.text("ROLLBACK TO SAVEPOINT s"))


def roll_back_past_sqlalchemy(session: Session) -> None:
    session.connection().connection.cursor().execute("ROLLBACK")


def of_a_rollback_unseen(scenario: Scenario) -> Outcome | None:
    """PostgreSQL's COMMIT proves that it is another transaction; a row that is read again proves the rollback."""
    return None if scenario.database.engine.dialect.name == "postgresql" else Outcome.ROLLED_BACK
