"""An outbox in OpenTelemetry: how many blocks it got, and for how long the oldest one has waited."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from dualwrite import Outbox
from dualwrite.broker_emulator import Emulator
from dualwrite.recipes.core.leases import outbox_id_of
from tests.crash.scenario import Scenario
from tests.recipes.heard import Heard
from tests.recipes.pools import make_pool, prefix_of, put, write
from tests.recipes.test_stored_blocks import kafka_away
from tests.support.conditions import until
from tests.support.databases import Database, unique
from tests.support.topics import read_topic


@pytest.fixture
def scenario(database: Database, emulator: Emulator) -> Scenario:
    return Scenario(database, emulator, transactional_id=f"{unique('pool')}-0")


def ages_s(heard: Heard) -> dict[str, float]:
    points = heard.points("dualwrite.stored.age")
    return {point.attributes["messaging.kafka.transactional_id"]: point.value for point in points}


def test_what_was_added_and_published_is_counted(heard: Heard, scenario: Scenario) -> None:
    with make_pool(scenario, delivery=Outbox()) as pool:
        for number in (1, 2):
            write(pool, scenario, number)
        with pytest.raises(ZeroDivisionError), pool.transaction() as tx:
            put(tx, scenario, 3)
            raise ZeroDivisionError
        until(lambda: heard.sums("dualwrite.published") == {"": 2})
        assert heard.sums("dualwrite.stored") == {"": 2}
        until(lambda: ages_s(heard) == {})
    assert len(read_topic(scenario.emulator.bootstrap_servers, scenario.topic)) == 2


def test_a_process_that_does_not_publish_shows_what_waits_until_another_one_has_published_it(
    heard: Heard, scenario: Scenario
) -> None:
    outbox = outbox_id_of(prefix_of(scenario))
    with make_pool(scenario, delivery=Outbox(publishes=False)) as pool:
        write(pool, scenario, 1)
        assert ages_s(heard).keys() == {outbox}
        an_hour_ago = sa.text("UPDATE kafka_transaction_outbox SET stored_at_ms = stored_at_ms - 3600000")
        with scenario.database.aside.begin() as connection:
            connection.execute(an_hour_ago)
        until(lambda: 3600 <= ages_s(heard).get(outbox, 0) < 3700)
        with make_pool(scenario, delivery=Outbox(max_stored_age_ms=10**9)) as publisher:
            publisher.recover()
        until(lambda: ages_s(heard) == {})


def test_what_waits_for_kafka_is_shown_by_the_process_that_publishes(heard: Heard, scenario: Scenario) -> None:
    with make_pool(scenario, delivery=Outbox()) as pool:
        write(pool, scenario, 1)
        until(lambda: heard.sums("dualwrite.published") == {"": 1})
        with kafka_away(scenario.emulator):
            write(pool, scenario, 2)
            until(lambda: pool.status.outbox_blocks == 1)
            assert ages_s(heard).keys() == {outbox_id_of(prefix_of(scenario))}
        until(lambda: heard.sums("dualwrite.published") == {"": 2}, timeout_s=30)
        until(lambda: ages_s(heard) == {})
