"""A state row that went back, as in a restored database.

Transactions that Kafka has published since are not published again, and a new process finds out before it writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest

from dualwrite.broker_emulator import Fault, Hold
from dualwrite.errors import DatabaseWentBackError, KafkaTimeoutError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.proof import settled_text
from dualwrite.recipes.recovery.service import Action
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.producer.tiers import BY_STORED_PAIR
from tests.recipes.repairs import Site, Way, acknowledge, let_end
from tests.recipes.test_repair import every_tier, site, store, tier
from tests.recipes.tiers import ROWS, rows, write
from tests.support.conditions import until

__all__ = ["site", "store", "tier"]  # fixtures

by_stored_pair = pytest.mark.parametrize("tier", BY_STORED_PAIR, ids=[tier.name for tier in BY_STORED_PAIR])


class Row(NamedTuple):
    """The row of a backup."""

    state: str
    text: str | None


def row_of(site: Site) -> Row:
    return Row(str(site.row()), site.text())


def restore(site: Site, row: Row, *lost: str) -> None:
    """Restore a backup that has this row, and lacks the events `lost`."""
    site.change_row(prepared_transaction_state=row.state, manifest=row.text)
    with site.store.aside.begin() as connection:
        connection.execute(ROWS.delete().where(ROWS.c.value.in_(lost)))


def aborted(site: Site, *, way: Way = Way.OPERATOR, **record: Any) -> Row:
    """Leave a dual write that the database has committed and Kafka has aborted; return its row."""
    site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, lambda writer: write_with(writer, "decided", **record))
    row = row_of(site)
    let_end(site, way)
    return row


def write_with(writer: DualWriter, value: str, *, copies: int = 1, **record: Any) -> None:
    with writer.transaction() as tx:
        tx.connection.execute(ROWS.insert().values(value=value))
        for _ in range(copies):
            tx.send("orders", value, **{"partition": 0} | record)


def assert_refused(site: Site, match: str = "the database was restored") -> None:
    """Each use says so, and nothing is changed; after it was acknowledged the id goes on, and nothing comes twice."""
    before = row_of(site), rows(site.store.aside), site.committed()
    for _ in range(2):
        for use in (DualWriter.recover, lambda writer: write(writer, "refused")):
            with site.writer() as writer, pytest.raises(DatabaseWentBackError, match=match):
                use(writer)
    assert (row_of(site), rows(site.store.aside), site.committed()) == before
    acknowledge(site.store, site.emulator)
    assert site.recover() is Outcome.NOTHING
    site.write("later")
    assert site.committed() == [*before[2], "later"]


# ---- the row names an aborted transaction again, published since ----------------------------------------------------


def by_recovery(site: Site) -> None:
    assert site.recover() is Outcome.REPAIRED


def by_service(site: Site) -> None:
    assert [(found.action, found.changed) for found in site.serviced().found] == [(Action.REPAIR, True)]


def by_second_attempt(site: Site) -> None:
    site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, DualWriter.recover)
    let_end(site, Way.OPERATOR)
    by_recovery(site)


REPAIRS: Final[dict[str, Callable[[Site], object]]] = {
    "recover()": by_recovery,
    "a block": lambda site: site.write("block"),
    "the service": by_service,
    "a repair of the repair": by_second_attempt,
}
SINCE: Final[dict[str, Callable[[Site], object]]] = {
    "nothing": lambda site: None,
    "another process has taken the id over": Site.recover,
    "the id was used": lambda site: site.write("1", "2"),
    "the id has expired": lambda site: let_end(site, Way.EXPIRED),
    "another program has used the id": lambda site: let_end(site, Way.USED),
}


@pytest.mark.parametrize(
    ("repair", "since"),
    [
        pytest.param(repair, since, marks=() if (repair, since) == ("a block", "nothing") else pytest.mark.proof)
        for repair in REPAIRS
        for since in SINCE
    ],
)
@every_tier
def test_records_published_by_a_later_row_are_not_published_again(site: Site, repair: str, since: str) -> None:
    site.write("before")
    row = aborted(site)
    REPAIRS[repair](site)
    SINCE[since](site)
    published = site.committed()
    restore(site, row, "block", "1", "2")
    assert published.count("decided") == 1
    assert_refused(site, "has published its records again")


@pytest.mark.parametrize("way", [None, Way.OPERATOR, Way.INITIALISED])
@pytest.mark.parametrize("at", [PausePoint.AFTER_PREPARE, PausePoint.AFTER_DATABASE_COMMIT])
@every_tier
def test_a_repair_that_was_not_committed_is_made_anew(site: Site, at: PausePoint, way: Way | None) -> None:
    """Open, or aborted itself: no reader has seen it."""
    site.write("before")
    row = aborted(site)
    site.falls_asleep(at, lambda writer: write(writer, "block"))
    if way is not None:
        let_end(site, way)
    restore(site, row, "block")
    assert site.recover() is Outcome.REPAIRED
    site.write("later")
    site.assert_agreed("before", "decided", "later")


@every_tier
def test_a_repair_whose_marker_comes_late(site: Site) -> None:
    """While it is held, nothing is guessed."""
    row = aborted(site)
    markers = site.emulator.faults.add(Fault(api="WriteTxnMarkers", action=Hold(), topic="orders", count=None))
    site.falls_asleep(PausePoint.AFTER_KAFKA_COMMIT, DualWriter.recover)
    until(lambda: bool(markers.held))
    restore(site, row)
    with site.writer(max_block_ms=500, resolve_timeout_ms=300) as writer, pytest.raises(KafkaTimeoutError):
        writer.recover()
    assert row_of(site) == row
    markers.remove()
    markers.release()
    site.world.settle()
    assert_refused(site, "has published its records again")


def test_a_repair_whose_records_stand_in_several_batches(site: Site) -> None:
    row = aborted(site, copies=40, headers=[("h", b"1" * 20)])
    with site.writer(batch_size=300, compression_type="gzip") as writer:
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
        write(writer, "1")
    restore(site, row, "1")
    assert site.committed() == ["decided"] * 40 + ["1"]
    assert_refused(site, "has published its records again")


def test_records_of_which_retention_has_taken_some(site: Site) -> None:
    row = aborted(site, copies=3)
    assert site.recover() is Outcome.REPAIRED
    restore(site, row)
    (part,) = site.manifest().partitions
    site.delete_records(before=part.first_offset + 2)
    assert_refused(site, "has published its records again")


def test_the_topic_has_its_own_timestamps(site: Site) -> None:
    site.emulator.set_config({"message.timestamp.type": "LogAppendTime"}, topic="orders")
    row = aborted(site)
    site.emulator.advance_clock(60_000)
    assert site.recover() is Outcome.REPAIRED
    restore(site, row)
    assert_refused(site, "has published its records again")


# ---- the same from others -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [Way.INITIALISED, Way.USED, Way.EXPIRED])
def test_unrelated_records_under_the_id_are_no_repair(site: Site, way: Way) -> None:
    site.write("before")
    aborted(site)
    let_end(site, way)
    assert site.recover() is Outcome.REPAIRED
    site.assert_agreed("before", "decided")


def test_the_same_values_of_another_id_are_no_repair(site: Site) -> None:
    aborted(site)
    let_end(site, Way.INITIALISED)
    site.emulator.advance_clock(1_000)
    other = site.world.ready(transactional_id="other")
    site.world.commit(other, "decided")
    assert site.recover() is Outcome.REPAIRED
    assert site.committed() == ["decided", "decided"]


def test_more_of_the_same_values_under_another_id_at_the_same_time_are_looked_at_by_an_operator(site: Site) -> None:
    """An expired id gets another producer id, so the owner of the records is unknown."""
    aborted(site, timestamp_ms=4711)
    let_end(site, Way.INITIALISED)
    other = site.world.ready(transactional_id="other")
    other.begin_transaction()
    other.send("orders", "decided", partition=0, timestamp_ms=4711)
    other.commit_transaction()
    assert_refused(site, "has published its records again")


# ---- the row is older than Kafka's commit ---------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [False, True])
@by_stored_pair
def test_a_row_from_before_a_dual_write(site: Site, settled: bool) -> None:
    site.write("before")
    if settled:
        site.recover()
        site.change_row(manifest=settled_text(site.row()))
    row = row_of(site)
    site.write("lost")
    restore(site, row, "lost")
    assert_refused(site, "has committed a later transaction")


@by_stored_pair
def test_a_database_from_before_the_first_dual_write(site: Site) -> None:
    site.write("lost")
    restore(site, Row("", None), "lost")
    assert_refused(site, "has committed a later transaction")


@pytest.mark.parametrize(
    ("leave", "found"),
    [(aborted, Outcome.NOTHING), (Site.decided, Outcome.ROLLED_BACK)],
    ids=["an aborted one", "one in doubt"],
)
@by_stored_pair
def test_a_row_from_before_a_dual_write_that_kafka_does_not_have(
    site: Site, leave: Callable[[Site], object], found: Outcome
) -> None:
    """Neither side has it."""
    site.write("before")
    row = row_of(site)
    leave(site)
    restore(site, row, "decided")
    assert site.recover() is found
    site.write("later")
    site.assert_agreed("before", "later")
