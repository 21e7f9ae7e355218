"""Single steps of the tests of dual writes."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

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
