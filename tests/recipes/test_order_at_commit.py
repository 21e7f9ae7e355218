"""Rows that a block locks only inside its COMMIT, by a deferred constraint trigger, as docs/order.md describes them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.delivery import Delivery, Direct, Outbox
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from tests.crash.psycopg_scenario import PsycopgScenario, conninfo_of
from tests.recipes.outboxes import in_order, outbox_pool, scenario, settings_for
from tests.recipes.pools import QUIET_LEASE_MS
from tests.support.conditions import until
from tests.support.databases import waits_for_a_lock

__all__ = ["scenario"]  # a fixture

_TABLES = """
    CREATE TABLE sums (changes text);
    INSERT INTO sums VALUES ('');
    CREATE FUNCTION change_sum() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN UPDATE sums SET changes = changes || NEW.body; RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER change_sum AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION change_sum()
"""


def ask(scenario: PsycopgScenario, sql: str) -> Any:
    with scenario.database.aside.begin() as connection:
        return connection.execute(sa.text(sql)).scalar()


@pytest.mark.parametrize("delivery", [Outbox(publishes=False), Direct()], ids=["outbox", "direct"])
@pytest.mark.parametrize("is_immediate", [False, True], ids=["deferred", "immediate"])
def test_a_row_that_a_trigger_changes_at_commit(
    scenario: PsycopgScenario, delivery: Delivery, is_immediate: bool
) -> None:
    """Block 1 has its place before it waits for block 2, unless it lets its triggers run before it ends."""
    with scenario.database.aside.begin() as connection:
        connection.exec_driver_sql(_TABLES)
    settings = settings_for(scenario, lease_ms=QUIET_LEASE_MS) | {"delivery": delivery}
    with (
        PsycopgDualWriter(conninfo_of(scenario.database.url), **settings) as pool,
        ThreadPoolExecutor(1) as threads,
    ):

        def write_first() -> None:
            with psycopg.connect(conninfo_of(scenario.database.url)) as connection:
                with pool.transaction(connection) as tx:
                    tx.connection.execute("INSERT INTO events (id, event_key, body) VALUES (1, 'k', '1')")
                    tx.send(scenario.topic, key="k", value="1")
                    if is_immediate:
                        tx.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

        with pool.transaction() as tx:
            tx.connection.execute("UPDATE sums SET changes = changes || '2'")
            first = threads.submit(write_first)
            until(lambda: waits_for_a_lock(scenario.database, "SET CONSTRAINTS" if is_immediate else "COMMIT"))
            tx.send(scenario.topic, key="k", value="2")
        first.result(60)
    if isinstance(delivery, Outbox):
        with outbox_pool(scenario) as publisher:
            publisher.recover()
    assert ask(scenario, "SELECT changes FROM sums") == "21"
    until(lambda: len(in_order(scenario)) == 2)
    assert in_order(scenario) == (["2", "1"] if is_immediate else ["1", "2"])
