"""The evidence of a transaction's end, and of its records: the log, the manifest in the row; and where they fail."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

import pytest

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import Acl, AclFilter, AclOperation, Emulator, Fault, Hold, ResourceType
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.client.transactions import manifest as manifests
from dualwrite.errors import (
    AnotherClusterError,
    PreparedTransactionLost,
    RecordsGoneError,
    RetriableError,
    StateRowError,
    TransactionHangsError,
)
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.producer import ConsumerGroupMetadata, TopicPartition
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.proof import is_settled
from dualwrite.recipes.core.publishing import Publishing
from dualwrite.recipes.recovery.service import Action, RecoveryService
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.producer.tiers import TIERS
from tests.recipes.heard import Heard
from tests.recipes.repairs import DEADLINE_S, FOREIGN, Site, Way, leaves_unsettled, let_end, site_of
from tests.recipes.test_repair import every_tier, first, site, store, tier
from tests.recipes.tiers import ROWS, rows, write
from tests.support.conditions import until
from tests.support.databases import Database
from tests.support.topics import delete_topic

__all__ = ["site", "store", "tier"]  # fixtures

CODECS: Final = ["none", "gzip", "snappy", "lz4", "zstd"]


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def assert_lost(site: Site, *records: str, way: type[PreparedTransactionLost] = PreparedTransactionLost) -> None:
    """Each use says so, nothing is changed, and after it was acknowledged the id goes on."""
    before = site.row(), site.text(), site.committed()
    for _ in range(2):
        with site.writer() as writer:
            with pytest.raises(way):
                writer.recover()
            with pytest.raises(way):
                write(writer, "refused")
        (found,) = site.serviced().found
        assert (found.action, found.changed, found.is_left) == (Action.LOST, False, True)
        assert found.row == str(site.row())
    assert (site.row(), site.text(), site.committed()) == before
    (found,) = site.serviced(acknowledge_lost=["tid"]).found
    assert (found.action, found.changed) == (Action.ACKNOWLEDGE, True)
    assert site.serviced().found == ()
    assert site.recover() is Outcome.NOTHING
    site.write("later")
    assert site.committed() == [*records, "later"]


# ---- evidence in the log --------------------------------------------------------------------------------------------


Written = list[tuple[str, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]]


def write_many(writer: DualWriter, number: int) -> None:
    """Write records of every shape to all partitions of both topics, in many batches."""
    with writer.transaction() as tx:
        tx.connection.execute(ROWS.insert().values(value="many"))
        for index in range(number):
            tx.send(
                ("orders", "others")[index % 2],
                None if index % 7 == 0 else f"{index} ".encode() * 40,
                None if index % 5 == 0 else b"\x00key\xff" + str(index).encode(),
                headers=[("h", b"\xff\x00"), ("h", None), ("é", str(index).encode())] if index % 3 else None,
                partition=index // 2 % 2,
                timestamp_ms=1_600_000_000_000 + index * 17,
            )


def in_log(site: Site, *, read_committed: bool) -> dict[tuple[str, int], list[Any]]:
    return {
        (topic, partition): [
            record[1:] for record in site.emulator.records(topic, partition, read_committed=read_committed)
        ]
        for topic in ("orders", "others")
        for partition in (0, 1)
    }


@pytest.mark.parametrize(
    ("tier", "codec"),
    [*((tier, "zstd") for tier in Tier if tier is not Tier.BOUNDED), *((Tier.BOUNDED, codec) for codec in CODECS)],
)
def test_many_records_are_the_same_byte_for_byte_and_in_order(site: Site, store: Database, codec: str) -> None:
    settings: dict[str, Any] = {"compression_type": codec, "batch_size": 2_000}
    with site.writer(**settings) as writer:
        write_many(writer, 400)
    original = in_log(site, read_committed=True)
    assert sum(map(len, original.values())) == 400
    for topic in ("orders", "others"):
        site.recreate(topic)
    with store.aside.begin() as connection:
        connection.execute(ROWS.delete())
    sleeper = site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, lambda writer: write_many(writer, 400))
    let_end(site, Way.OPERATOR)
    assert not any(in_log(site, read_committed=True).values())
    assert site.recover(**settings) is Outcome.REPAIRED
    site.world.settle()
    assert in_log(site, read_committed=True) == original
    sleeper.wake()
    assert in_log(site, read_committed=True) == original


@pytest.mark.parametrize("way", [Way.OPERATOR, Way.INITIALISED])
@pytest.mark.parametrize("partitions", [[0], [1], [0, 1]])
def test_only_invisible_records_are_published_again(site: Site, partitions: list[int], way: Way) -> None:
    """Partitions may differ: an operator ends a transaction in one of them by a marker, as after KAFKA-20734."""

    def both(writer: DualWriter) -> None:
        with writer.transaction() as tx:
            tx.connection.execute(ROWS.insert().values(value="decided"))
            for partition in (0, 1):
                tx.send("orders", f"decided {partition}", partition=partition)

    site.write("before")
    site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, both)
    with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
        for part in site.manifest().partitions:
            if part.partition in partitions:
                admin.abort_transaction(TopicPartition("orders", part.partition), start_offset=part.first_offset)
    site.world.recovering(transactional_id=site.kafka_id).complete_transaction(site.row(), take_over=False)
    site.world.settle()
    visible = {f"decided {partition}" for partition in (0, 1)} - {f"decided {each}" for each in partitions}
    assert set(site.committed()) == {"before"} | visible
    let_end(site, Way.INITIALISED)
    assert site.recover() is Outcome.REPAIRED
    site.write("later")
    assert sorted(site.committed()) == ["before", "decided 0", "decided 1", "later"]


@pytest.mark.parametrize(
    ("partitions", "way", "deleted"),
    [((0,), Way.OPERATOR, "all"), ((0, 0), Way.OPERATOR, "the first"), ((0, 1), Way.INITIALISED, "the last partition")],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_records_that_have_left_the_log_are_lost(
    site: Site, partitions: tuple[int, ...], way: Way, deleted: str
) -> None:
    """A transaction is not published again in part."""
    site.write("before")
    site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, lambda writer: write_to(writer, *partitions))
    let_end(site, way)
    part = site.manifest().partitions[-1]
    before = part.first_offset + 1 if deleted == "the first" else -1
    site.delete_records(partition=part.partition, before=before)
    visible = [] if part.partition == 0 else ["before"]
    assert_lost(site, *visible, way=RecordsGoneError if deleted == "the first" else PreparedTransactionLost)


def write_to(writer: DualWriter, *partitions: int, consumes: bool = False) -> None:
    """Write a row, and records 1, 2, ... to these partitions, and consumed offsets."""
    with writer.transaction() as tx:
        tx.connection.execute(ROWS.insert().values(value="decided"))
        for number, partition in enumerate(partitions, start=1):
            tx.send("orders", str(number), partition=partition)
        if consumes:
            tx.send_offsets({TopicPartition("others", 0): 1}, ConsumerGroupMetadata("group"))


def test_retention_deletes_the_records_during_the_read(site: Site) -> None:
    """The end was read, and then the records: their number differs, and none of them is published."""
    site.write("before")
    site.decided()
    let_end(site, Way.INITIALISED)
    row = site.row()
    held = site.emulator.faults.add(Fault(api="Fetch", action=Hold(), client_id="reader", skip=3))
    errors: list[BaseException] = []

    def recover() -> None:
        try:
            site.recover(client_id="reader")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=recover)
    thread.start()
    until(lambda: bool(held.held))
    site.delete_records()
    held.remove()
    held.release()
    thread.join(DEADLINE_S)
    assert [type(error) for error in errors] == [RecordsGoneError]
    assert site.row() == row
    assert site.committed() == []


@pytest.mark.usefixtures("nothing_refused")
def test_a_compacted_topic_keeps_aborted_records_until_it_is_cleaned(site: Site) -> None:
    site.emulator.set_config({"cleanup.policy": "compact"}, topic="orders")

    def write_key(writer: DualWriter) -> None:
        with writer.transaction() as tx:
            tx.connection.execute(ROWS.insert().values(value="decided"))
            tx.send("orders", "decided", "key", partition=0)

    site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, write_key)
    let_end(site, Way.OPERATOR)
    assert site.recover() is Outcome.REPAIRED
    site.assert_agreed("decided")


@pytest.mark.parametrize("is_used", [True, False])
@pytest.mark.parametrize("is_aborted", [True, False])
def test_a_topic_that_was_created_anew(site: Site, is_aborted: bool, is_used: bool) -> None:
    """Another transaction's records at the same offsets are not taken for evidence."""
    if is_aborted:
        site.decided()
        let_end(site, Way.OPERATOR)
    else:
        site.falls_asleep(PausePoint.AFTER_KAFKA_COMMIT, lambda writer: write(writer, "decided"))
    site.recreate()
    if is_used:
        with site.world.ready(transactional_id="another") as producer, producer.transaction():
            producer.send("orders", "another", partition=0)
    others = ["another"] if is_used else []
    if is_aborted:
        assert_lost(site, *others)
    else:
        assert site.recover() is Outcome.NOTHING
        site.write("later")
        assert site.committed() == [*others, "later"]


def test_a_topic_that_was_deleted(site: Site) -> None:
    site.decided()
    let_end(site, Way.OPERATOR)
    delete_topic(site.emulator, "orders")
    with site.writer() as writer, pytest.raises(PreparedTransactionLost):
        writer.recover()
    (found,) = site.serviced().found
    assert found.action is Action.LOST
    assert str(found.error).startswith("its records are no longer in orders-0: the topic is gone, or was created anew")


@pytest.mark.parametrize("acknowledged", [(), ("tid",)], ids=["", "acknowledged"])
def test_an_abort_after_the_first_look_is_no_loss(site: Site, acknowledged: tuple[str, ...]) -> None:
    """The service reads the log before it locks the row. An abort in between was not looked for there."""
    site.decided()
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        if looks == 1:
            let_end(site, Way.OPERATOR)
        return time.time()

    (found,) = site.serviced(clock=clock, acknowledge_lost=acknowledged).found
    assert (found.action, found.changed) == (Action.FAILED, False)
    assert found.error is not None
    assert "since recovery first looked at it; nothing was changed" in found.error
    (found,) = site.serviced().found
    assert (found.action, found.changed) == (Action.REPAIR, True)
    site.assert_agreed("decided")


@every_tier
def test_missing_evidence_is_an_error(
    site: Site, store: Database, caplog: pytest.LogCaptureFixture, heard: Heard
) -> None:
    """Where neither the coordinator nor the log can tell, a writer takes it for committed, and logs an error, once."""
    site.decided()
    let_end(site, Way.INITIALISED)
    site.delete_records()
    assert site.recover() is Outcome.NOTHING
    (error,) = errors_in(caplog)
    assert "can no longer prove" in error
    assert "orders-0: 0 to 0" in error
    assert is_settled(site.row(), site.text())
    site.write("later")
    assert len(errors_in(caplog)) == 1
    assert heard.sums("dualwrite.unproven") == {"": 1}
    assert site.committed() == ["later"]
    assert rows(store.aside) == ["decided", "later"]


@every_tier
def test_missing_evidence_is_reported_until_it_is_acknowledged(site: Site) -> None:
    site.decided()
    let_end(site, Way.INITIALISED)
    site.delete_records()
    text = site.text()
    for applies in (False, True):
        (found,) = site.serviced(apply=applies).found
        assert (found.action, found.changed, found.is_left) == (Action.NO_EVIDENCE, False, True)
    undecided = site.world.ready(transactional_id=site.kafka_id)
    undecided.begin_transaction()
    undecided.send("others", b"undecided").result(DEADLINE_S)
    assert [(found.action, found.changed) for found in site.serviced().found] == [(Action.ABORT, True)]
    assert site.text() == text
    (found,) = site.serviced(acknowledge_lost=["tid"]).found
    assert (found.action, found.changed) == (Action.ACKNOWLEDGE, True)
    assert site.serviced().found == ()
    site.write("later")
    assert site.committed() == ["later"]


@every_tier
def test_retention_of_one_partition_leaves_the_proof_in_another(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with site.writer() as writer:
        write_to(writer, 0, 1)
    let_end(site, Way.EXPIRED)
    site.delete_records(partition=1)
    assert site.recover() is Outcome.NOTHING
    assert errors_in(caplog) == []
    site.write("later")
    assert site.committed() == ["1", "later"]


@pytest.mark.usefixtures("brief_watch")
def test_an_unprovable_end_can_be_acknowledged(site: Site) -> None:
    """A hanging transaction: it is open in the log, and no coordinator knows of it under this id."""
    site.write("before")
    hanging = site.world.ready(transactional_id="hanging")
    pair = site.world.prepare(hanging, FOREIGN)
    site.change_row(prepared_transaction_state=str(pair), manifest=str(hanging.manifest))
    with (
        site.writer() as writer,
        pytest.raises(TransactionHangsError, match=f"no marker ends {pair} in orders-0"),
    ):
        write(writer, "refused")
    for _ in range(2):
        (found,) = site.serviced().found
        assert (found.action, found.changed, found.is_left) == (Action.HANGS, False, True)
    (found,) = site.serviced(acknowledge_lost=["tid"]).found
    assert (found.action, found.changed, found.error) == (Action.ACKNOWLEDGE, True, None)
    assert is_settled(pair, site.text())
    assert site.serviced().found == ()
    hanging.abort_transaction()
    site.write("later")
    site.assert_agreed("before", "later")


# ---- evidence in the row --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [Way.OPERATOR, Way.TIMEOUT])
@pytest.mark.parametrize("text", [None, "", "of another pair"])
@every_tier
def test_without_a_manifest_an_abort_stays_a_loss(site: Site, tier: Tier, text: str | None, way: Way) -> None:
    """The row of a version without manifests, or one whose state was replaced beside a manifest."""
    site.write("before")
    of_before = site.text()
    site.decided()
    site.change_row(manifest=of_before if text else text)
    let_end(site, first(way, tier))
    if way is Way.OPERATOR:
        let_end(site, way)  # has no transaction to end, and leaves the evidence
    assert_lost(site, "before")


@pytest.mark.parametrize("text", [None, "", "of another pair"])
@every_tier
def test_without_a_manifest_a_commit_stays_a_commit(site: Site, text: str | None) -> None:
    site.write("before")
    of_before = site.text()
    site.falls_asleep(PausePoint.AFTER_KAFKA_COMMIT, lambda writer: write(writer, "decided"))
    site.change_row(manifest=of_before if text else text)
    let_end(site, Way.MISUSED)
    assert site.recover() is Outcome.NOTHING
    site.write("later")
    site.assert_agreed("before", "decided", "later")


def test_a_manifest_that_is_too_long_is_left_out_where_no_bound_needs_one(
    store: Database, monkeypatch: pytest.MonkeyPatch, heard: Heard
) -> None:
    monkeypatch.setattr(manifests, "MAX_MANIFEST_BYTES", 80)
    with site_of(Tier.STORED_PAIR, store) as site:
        site.write("before")
        site.decided()
        assert site.text() is None
        (told,) = heard.points("dualwrite.no_manifest")
        assert (told.value, told.attributes["reason"]) == (2, "too long")
        let_end(site, Way.OPERATOR)
        assert_lost(site, "before")


@pytest.mark.parametrize("text", ["{", '{"format": 99}', "committed"])
def test_an_unreadable_manifest_stops_calls_that_need_it(site: Site, text: str) -> None:
    site.write("before")
    site.decided()
    let_end(site, Way.OPERATOR)
    manifest = site.text()
    site.change_row(manifest=text)
    with site.writer() as writer:
        for use in (DualWriter.recover, lambda writer: write(writer, "refused")):
            with pytest.raises(StateRowError, match=r"'tid'.*[nN]othing was changed"):
                use(writer)
    assert site.serviced().found[0].action is Action.FAILED
    site.change_row(manifest=manifest)
    assert site.recover() is Outcome.REPAIRED
    site.assert_agreed("before", "decided")


@pytest.mark.usefixtures("nothing_refused")
def test_a_transaction_with_consumed_offsets_is_not_repaired(site: Site) -> None:
    site.write("before")
    site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, lambda writer: write_to(writer, 0, consumes=True))
    let_end(site, Way.INITIALISED)
    assert_lost(site, "before")


@every_tier
@pytest.mark.usefixtures("nothing_refused")
def test_consumed_offsets_alone_prove_nothing(site: Site) -> None:
    """No partition of a topic was written, so the log cannot tell, and the coordinator is believed."""

    site.write("before")
    site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, lambda writer: write_to(writer, consumes=True))
    assert site.manifest().partitions == ()
    let_end(site, Way.OPERATOR)
    assert_lost(site, "before")


@pytest.mark.parametrize("by", ["writer", "service"])
@every_tier
def test_recovery_settles_the_row_before_the_evidence_is_gone(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(Publishing, "settle_before_leaving", leaves_unsettled)
    site.write("before")
    if by == "writer":
        assert site.recover() is Outcome.NOTHING
    else:
        let_end(site, Way.EXPIRED)
        plan = site.serviced(apply=False)
        assert site.manifest(), "a plan changes nothing"
        assert plan.found == site.serviced().found == ()
    assert is_settled(site.row(), site.text())
    let_end(site, Way.EXPIRED)
    site.delete_records()
    for _ in range(2):
        assert site.serviced().is_clean
        assert site.recover() is Outcome.NOTHING
    site.write("later")
    assert errors_in(caplog) == []
    assert site.committed() == ["later"]


def test_a_settled_row_is_not_that_of_the_next_pair(site: Site) -> None:
    """A version that knows no manifests leaves the text of the settled pair beside its own state."""
    site.write("before")
    assert site.recover() is Outcome.NOTHING
    settled = site.text()
    site.decided()
    site.change_row(manifest=settled)
    let_end(site, Way.OPERATOR)
    assert_lost(site, "before")


# ---- another cluster ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_refused")
def test_another_cluster_is_refused_after_consumed_offsets_alone(site: Site, store: Database) -> None:
    """No topic was looked up, so no response to the block had named the cluster."""
    site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, lambda writer: write_to(writer, consumes=True))
    assert site.manifest().cluster_id
    with (
        Emulator() as another,
        DualWriter(store.aside, transactional_id="tid", bootstrap_servers=another.bootstrap_servers) as writer,
        pytest.raises(AnotherClusterError),
    ):
        writer.recover()


@pytest.mark.parametrize("is_aborted", [True, False])
@every_tier
def test_another_cluster_is_refused_before_anything_is_changed(
    site: Site, store: Database, tier: Tier, is_aborted: bool
) -> None:
    topics = {"orders": 2, "others": 2}
    with Emulator(topics=topics, config=TIERS[tier], clock=VirtualClock()) as another:
        site.write("before")
        site.decided()
        if is_aborted:
            let_end(site, Way.INITIALISED)
        row, text = site.row(), site.text()
        elsewhere: dict[str, Any] = {"bootstrap_servers": another.bootstrap_servers}
        for use in (DualWriter.recover, lambda writer: write(writer, "refused")):
            with DualWriter(store.aside, transactional_id="tid", **elsewhere) as writer:
                with pytest.raises(AnotherClusterError, match="neither the database nor a topic was changed") as raised:
                    use(writer)
                assert raised.value.prepared_in == site.manifest().cluster_id
        given: dict[str, Any] = {"transactional_ids": ["tid"], "min_age_ms": 0, **elsewhere}
        with RecoveryService(store.aside, **given) as service:
            (found,) = service.recover().found
            assert (found.action, found.changed) == (Action.ANOTHER_CLUSTER, False)
            assert found.error is not None
            assert "Kafka cluster" in found.error
        assert (site.row(), site.text()) == (row, text)
        assert [record for partition in (0, 1) for record in another.records("orders", partition)] == []
        assert rows(store.aside) == ["before", "decided"]
        assert site.recover() is (Outcome.REPAIRED if is_aborted else Outcome.COMMITTED)
        site.assert_agreed("before", "decided")


@every_tier
def test_a_pair_of_another_cluster_decides_nothing(store: Database, tier: Tier) -> None:
    """Without a manifest the other cluster is not noticed; a pair that the row has already would show any outcome."""
    topics = {"orders": 2, "others": 2}
    with site_of(tier, store) as site:
        site.write("before")
        site.change_row(manifest=None)
        pair = site.row()
    with Emulator(topics=topics, config=TIERS[tier], clock=VirtualClock()) as another:
        with DualWriter(
            store.aside,
            transactional_id="tid",
            bootstrap_servers=another.bootstrap_servers,
        ) as writer:
            # both emulators count producer ids alike, so the first pair is that of the row
            with pytest.raises(RetriableError, match=f"{pair}, which the state row .* already holds"):
                write(writer, "refused")
            write(writer, "later")
        assert [record.value for record in another.records("orders", 0)] == [b"later"]
    assert rows(store.aside) == ["before", "later"]


# ---- rights ---------------------------------------------------------------------------------------------------------


ALLOWED: Final = [
    Acl.allow("User:*", AclOperation.ALL, kind, "*" if kind is not ResourceType.CLUSTER else "kafka-cluster")
    for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID, ResourceType.GROUP, ResourceType.CLUSTER)
]
NOT_READABLE: Final = Acl.deny("User:ANONYMOUS", AclOperation.READ, ResourceType.TOPIC, "orders")
DENIALS: Final = AclFilter(operation=AclOperation.READ)


@every_tier
def test_without_read_the_coordinator_is_believed_and_a_warning_logged(
    store: Database, tier: Tier, caplog: pytest.LogCaptureFixture
) -> None:
    with site_of(tier, store, acls=ALLOWED) as site:
        site.write("before")
        site.decided()
        let_end(site, Way.OPERATOR)
        site.emulator.add_acls(NOT_READABLE)
        with site.writer() as writer, pytest.raises(PreparedTransactionLost):
            writer.recover()
        (found,) = site.serviced().found
        assert (found.action, found.changed) == (Action.LOST, False)
        assert len(errors_in(caplog)) >= 2
        assert all("grant READ on the topic" in error for error in errors_in(caplog))
        site.emulator.remove_acls(DENIALS)
        assert site.recover() is Outcome.REPAIRED
        site.write("later")
        site.assert_agreed("before", "decided", "later")


def test_the_service_reports_an_end_that_only_an_unreadable_log_shows(store: Database) -> None:
    with site_of(Tier.KEEP_PREPARED, store, acls=ALLOWED) as site:
        site.decided()
        let_end(site, Way.INITIALISED)
        site.emulator.add_acls(NOT_READABLE)
        undecided = site.world.ready(transactional_id=site.kafka_id)
        undecided.begin_transaction()
        undecided.send("others", b"undecided").result(DEADLINE_S)
        assert [found.action for found in site.serviced().found] == [Action.ABORT]
        (found,) = site.serviced().found
        assert (found.action, found.is_left) == (Action.FAILED, True)
        assert "grant READ" in str(found.error)
        site.emulator.remove_acls(DENIALS)
        assert [found.action for found in site.serviced().found] == [Action.REPAIR]
        site.assert_agreed("decided")


# ---- logs and metrics -----------------------------------------------------------------------------------------------


@every_tier
def test_a_repair_is_logged_and_counted(site: Site, heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    def counted() -> dict[str, int]:
        names = ("proofs", "repaired", "republished", "lost")
        return {name: sum(heard.sums(f"dualwrite.{name}").values()) for name in names}

    def write_three(writer: DualWriter) -> None:
        with writer.transaction() as tx:
            tx.connection.execute(ROWS.insert().values(value="decided"))
            for _ in range(3):
                tx.send("orders", "decided", partition=0)

    site.write("before")
    site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, write_three)
    old = site.row()
    let_end(site, Way.INITIALISED)
    before = counted()
    assert (before["repaired"], before["republished"]) == (0, 0)
    caplog.clear()
    assert site.recover() is Outcome.REPAIRED
    # the aborted transaction, and before its row is settled, its repair
    assert counted() == {"proofs": before["proofs"] + 2, "repaired": 1, "republished": 3, "lost": 0}
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    found, published = [line for line in told if str(old) in line]
    assert "Kafka aborted" in found
    assert "its 3 records (orders-0: " in found
    assert f"is published again as {site.row()}" in published
    let_end(site, Way.INITIALISED)
    for _ in range(2):
        assert site.recover() is Outcome.NOTHING
    site.write("later")
    expected = {"proofs": before["proofs"] + 2, "repaired": 1, "republished": 3, "lost": 0}
    assert counted() == expected, "the repair has settled its row"


def test_a_loss_is_counted_at_each_recovery(site: Site, heard: Heard) -> None:
    site.decided()
    let_end(site, Way.OPERATOR)
    site.delete_records()
    for _ in range(2):
        with site.writer() as writer, pytest.raises(PreparedTransactionLost):
            writer.recover()
    assert heard.sums("dualwrite.lost") == {"": 2}
