"""Dual writes on the emulator's profile of Redpanda: tier 4, without WriteTxnMarkers, topic ids and PRODUCER_FENCED."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import BrokerConfig, Profile
from dualwrite.cli.doctor_kafka import cluster_checks
from dualwrite.delivery import Outbox
from dualwrite.errors import UnsupportedByBrokerError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.producer import TopicPartition
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.producer import tiers
from tests.recipes.repairs import Site, Way, let_end, nodes_for, site_of, sqlite_store, ways_of
from tests.recipes.tiers import write
from tests.support.conditions import until
from tests.support.databases import Database

PARTITION = TopicPartition("orders", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    made = sqlite_store(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def redpanda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiers.TIERS, Tier.BOUNDED_V1, BrokerConfig(profile=Profile.REDPANDA))


@pytest.fixture
def site(store: Database) -> Iterator[Site]:
    with site_of(Tier.BOUNDED_V1, store) as made:
        yield made


def test_its_tier_is_found_and_what_it_lacks_is_named(site: Site) -> None:
    site.decided()
    with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
        _, tier = cluster_checks(admin.describe_features(), admin.describe_two_phase_commit("tid"))
        (topic,) = admin.describe_topics(["orders"]).values()
        (open_one,) = admin.describe_producers([PARTITION])[PARTITION]
        assert open_one.current_transaction_start_offset == 0
        described = admin.describe_transactions([site.kafka_id, "unknown"])
        with pytest.raises(UnsupportedByBrokerError, match="WriteTxnMarkers"):
            admin.abort_transaction(PARTITION, start_offset=0)
    assert tier is Tier.BOUNDED_V1
    assert [None if each is None else each.state for each in described.values()] == ["Ongoing", None]
    assert (topic.is_readable, topic.is_compacted) == (True, False)


@pytest.mark.parametrize("way", ways_of(Tier.BOUNDED_V1), ids=str)
def test_records_aborted_against_the_decision_are_published_again(store: Database, way: Way) -> None:
    with site_of(Tier.BOUNDED_V1, store, nodes=nodes_for(way)) as site:
        site.write("before")
        sleeper = site.decided()
        let_end(site, way)
        assert site.recover() is Outcome.REPAIRED
        assert site.recover() is Outcome.NOTHING
        site.assert_agreed("before", "decided")
        sleeper.wake()
        site.write("last")
        site.assert_agreed("before", "decided", "last")


@pytest.mark.parametrize(
    "at", [PausePoint.AFTER_PREPARE, PausePoint.AFTER_DATABASE_COMMIT, PausePoint.AFTER_KAFKA_COMMIT]
)
def test_a_take_over_ends_a_transaction_as_the_database_decided(site: Site, at: PausePoint) -> None:
    site.write("before")
    sleeper = site.falls_asleep(at, lambda writer: write(writer, "left"))
    left = [] if at is PausePoint.AFTER_PREPARE else ["left"]
    site.write("of the successor")
    sleeper.wake()
    site.assert_agreed("before", *left, "of the successor")


def test_another_process_publishes_the_outbox_of_one_that_died(site: Site) -> None:
    where: dict[str, Any] = {"prefix": "shop", "bootstrap_servers": site.emulator.bootstrap_servers}
    with DualWriter(site.store.aside, delivery=Outbox(publishes=False), **where) as pool:
        write(pool, "stored")
    assert site.committed() == []
    with DualWriter(site.store.aside, delivery=Outbox(), **where) as pool:
        write(pool, "later")
        until(lambda: pool.status.outbox_blocks == 0)
    site.assert_agreed("stored", "later")
