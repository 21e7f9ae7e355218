"""A planned move to another Kafka cluster: after `recover` no row has to be emptied by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from dualwrite import Outbox
from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.errors import AnotherClusterError, StateRowError
from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.proof import forgotten_text, is_settled, settled_text
from dualwrite.recipes.recovery.plan import Action
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.producer.tiers import TIERS, World
from tests.recipes.repairs import Site, Way, let_end, site_of
from tests.recipes.test_repair import store
from tests.recipes.tiers import rows, write
from tests.support.databases import Database
from tests.support.topics import read_topic

__all__ = ["store"]  # a fixture

FINDS = ("nothing in doubt", "in doubt", "owed", "committed without a manifest")


@contextmanager
def next_cluster(tier: Tier) -> Iterator[Emulator]:
    """A cluster that has assigned some producer ids already, so that no pair equals a row's."""
    topics = {"orders": 2, "others": 2}
    with Emulator(topics=topics, config=TIERS[tier], clock=VirtualClock()) as another:
        world = World(another, tier)
        for number in range(5):
            world.ready(transactional_id=f"other-{number}").close(timeout_s=0)
        yield another


def leave(site: Site, finds: str) -> list[str]:
    """Write, and leave work for recovery. Return the decided values."""
    site.write("before")
    if finds == "in doubt":
        site.decided()
        return ["before", "decided"]
    if finds == "owed":
        site.decided()
        let_end(site, Way.OPERATOR)
        return ["before", "decided"]
    if finds == "committed without a manifest":
        site.change_row(manifest=None)
    return ["before"]


def recover(site: Site, by: str) -> None:
    if by == "writer":
        site.recover()
        return
    while not site.serviced().is_clean:
        pass
    assert site.serviced().found == ()


@pytest.mark.parametrize("by", ["writer", "service"])
@pytest.mark.parametrize("finds", FINDS)
@pytest.mark.parametrize("tier", list(Tier))
def test_writers_go_on_in_the_next_cluster(store: Database, tier: Tier, finds: str, by: str) -> None:
    with site_of(tier, store) as site:
        decided = leave(site, finds)
        recover(site, by)
        assert is_settled(site.row(), site.text())
        assert site.committed() == decided
        row = site.row()
    with next_cluster(tier) as another:
        where: dict[str, Any] = {"transactional_id": "tid", "bootstrap_servers": another.bootstrap_servers}
        report = site.serviced(bootstrap_servers=another.bootstrap_servers)
        assert (report.found, report.is_clean, report.settled) == ((), True, 1)
        assert site.row() == row
        assert is_settled(row, site.text())
        with DualWriter(store.aside, **where) as writer:
            assert writer.recover() == []
            report = site.serviced(bootstrap_servers=another.bootstrap_servers)
            assert (report.found, report.is_clean) == ((), True)
            write(writer, "later")
        assert [value for _, value in read_topic(another.bootstrap_servers, "orders")] == ["later"]
        assert rows(store.aside) == sorted([*decided, "later"])


@pytest.mark.parametrize(
    "ids",
    [{"transactional_id": "tid"}, {"prefix": "pooled"}, {"prefix": "pooled", "delivery": Outbox()}],
    ids=["one id", "pool", "outbox"],
)
@pytest.mark.parametrize("tier", list(Tier))
def test_writers_go_to_the_next_cluster_and_back(store: Database, tier: Tier, ids: dict[str, Any]) -> None:
    """The coordinator of each cluster still knows a commit of the id; pairs of two clusters have no order."""
    with site_of(tier, store) as site, next_cluster(tier) as another:
        for cluster, value in ((site.emulator, "1"), (another, "2"), (site.emulator, "3"), (another, "4")):
            with DualWriter(store.aside, bootstrap_servers=cluster.bootstrap_servers, **ids) as writer:
                write(writer, value)
            report = site.serviced(bootstrap_servers=cluster.bootstrap_servers)
            assert (report.found, report.is_clean) == ((), True)
        assert [value for _, value in read_topic(site.emulator.bootstrap_servers, "orders")] == ["1", "3"]
        assert [value for _, value in read_topic(another.bootstrap_servers, "orders")] == ["2", "4"]


@pytest.mark.parametrize("by", ["writer", "service"])
@pytest.mark.parametrize("has_offsets_only", [False, True], ids=["records", "offsets"])
@pytest.mark.parametrize("is_open", [False, True], ids=["committed", "open"])
def test_a_pair_known_to_this_cluster_does_not_prove_a_decision_of_another(
    store: Database, is_open: bool, has_offsets_only: bool, by: str
) -> None:
    with site_of(Tier.KEEP_PREPARED, store) as site:
        with site.writer() as writer:
            write(writer, "before")
            manifest = site.manifest()
        if is_open:
            site.falls_asleep(PausePoint.AFTER_PREPARE, lambda writer: write(writer, "undecided"))
            (found,) = [each for each in site.emulator.transactions() if each.state == "Ongoing"]
            pair = PreparedTxnState.of(producer_id=found.producer_id, producer_epoch=found.producer_epoch)
        else:
            pair = site.row()
        parts = () if has_offsets_only else manifest.partitions
        text = str(replace(manifest, prepared_state=pair, cluster_id="gone", partitions=parts, has_offsets=True))
        site.change_row(prepared_transaction_state=str(pair), manifest=text)
        if by == "writer":
            with pytest.raises(AnotherClusterError):
                site.recover()
        else:
            for apply in (False, True):
                (of_id,) = site.serviced(apply=apply).found
                assert of_id.action is Action.ANOTHER_CLUSTER
        assert (site.row(), site.text()) == (pair, text)
        assert site.committed() == ["before"]


@pytest.mark.parametrize("by", ["writer", "service"])
@pytest.mark.parametrize("ended", ["settled", "given up"])
@pytest.mark.parametrize("tier", list(Tier))
def test_an_open_transaction_with_the_pair_that_the_row_has_from_another_cluster(
    store: Database, tier: Tier, ended: str, by: str
) -> None:
    """Each cluster assigns producer ids from 0. The database has not decided the open one."""
    with site_of(tier, store) as site:
        with site.writer() as writer:
            write(writer, "before")
            manifest = site.manifest()
        site.falls_asleep(PausePoint.AFTER_PREPARE, lambda writer: write(writer, "undecided"))
        (open_one,) = [each for each in site.emulator.transactions() if each.state == "Ongoing"]
        pair = PreparedTxnState.of(producer_id=open_one.producer_id, producer_epoch=open_one.producer_epoch)
        elsewhere = replace(manifest, prepared_state=pair, cluster_id="gone")
        if ended == "given up":
            site.change_row(prepared_transaction_state=str(pair), manifest=forgotten_text(pair, "damaged"))
            with pytest.raises(StateRowError, match="cannot be parsed"):
                site.recover()
        text = settled_text(pair) if ended == "settled" else forgotten_text(pair, str(elsewhere))
        site.change_row(prepared_transaction_state=str(pair), manifest=text)
        recover(site, by)
        site.write("later")
        assert site.committed() == ["before", "later"]
        assert rows(store.aside) == ["before", "later"]


def test_a_plan_settles_nothing_and_a_live_writer_goes_on(store: Database) -> None:
    with site_of(Tier.KEEP_PREPARED, store) as site, site.writer() as writer:
        write(writer, "before")
        text = site.text()
        assert site.serviced(apply=False).is_clean
        assert site.text() == text
        for value in ("1", "2"):
            assert site.serviced().is_clean
            assert is_settled(site.row(), site.text())
            write(writer, value)
            assert site.manifest().prepared_state == site.row()
        site.assert_agreed("before", "1", "2")
