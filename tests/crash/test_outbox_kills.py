"""Processes with an outbox that are killed at any point, as blocks or as publishers: others publish the rest, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import NotProvenError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.dual_write import Resolution
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.recovery.plan import Action
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash import outbox_worker
from tests.crash.killed import run_until_killed
from tests.crash.outbox_worker import BLOCKS
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.scenario import AnyScenario
from tests.producer.tiers import BOUNDED, TIERS, World
from tests.recipes.outboxes import (
    Open,
    any_style,
    assert_published,
    elsewhere,
    in_order,
    outbox_pool,
    pool_prefix,
    scenario_of,
    waiting,
)
from tests.recipes.outboxes import open_any_style as open_style
from tests.recipes.outboxes import scenario_anywhere as scenario
from tests.recipes.pools import write
from tests.recipes.repairs import delete_records
from tests.recovery.world import service
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, event_bodies

__all__ = ["any_style", "open_style", "scenario"]  # fixtures

OF_A_BLOCK = [PausePoint.AFTER_STATE_WRITE, PausePoint.BEFORE_DATABASE_COMMIT, PausePoint.AFTER_DATABASE_COMMIT]
OF_A_TAKE_OVER = [PausePoint.AFTER_LOCK, PausePoint.AFTER_INIT, PausePoint.AFTER_COMPLETION, PausePoint.AFTER_TAKEOVER]
OF_A_PUBLICATION = [
    PausePoint.AFTER_BEGIN,
    PausePoint.AFTER_SEND,
    PausePoint.AFTER_PREPARE,
    *OF_A_BLOCK,
    PausePoint.AFTER_KAFKA_COMMIT,
]


def run_and_kill(scenario: AnyScenario, point: PausePoint, *options: str, style: str = "psycopg") -> None:
    run_until_killed(
        outbox_worker.main,
        *("--style", style, "--topic", scenario.topic, "--point", point, *options),
        *("--database-url", scenario.database.url.render_as_string(hide_password=False)),
        *("--bootstrap-servers", scenario.emulator.bootstrap_servers, "--prefix", pool_prefix(scenario)),
    )


@pytest.mark.parametrize("point", OF_A_BLOCK)
def test_a_block_is_killed(scenario: PsycopgScenario, open_style: Open, point: PausePoint) -> None:
    successor = open_style()
    run_and_kill(scenario, point, style=successor.name)
    expected = [1] if point is PausePoint.AFTER_DATABASE_COMMIT else []
    assert event_bodies(scenario.database) == [str(number) for number in expected]
    successor.write(9)
    assert_published(scenario, *expected, 9)


AS_PUBLISHER = pytest.mark.parametrize(
    ("point", "options"),
    [
        *((point, ()) for point in (*OF_A_TAKE_OVER, *OF_A_PUBLICATION)),
        *((point, ("--later",)) for point in (PausePoint.AFTER_LOCK, *OF_A_PUBLICATION)),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value) or "first",
)


def assert_in_order(scenario: PsycopgScenario) -> None:
    """Assert that no block of the dead process was published out of its order."""
    of_blocks = [number for number in in_order(scenario) if number not in ("9", "100")]
    assert of_blocks == [str(number) for number in range(1, BLOCKS + 1)][: len(of_blocks)]


@AS_PUBLISHER
def test_a_publisher_is_killed(scenario: PsycopgScenario, point: PausePoint, options: tuple[str, ...]) -> None:
    run_and_kill(scenario, point, "--publisher", *options)
    with outbox_pool(scenario) as successor:
        write(successor, scenario, 9)
        assert_published(scenario, *event_bodies(scenario.database))
    assert_in_order(scenario)


@AS_PUBLISHER
def test_a_publisher_of_each_library_is_killed(
    scenario: PsycopgScenario, open_style: Open, point: PausePoint, options: tuple[str, ...]
) -> None:
    successor = open_style()
    run_and_kill(scenario, point, "--publisher", *options, style=successor.name)
    successor.write(9)
    assert_published(scenario, *event_bodies(scenario.database))
    assert_in_order(scenario)


def recover(scenario: AnyScenario, pool: DualWriter | PsycopgDualWriter) -> list[Resolution]:
    """Recover once the lease of the dead process has expired."""
    found: list[Resolution] = []

    def is_all_published() -> bool:
        had_lease = pool.status.publishes_outbox  # it may get the lease right after a recovery that did nothing
        found.extend(pool.recover())
        return had_lease

    until(is_all_published)
    assert waiting(scenario) == 0
    return found


@contextmanager
def scenario_on(
    tier: Tier, database: Any, make: Callable[[Any, Emulator], AnyScenario] = scenario_of
) -> Iterator[tuple[AnyScenario, World]]:
    with Emulator(config=TIERS[tier], clock=VirtualClock()) as emulator:
        made = make(database, emulator)
        emulator.set_config({"retention.ms": "-1"}, topic=made.topic)
        yield made, World(emulator, tier)


@pytest.mark.parametrize("tier", Tier, ids=lambda tier: tier.name)
@pytest.mark.parametrize("point", [*OF_A_TAKE_OVER, *OF_A_PUBLICATION])
@pytest.mark.parametrize("way", ["background", "recover"])
def test_a_publisher_is_killed_on_every_tier(
    postgres: PostgresDatabase, tier: Tier, point: PausePoint, way: str
) -> None:
    with scenario_on(tier, postgres) as (scenario, _):
        run_and_kill(scenario, point, "--publisher")
        with outbox_pool(scenario) as successor:
            if way == "recover":
                recover(scenario, successor)
            write(successor, scenario, 9)
            assert_published(scenario, *event_bodies(scenario.database))


WITH_LOG = pytest.mark.parametrize("has_log", [True, False], ids=["log", "copy"])


@pytest.mark.parametrize("tier", BOUNDED, ids=lambda tier: tier.name)
@pytest.mark.parametrize("point", OF_A_PUBLICATION)
@WITH_LOG
def test_a_transaction_prepared_by_a_dead_publisher_is_aborted_by_the_broker(
    postgres: PostgresDatabase, tier: Tier, point: PausePoint, has_log: bool
) -> None:
    """The publisher's decision deleted the blocks from the outbox: they are published again from the log or a copy."""
    with scenario_on(tier, postgres) as (scenario, world):
        check_an_abort_after_a_kill(scenario, world, point, has_log=has_log)


@pytest.mark.parametrize("tier", BOUNDED, ids=lambda tier: tier.name)
@pytest.mark.parametrize("point", [PausePoint.AFTER_PREPARE, PausePoint.AFTER_DATABASE_COMMIT])
@WITH_LOG
@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
def test_the_same_for_a_publisher_on_another_database(
    request: pytest.FixtureRequest, kind: str, tier: Tier, point: PausePoint, has_log: bool
) -> None:
    with scenario_on(tier, request.getfixturevalue(kind), elsewhere) as (scenario, world):
        check_an_abort_after_a_kill(scenario, world, point, has_log=has_log, style=kind)


def check_an_abort_after_a_kill(
    scenario: AnyScenario, world: World, point: PausePoint, *, has_log: bool, style: str = "psycopg"
) -> None:
    run_and_kill(scenario, point, "--publisher", style=style)
    world.abort_by_timeout()
    if not has_log and point is not PausePoint.AFTER_KAFKA_COMMIT:
        delete_records(scenario.emulator.bootstrap_servers, scenario.topic)
    is_decided = point is PausePoint.AFTER_DATABASE_COMMIT
    with outbox_pool(scenario) as successor:
        if is_decided and not has_log and world.tier is Tier.BOUNDED_V1:  # where no coordinator proves an abort
            with pytest.raises(NotProvenError):
                recover(scenario, successor)
            with service(scenario, publish_again=[scenario.transactional_id]) as recovery:
                assert [found.action for found in recovery.recover().found] == [Action.PUBLISH_AGAIN]
            is_decided = False
        found = recover(scenario, successor)
        if is_decided:
            assert [resolution.outcome for resolution in found] == [Outcome.REPAIRED]
        write(successor, scenario, 9)
        assert_published(scenario, *event_bodies(scenario.database))
