"""redo="database": the records that Kafka aborted and whose log has lost them are published again from their copy."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.faults import Duplicate, Fault
from dualwrite.errors import PreparedTransactionLost
from dualwrite.guarantee import Tier
from dualwrite.producer import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.recovery.service import Action
from dualwrite.recipes.sqlalchemy.redo_table import kafka_transaction_redo as redo
from tests.crash.scenario import AtPoint, InjectedError, fail
from tests.recipes.repairs import Site, Way, let_end, site_of
from tests.recipes.test_repair import site, store
from tests.recipes.test_repair_evidence import serviced
from tests.recipes.test_tiers import ROWS, write
from tests.support.conditions import until
from tests.support.databases import Database

__all__ = ["site", "store"]  # fixtures


def decided(site: Site, *partitions: int, value: str = "decided", offsets: bool = False) -> None:
    """Leave a dual write with one record for each partition, by a process that dies before Kafka's commit."""
    dies = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, fail)
    with (
        site.writer(pause=dies, redo="database") as writer,
        pytest.raises(InjectedError),
        writer.transaction() as tx,
    ):
        tx.connection.execute(ROWS.insert().values(value=value))
        for partition in partitions:
            tx.send("orders", value, key=b"k", headers=[("h", None)], partition=partition, timestamp_ms=4711)
        if offsets:
            tx.send_offsets({TopicPartition("others", 0): OffsetAndMetadata(1)}, ConsumerGroupMetadata("group"))


def copies(site: Site) -> list[Any]:
    """The prepared states that have a copy."""
    with site.store.aside.connect() as connection:
        named = redo.c.prepared_transaction_state
        return list(connection.scalars(sa.select(named).where(named.is_not(None), redo.c.records.is_not(None))))


@pytest.mark.parametrize("tier", [tier for tier in Tier if tier is not Tier.BOUNDED_V1])
def test_all_records_have_left_the_log_and_the_coordinator_shows_the_abort(store: Database, tier: Tier) -> None:
    with site_of(tier, store) as site:
        site.write("before")
        decided(site, 0)
        let_end(site, Way.OPERATOR)
        site.delete_records()
        assert site.recover() is Outcome.REPAIRED
        assert site.committed() == ["decided"]
        site.write("after")
        assert sorted(site.committed()) == ["after", "decided"]


def test_before_transaction_version_2_a_coordinator_proves_no_abort(store: Database) -> None:
    """A late AddPartitionsToTxn opens an empty transaction under the pair of the one that was committed."""
    with site_of(Tier.BOUNDED_V1, store) as site:
        late = site.emulator.faults.add(Fault(api="AddPartitionsToTxn", action=Duplicate(on_release=True)))
        site.write("decided", redo="database")
        assert site.committed() == ["decided"]
        late.release()
        until(lambda: site.world.described(site.kafka_id)[0] == "Ongoing")
        let_end(site, Way.TIMEOUT)
        site.delete_records()
        with pytest.raises(PreparedTransactionLost):
            site.recover(redo="database")
        assert [found.action for found in serviced(site).found] == [Action.LOST]
        assert site.committed() == []


def test_some_records_have_left_the_log(site: Site) -> None:
    decided(site, 0, 0)
    let_end(site, Way.INITIALISED)
    (part,) = site.manifest().partitions
    site.delete_records(before=part.first_offset + 1)
    assert site.recover() is Outcome.REPAIRED
    assert site.committed() == ["decided", "decided"]


def test_one_partition_has_left_the_log_and_the_other_shows_the_abort(site: Site) -> None:
    decided(site, 0, 1)
    let_end(site, Way.INITIALISED)
    site.delete_records(partition=1)
    assert site.recover() is Outcome.REPAIRED
    assert site.committed() == ["decided", "decided"]


def test_the_copy_of_a_repair_that_is_itself_aborted_has_what_was_owed(site: Site) -> None:
    decided(site, 0)
    let_end(site, Way.OPERATOR)
    decided(site, 1, value="later")  # whose transaction begins with what is owed
    let_end(site, Way.OPERATOR)
    for partition in (0, 1):
        site.delete_records(partition=partition)
    assert site.recover() is Outcome.REPAIRED
    assert site.committed() == ["decided", "later"]


def test_what_nothing_proves_to_be_aborted_is_not_published_again(site: Site) -> None:
    decided(site, 0)
    let_end(site, Way.INITIALISED)
    site.delete_records()
    assert site.recover() is Outcome.NOTHING
    assert site.committed() == []


def test_what_was_committed_is_not_published_again(site: Site) -> None:
    decided(site, 0)
    assert site.recover() is Outcome.COMMITTED
    site.delete_records()
    for way in (Way.INITIALISED, Way.MISUSED):
        let_end(site, way)
        site.recover(redo="database")
    assert site.committed() == []


@pytest.mark.parametrize("is_gone", [True, False])
def test_the_recovery_service_repairs_from_the_copy(site: Site, is_gone: bool) -> None:
    decided(site, 0)
    let_end(site, Way.OPERATOR)
    if is_gone:
        site.delete_records()
    assert [found.action for found in serviced(site, apply=False).found] == [Action.REPAIR]
    assert [(found.action, found.changed) for found in serviced(site).found] == [(Action.REPAIR, True)]
    assert site.committed() == ["decided"]
    assert serviced(site).is_clean


def test_each_dual_write_replaces_the_copy_of_the_one_before(site: Site) -> None:
    with site.writer(redo="database") as writer:
        for value in ("1", "2"):
            write(writer, value)
            assert copies(site) == [str(site.row())]


def test_consumed_offsets_leave_no_copy(site: Site) -> None:
    decided(site, 0, offsets=True)
    assert copies(site) == []
    let_end(site, Way.OPERATOR)
    with site.writer(redo="database") as writer, pytest.raises(PreparedTransactionLost):
        writer.recover()
