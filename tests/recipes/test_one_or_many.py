"""`prefix=` makes a writer a pool, `transactional_id=` gives it one id: it takes exactly one of the two."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import (
    AsyncDualWriter,
    AsyncpgDualWriter,
    AsyncPsycopgDualWriter,
    DualWriter,
    PsycopgDualWriter,
)
from dualwrite.delivery import Outbox
from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.recipes.core.slot import SlotState
from tests.crash.scenario import Scenario

MAKERS: Final[dict[str, Callable[..., Any]]] = {
    "sqlalchemy": lambda **settings: DualWriter(sa.create_engine("sqlite://"), **settings),
    "sqlalchemy-asyncio": lambda **settings: AsyncDualWriter(create_async_engine("sqlite+aiosqlite://"), **settings),
    "psycopg": lambda **settings: PsycopgDualWriter("dbname=shop", **settings),
    "psycopg-asyncio": lambda **settings: AsyncPsycopgDualWriter("dbname=shop", **settings),
    "asyncpg": lambda **settings: AsyncpgDualWriter("postgresql:///shop", **settings),
}
OF_ONE_ID: Final = ("transactional_id", "kafka_transactional_id", "state", "in_doubt")
OF_POOLS: Final = ("prefix", "status")


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    maker = MAKERS[request.param]
    return lambda **settings: maker(bootstrap_servers="127.0.0.1:1", **settings)


@pytest.mark.parametrize(
    ("given", "which"), [({}, "neither"), ({"transactional_id": "orders-1", "prefix": "orders"}, "both")]
)
def test_exactly_one_of_id_and_prefix(make: Callable[..., Any], given: dict[str, Any], which: str) -> None:
    with pytest.raises(ConfigError, match=f"exactly one of transactional_id=.* and prefix=.* given {which}"):
        make(**given)


@pytest.mark.parametrize("setting", [{"max_writers": 2}, {"acquire_timeout_ms": 5}, {"lease_ms": 500}])
def test_a_writer_with_one_id_has_no_settings_of_a_pool(make: Callable[..., Any], setting: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} is a setting of a pool: make one with prefix="):
        make(transactional_id="orders-1", **setting)


def test_a_writer_with_one_id_has_no_outbox(make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="needs a pool"):
        make(transactional_id="orders-1", delivery=Outbox())


def test_the_attributes_of_a_writer_with_one_id(make: Callable[..., Any]) -> None:
    writer = make(transactional_id="orders-1")
    assert (writer.is_pool, writer.transactional_id, writer.kafka_transactional_id) == (False, "orders-1", None)
    assert writer.state is SlotState.NEW
    assert writer.in_doubt.is_empty
    for member in OF_POOLS:
        with pytest.raises(IllegalStateError, match="has one transactional id, 'orders-1', and no pool"):
            getattr(writer, member)


def test_the_members_of_a_pool(make: Callable[..., Any]) -> None:
    writer = make(prefix="orders", max_writers=2)
    assert (writer.is_pool, writer.prefix, writer.status.max_writers) == (True, "orders", 2)
    for member in OF_ONE_ID:
        with pytest.raises(IllegalStateError, match="has a pool of transactional ids with prefix 'orders'"):
            getattr(writer, member)


def test_close_waits_for_the_block_of_another_thread(scenario: Scenario) -> None:
    """A block that takes longer is said, and the writer goes on; inside a block of the same thread there is no wait."""
    entered, go_on = threading.Event(), threading.Event()
    writer = scenario.writer()

    def write() -> None:
        with writer.transaction() as tx:
            entered.set()
            go_on.wait()
            tx.send(scenario.topic, value="1")

    writing = threading.Thread(target=write)
    writing.start()
    entered.wait()
    with pytest.raises(IllegalStateError, match=r"another thread after 0\.01 s; the writer is not closed"):
        writer.close(timeout_s=0.01)
    go_on.set()
    writer.close(timeout_s=600)
    assert writer.state is SlotState.CLOSED
    writing.join()
    with scenario.writer() as second, second.transaction():
        with pytest.raises(IllegalStateError, match="this thread runs a dual write; leave its block"):
            second.close(timeout_s=600)
