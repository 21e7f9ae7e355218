"""`prefix=` makes a writer a pool, `transactional_id=` gives it one id; and the settings that every writer refuses."""

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
from dualwrite.delivery import Direct, Outbox
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
OF_POOLS_ALONE: Final = ("max_writers", "acquire_timeout_ms", "lease_ms")


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    maker = MAKERS[request.param]
    return lambda **settings: maker(bootstrap_servers="127.0.0.1:1", **settings)


ONE_ID: Final = {"transactional_id": "orders-1"}
POOL: Final = {"prefix": "orders"}
REFUSED: Final[list[tuple[dict[str, Any], str]]] = [
    ({}, "exactly one of transactional_id=.* and prefix=.* given neither"),
    (ONE_ID | POOL, "exactly one of transactional_id=.* and prefix=.* given both"),
    *((ONE_ID | {name: 500}, f"{name} is a setting of a pool: make one with prefix=") for name in OF_POOLS_ALONE),
    *(({"transactional_id": wrong}, "1 to 255 characters") for wrong in ("", 5, "x" * 256)),
    ({"transactional_id": "orders-outbox-0"}, "must not end with '-outbox-0'"),
    (ONE_ID | {"bootstrap_server": "127.0.0.1:9092"}, "bootstrap_server"),
    (ONE_ID | {"delivry": Direct()}, "unknown setting 'delivry'; did you mean delivery"),
    (ONE_ID | {"linger_ms": "soon"}, "linger"),
    (ONE_ID | {"transaction_two_phase_commit_enable": True}, "cannot be set here"),
    (ONE_ID | {"accept_bounded_guarantee": True}, "cannot be set here"),
    (ONE_ID | {"delivery": "outbox"}, r"delivery takes Direct\(\.\.\.\) or Outbox"),
    (ONE_ID | {"delivery": Outbox()}, r"Outbox\(\) needs a pool"),
    (ONE_ID | {"delivery": Direct(when_kafka_is_away="store")}, 'when_kafka_is_away="store".* needs a pool'),
    ({"prefix": ""}, "prefix must be the beginning"),
    ({"prefix": "orders "}, "without surrounding blanks"),
    ({"prefix": "x" * 255}, "of 1 to 255 characters"),
    ({"prefix": "p" * 247, "delivery": Outbox()}, "255"),
    *(({"prefix": "a-outbox", "delivery": each}, "must not end with '-outbox'") for each in (Direct(), Outbox())),
    (POOL | {"max_writers": 0}, "max_writers takes a whole number of at least 1, not 0"),
    (POOL | {"lease_ms": 5}, "lease_ms takes a whole number of at least 100, not 5"),
    (POOL | {"acquire_timeout_ms": -1}, "acquire_timeout_ms takes"),
    (POOL | {"delivery": True}, "delivery takes"),
    (POOL | {"delivery": {"poll_ms": 20}}, "delivery takes"),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED)
def test_settings_that_no_writer_takes(make: Callable[..., Any], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(**settings)


def test_a_writer_needs_a_broker() -> None:
    with pytest.raises(ConfigError, match="bootstrap"):
        DualWriter(sa.create_engine("sqlite://"), transactional_id="t")  # type: ignore[call-overload]


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
