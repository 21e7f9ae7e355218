"""Kafka forgets an id that is not used for a week; the next block takes it over again, without an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.errors import FatalError, FencedError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.recipes.repairs import EIGHT_DAYS_MS, Site, site_of, sqlite_store
from tests.recipes.tiers import ROWS, rows, write
from tests.support.conditions import until


@pytest.fixture(params=list(Tier), ids=lambda tier: f"tier {list(Tier).index(tier) + 1}")
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with site_of(request.param, sqlite_store(tmp_path)) as made:
        yield made


def a_week_passes(site: Site) -> None:
    site.world.settle()
    site.emulator.advance_clock(EIGHT_DAYS_MS)
    until(lambda: not site.emulator.transactions())


def write_by(pool: DualWriter, value: str) -> None:
    with pool.transaction() as tx:
        tx.connection.execute(ROWS.insert().values(value=value))
        tx.send("orders", value, partition=0)


def test_a_writer_that_was_idle_goes_on(site: Site) -> None:
    with site.writer() as writer:
        write(writer, "1")
        write(writer, "2")
        a_week_passes(site)
        write(writer, "3")
        write(writer, "4")
    site.assert_agreed("1", "2", "3", "4")
    assert site.recover() is Outcome.NOTHING


def test_a_pool_that_was_idle_goes_on(site: Site) -> None:
    with DualWriter(
        site.store.aside,
        prefix="pool",
        bootstrap_servers=site.emulator.bootstrap_servers,
    ) as pool:
        write_by(pool, "1")
        a_week_passes(site)
        write_by(pool, "2")
        assert pool.status.moved_total == 0
    site.assert_agreed("1", "2")


def test_an_id_is_forgotten_while_a_block_has_its_slot(site: Site) -> None:
    """Between the lock and the first record: the take-over that came before is worth nothing."""
    slept = False

    def sleep(point: PausePoint) -> None:
        nonlocal slept
        if point is PausePoint.AFTER_BEGIN and not slept:
            slept = True
            a_week_passes(site)

    with site.writer(pause=sleep) as writer:
        write(writer, "1")
    site.assert_agreed("1")


def test_an_id_that_is_forgotten_repeatedly_is_an_error(site: Site) -> None:
    if site.world.tier is Tier.BOUNDED_V1:
        pytest.skip("each transaction begins with an InitProducerId, which an id that is forgotten serves too")

    def sleep(point: PausePoint) -> None:
        if point is PausePoint.AFTER_BEGIN:
            a_week_passes(site)

    with site.writer(pause=sleep) as writer, pytest.raises(FatalError, match="INVALID_PRODUCER_ID_MAPPING"):
        write(writer, "1")
    assert (site.committed(), rows(site.store.aside)) == ([], [])
    site.write("2")
    site.assert_agreed("2")


def test_a_pool_that_loses_the_id_again_leaves_its_row_alone(site: Site) -> None:
    """An id that is let go before the row is locked again must not restore that row."""
    if site.world.tier is Tier.BOUNDED_V1:
        pytest.skip("each transaction begins with an InitProducerId, which an id that is forgotten serves too")
    seen: list[PausePoint] = []

    def pause(point: PausePoint) -> None:
        seen.append(point)
        if not loses:
            return
        if seen.count(PausePoint.AFTER_BEGIN) == 1 and point is PausePoint.AFTER_BEGIN:
            a_week_passes(site)
        if seen.count(PausePoint.AFTER_LOCK) == 2 and point is PausePoint.AFTER_LOCK:
            raise FencedError("somebody else has the id")

    loses = False
    with DualWriter(
        site.store.aside,
        prefix="tid",
        bootstrap_servers=site.emulator.bootstrap_servers,
        pause=pause,
    ) as pool:
        with pool.transaction(), pool.transaction():
            pass  # on SQLite only a slot that is idle can take the place of another
        until(lambda: pool.status.idle == 2)  # the background takes the new ids over
        write_by(pool, "1")
        before = states(site)
        seen.clear()
        loses = True
        write_by(pool, "2")
        assert pool.status.moved_total == 1
        assert before <= states(site)
    assert len(before) == 1
    site.assert_agreed("1", "2")


def states(site: Site) -> set[tuple[str, str]]:
    """The ids whose rows name a dual write, with its prepared state."""
    table = kafka_transaction_state
    query = sa.select(table.c.transactional_id, table.c.prepared_transaction_state)
    with site.store.aside.connect() as connection:
        return {(its_id, state) for its_id, state in connection.execute(query) if state}
