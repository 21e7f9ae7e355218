"""Recovery and the outbox of a pool: found with and without a publisher, and with and without its row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite import Outbox
from dualwrite.broker_emulator import Emulator
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.leases import outbox_id_of, outbox_prefix_of
from dualwrite.recipes.recovery.adoption import adopt
from dualwrite.recipes.recovery.plan import Action
from dualwrite.recipes.recovery.taking_out import TakenOut, take_out
from dualwrite.recipes.sql.outbox_elsewhere import OUTBOX_SQL
from tests.crash.scenario import Scenario
from tests.producer.tiers import TIERS
from tests.recipes.pools import AnyPool, make_pool, prefix_of, write
from tests.recovery.world import service
from tests.support.conditions import until
from tests.support.databases import Database, event_bodies, state_row, unique, waits_for_a_lock
from tests.support.topics import read_topic


@pytest.fixture
def scenario(database: Database, emulator: Emulator) -> Scenario:
    return made(database, emulator)


def made(database: Database, emulator: Emulator) -> Scenario:
    return Scenario(database, emulator, transactional_id=f"{unique('pool')}-0")


def outbox_of(scenario: Scenario) -> str:
    return outbox_id_of(prefix_of(scenario))


def waiting(scenario: Scenario) -> int:
    with scenario.database.aside.connect() as connection:
        is_waiting = OUTBOX_SQL[connection.dialect.name].is_waiting
        found: int = connection.scalar(sa.text(f"SELECT count(*) FROM kafka_transaction_outbox WHERE {is_waiting}"))
        return found


def execute(scenario: Scenario, sql: str, **values: Any) -> None:
    with scenario.database.aside.begin() as connection:
        connection.execute(sa.text(sql), values)


def bodies(scenario: Scenario) -> list[str]:
    return [str(value) for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


def leave_waiting(scenario: Scenario, *numbers: int, **settings: Any) -> None:
    """Leave blocks in the outbox, by a process that does not publish and is gone."""
    with make_pool(scenario, delivery=Outbox(publishes=False), **settings) as pool:
        assert {write(pool, scenario, number).outcome for number in numbers} == {Outcome.STORED}
    assert bodies(scenario) == []


def found_by(scenario: Scenario, *, apply: bool, **settings: Any) -> list[tuple[str, Action, bool]]:
    """Return the findings of a round; the id is selected by the prefix of the pool."""
    settings = {"prefix": f"{prefix_of(scenario)}-", "transactional_ids": ()} | settings
    with service(scenario, **settings) as recovery:
        report = recovery.recover() if apply else recovery.plan()
    return [(found.transactional_id, found.action, found.changed) for found in report.found]


@pytest.mark.parametrize("apply", [False, True])
def test_an_outbox_without_its_state_row_is_not_lost(scenario: Scenario, apply: bool) -> None:
    leave_waiting(scenario, 1, 2)
    execute(scenario, "DELETE FROM kafka_transaction_state")
    assert found_by(scenario, apply=apply) == [(outbox_of(scenario), Action.PUBLISH, apply)]
    assert bodies(scenario) == (["1", "2"] if apply else [])
    assert bool(state_row(scenario.database, outbox_of(scenario))) is apply


def test_an_outbox_is_not_found_under_another_prefix(scenario: Scenario) -> None:
    leave_waiting(scenario, 1)
    execute(scenario, "DELETE FROM kafka_transaction_state")
    assert found_by(scenario, apply=True, prefix="another-") == []
    assert waiting(scenario) == 1


@pytest.fixture
def publisher(scenario: Scenario) -> Iterator[AnyPool]:
    """A living process that publishes, and has recovered its outbox."""
    with make_pool(scenario, delivery=Outbox()) as pool:
        write(pool, scenario, 1)
        until(lambda: bodies(scenario) == ["1"])
        yield pool


@pytest.mark.parametrize("apply", [False, True])
def test_a_living_publisher_is_not_fenced(scenario: Scenario, publisher: AnyPool, apply: bool) -> None:
    row = state_row(scenario.database, outbox_of(scenario))
    execute(
        scenario,
        "INSERT INTO kafka_transaction_outbox (transactional_id, seq, stored_at_ms, records)"
        " VALUES (:id, 1000000, :now, '\\x00')",  # unreadable for Kafka or for this version
        id=outbox_of(scenario),
        now=int(time.time() * 1000) - 1_000,
    )
    assert found_by(scenario, apply=apply) == [(outbox_of(scenario), Action.OVERDUE, False)]
    with service(scenario, transactional_ids=[outbox_of(scenario)]) as recovery:
        (found,) = recovery.plan().found
    told = "a living process holds the lease of this outbox; its oldest block has waited for "
    assert (found.is_left, str(found.error).startswith(told)) == (True, True)
    assert state_row(scenario.database, outbox_of(scenario)) == row
    assert publisher.status.publishes_outbox
    assert publisher.status.lost_total == 0
    execute(scenario, "DELETE FROM kafka_transaction_outbox")
    write(publisher, scenario, 2)
    publisher.recover()
    until(lambda: bodies(scenario) == ["1", "2"])


def test_an_expired_lease_protects_no_process(scenario: Scenario, publisher: AnyPool) -> None:
    publisher.close()
    leave = "UPDATE kafka_transaction_lease SET owner = 'gone', expires_at_ms = :until WHERE prefix = :prefix"
    with make_pool(scenario, delivery=Outbox(publishes=False)) as pool:
        write(pool, scenario, 2)
    of = outbox_prefix_of(prefix_of(scenario))
    execute(scenario, leave, prefix=of, until=2**53)
    assert found_by(scenario, apply=True) == [(outbox_of(scenario), Action.OVERDUE, False)]
    assert found_by(scenario, apply=True, min_age_ms=60_000) == []
    execute(scenario, leave, prefix=of, until=1)
    assert found_by(scenario, apply=True) == [(outbox_of(scenario), Action.PUBLISH, True)]
    assert bodies(scenario) == ["1", "2"]


@pytest.mark.parametrize("tier", Tier)
def test_recovery_publishes_to_a_compacted_topic_on_every_tier(database: Database, tier: Tier) -> None:
    with Emulator(config=TIERS[tier]) as broker:
        scenario = made(database, broker)
        broker.set_config({"cleanup.policy": "compact"}, topic=scenario.topic)
        with make_pool(scenario, delivery=Outbox()) as pool:
            write(pool, scenario, 1)
            until(lambda: bodies(scenario) == ["1"])
        with make_pool(scenario, delivery=Outbox(publishes=False)) as pool:
            write(pool, scenario, 2)
        assert found_by(scenario, apply=True) == [(outbox_of(scenario), Action.PUBLISH, True)]
        assert bodies(scenario) == ["1", "2"]
        with database.aside.connect() as connection:
            assert connection.scalar(sa.text("SELECT count(*) FROM kafka_transaction_outbox WHERE seq > 0")) == 0


def test_a_block_is_taken_out_while_a_publisher_with_an_older_snapshot_waits(database: Database) -> None:
    """The publisher would read the waiting blocks in its snapshot, and delete no row that would show the conflict."""
    needs_postgres(database, "shows its waits")
    engine = sa.create_engine(database.url, isolation_level="REPEATABLE READ")
    with Emulator(config=TIERS[Tier.BOUNDED]) as broker, ThreadPoolExecutor() as threads:
        scenario = made(database, broker)
        leave_waiting(scenario, 1, 2)
        with database.aside.connect() as connection:
            seq: int = connection.scalar(sa.text("SELECT min(seq) FROM kafka_transaction_outbox"))
        with make_pool(scenario, source=engine, delivery=Outbox()) as pool:
            recovering: list[Future[Any]] = []

            def let_publisher_wait(_: TakenOut) -> None:
                recovering.append(threads.submit(pool.recover))
                until(lambda: waits_for_a_lock(database, "kafka_transaction_state"))

            taken = take_out(database.aside, outbox_of(scenario), seq, apply=True, keep=let_publisher_wait)
            assert taken.changed
            until(lambda: bodies(scenario) == ["2"])
            recovering[0].exception(60)
        assert bodies(scenario) == ["2"]
    engine.dispose()


def needs_postgres(database: Database, why: str) -> None:
    if database.url.get_backend_name() != "postgresql":
        pytest.skip(why)


def test_a_copy_of_a_database_publishes_nothing_that_waits_in_the_original(scenario: Scenario) -> None:
    leave_waiting(scenario, 1)
    adopt(scenario.database.aside, "copied", force=True)
    assert waiting(scenario) == 0
    assert found_by(scenario, apply=True) == []
    assert (bodies(scenario), event_bodies(scenario.database)) == ([], ["1"])


def test_a_moved_database_publishes_waiting_blocks(scenario: Scenario) -> None:
    leave_waiting(scenario, 1)
    adopt(scenario.database.aside, "moved", force=True)
    leave_waiting(scenario, 2)
    found_by(scenario, apply=True)
    assert bodies(scenario) == ["1", "2"]


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_copy_without_sequences_publishes_waiting_blocks_before_new_ones(scenario: Scenario, is_behind: bool) -> None:
    """Logical replication copies rows, and migration services do."""
    needs_postgres(scenario.database, "numbers come from the rows elsewhere")
    leave_waiting(scenario, 1, 2)
    with scenario.database.aside.begin() as connection:
        connection.execute(sa.text("UPDATE kafka_transaction_outbox SET seq = seq + 1000 WHERE seq > 0"))
        number = 1 if is_behind else 5_000
        connection.execute(sa.text(f"ALTER TABLE kafka_transaction_outbox ALTER seq RESTART WITH {number}"))
    adopt(scenario.database.aside, "moved", force=True)
    leave_waiting(scenario, 3)
    with scenario.database.aside.connect() as connection:
        numbers = connection.scalars(sa.text("SELECT seq FROM kafka_transaction_outbox WHERE seq > 0")).all()
    assert len(numbers) == 3
    assert max(numbers) > (1_000 if is_behind else 5_000)
    found_by(scenario, apply=True)
    assert bodies(scenario) == ["1", "2", "3"]
