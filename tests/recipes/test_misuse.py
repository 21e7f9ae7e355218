"""Mistakes of a newcomer: each is refused at once with a clear message, and nothing is half written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from dualwrite import AsyncDualWriter, DualWriter
from dualwrite.errors import (
    ConfigError,
    IllegalStateError,
    InvalidRecordError,
    StateRowError,
)
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from tests.crash.scenario import Scenario
from tests.recipes.steps import put
from tests.support.threads import in_threads


def commit_past_sqlalchemy(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    driver.cursor().execute("COMMIT")
    session.execute(sa.text("SELECT 1"))


def test_a_hook_that_commits_past_sqlalchemy_has_decided(scenario: Scenario, writer: DualWriter) -> None:
    """The state was written by then, and so is permanent: the row is true, even if an error is found later."""
    if scenario.database.engine.dialect.name == "postgresql":
        pytest.skip("there the state travels with COMMIT, so what is committed before has no records")
    with Session(scenario.database.engine) as session:
        event.listen(session, "before_commit", commit_past_sqlalchemy, once=True)
        with writer.transaction(session) as tx:
            put(tx, scenario, 1)
    assert tx.outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree("1")


def test_a_hook_may_undo_its_own_savepoint_right_before_commit(scenario: Scenario, writer: DualWriter) -> None:
    def try_something(session: Session) -> None:
        session.begin_nested().rollback()
        session.execute(sa.text("SELECT 1"))

    with Session(scenario.database.engine) as session:
        event.listen(session, "before_commit", try_something, once=True)
        with writer.transaction(session) as tx:
            put(tx, scenario, 1)
    scenario.assert_both_sides_agree("1")


@pytest.mark.parametrize("refused", [{"value": b"x" * 5_000_000}, {"value": "v", "partition": 99}])
def test_a_record_that_only_the_producer_can_refuse_changes_neither_side(
    scenario: Scenario, writer: DualWriter, refused: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRecordError, match="not sent"), writer.transaction() as tx:
        put(tx, scenario, 1)
        tx.send(scenario.topic, **refused)
    assert writer.state is SlotState.READY
    with writer.transaction() as tx:
        put(tx, scenario, 2)
    scenario.assert_both_sides_agree("2")


@pytest.mark.parametrize(
    ("kind", "identity"),
    [
        (DualWriter, {"transactional_id": "t"}),
        (AsyncDualWriter, {"transactional_id": "t"}),
        (DualWriter, {"prefix": "t"}),
        (AsyncDualWriter, {"prefix": "t"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_url_is_no_engine_and_its_password_is_not_shown(kind: Callable[..., Any], identity: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="engine") as raised:
        kind("postgresql+psycopg://me:sesame@db/shop", bootstrap_servers="127.0.0.1:1", **identity)
    assert "not str" in str(raised.value)
    assert "sesame" not in str(raised.value)


def test_a_row_written_by_another_program(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, 1)
    writer.close()
    with scenario.database.engine.begin() as connection:
        connection.execute(kafka_transaction_state.update().values(prepared_transaction_state="what?"))
    with scenario.writer() as successor:
        with pytest.raises(StateRowError, match=f"{scenario.transactional_id}.*'what[?]' is not a prepared") as raised:
            with successor.transaction() as tx:
                put(tx, scenario, 2)
    assert "neither database nor Kafka was changed" in str(raised.value)


def test_a_block_that_is_not_entered_names_the_missing_with(writer: DualWriter) -> None:
    block: Any = writer.transaction()
    for name in ("session", "connection", "send", "execute"):
        with pytest.raises(AttributeError, match=rf"`with writer.transaction\(\) as tx:` and use tx\.{name} inside it"):
            getattr(block, name)
    with block as tx, pytest.raises(AttributeError, match=r"transaction\(\) returns a block"):
        assert tx.session is not None
        block.send("orders", value="1")
    assert not hasattr(block, "__fspath__"), "what Python itself asks for is absent as always"


async def _use_unentered(engine: AsyncEngine, bootstrap_servers: str) -> None:
    async with AsyncDualWriter(engine, transactional_id="t", bootstrap_servers=bootstrap_servers) as writer:
        block: Any = writer.transaction()
        with pytest.raises(AttributeError, match=r"`async with writer.transaction\(\) as tx:` and use tx\.send"):
            block.send("orders", value="1")


def test_a_block_of_a_task_says_the_same() -> None:
    asyncio.run(_use_unentered(create_async_engine("sqlite+aiosqlite://"), "127.0.0.1:1"))


def test_a_second_thread_is_sent_to_the_pool(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, 1)
        with pytest.raises(IllegalStateError, match=r"of another thread; nothing was written: use a pool \(prefix="):
            in_threads(lambda: writer.transaction().__enter__())
    scenario.assert_both_sides_agree("1")


def test_a_dict_without_a_serializer_names_the_setting(scenario: Scenario, writer: DualWriter) -> None:
    with pytest.raises(InvalidRecordError, match=r"the value is dict, .* set value_serializer, .*serializers\.json"):
        with writer.transaction() as tx:
            tx.send(scenario.topic, value={"id": 1})
    scenario.assert_both_sides_agree()
