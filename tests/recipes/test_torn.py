"""Transactions whose end in one partition contradicts the coordinator: noticed, and never doubled.

A marker that was never written (KAFKA-20734), or an operator's abort marker in one of two partitions of a prepared
transaction. A take-over reads the log also where the coordinator has committed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

import pytest

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import CloseBefore, Error, Fault, FaultHandle, Hold
from dualwrite.errors import (
    AdminError,
    KafkaTimeoutError,
    RetriableError,
    TransactionHangsError,
)
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import TopicPartition
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.proof import is_settled, settled_text
from dualwrite.recipes.recovery.service import Action, RecoveryService
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import Crash
from tests.recipes.heard import Heard
from tests.recipes.repairs import FOREIGN, Site, Way, let_end, site_of
from tests.recipes.test_repair import every_tier, site, store, tier
from tests.recipes.test_repair_evidence import ALLOWED, DENIALS, NOT_READABLE, errors_in
from tests.recipes.tiers import ROWS, rows, write
from tests.support.conditions import until
from tests.support.databases import Database, PostgresDatabase

__all__ = ["site", "store", "tier"]  # fixtures
pytestmark = pytest.mark.usefixtures("brief_watch")

TORN: Final = TopicPartition("orders", 1)

BOTH: Final = ["decided 0", "decided 1"]


class End(StrEnum):
    """The fate of the second partition of a transaction that is decided, and committed."""

    FINE = "a commit marker"
    ABORTED = "an operator's abort marker, while it was prepared"
    HANGING = "no marker"


class Said(StrEnum):
    """The coordinator's description of it at the take-over."""

    OPEN = "open: its process died between the two commits, and the take-over commits it"
    COMMITTED = "CompleteCommit: its process has ended"
    NOTHING = "nothing: another program has used the id since"


ASKS_NOTHING: Final = {"transaction_two_phase_commit_enable": False}
"""The setting of a producer that writes behind a transaction that hangs, as other clients do."""

every_said = pytest.mark.parametrize("said", Said, ids=[said.name for said in Said])


def write_both(writer: DualWriter, value: str = "decided") -> None:
    """Write to both partitions, and a row."""
    with writer.transaction() as tx:
        tx.connection.execute(ROWS.insert().values(value=value))
        for partition in (0, 1):
            tx.send("orders", f"{value} {partition}", partition=partition)


def lose_marker(site: Site) -> FaultHandle:
    """Let the next marker of the second partition never be written; its coordinator completes all the same."""
    return site.emulator.faults.add(
        Fault(api="WriteTxnMarkers", action=Error("unsupported_version"), topic=TORN.topic, partition=TORN.partition)
    )


def abort_there(site: Site) -> None:
    """Abort the open transaction in the second partition, as an operator can."""
    with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
        (part,) = [each for each in site.manifest().partitions if each.partition == TORN.partition]
        admin.abort_transaction(TORN, start_offset=part.first_offset)


def commit_there(site: Site) -> None:
    """Do as the error says."""
    with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
        admin.commit_transaction(TORN, site.row())


SPOILED: Final[dict[End, Callable[[Site], Any]]] = {
    End.FINE: lambda site: None,
    End.ABORTED: abort_there,
    End.HANGING: lose_marker,
}


def leave(site: Site, end: End, said: Said) -> None:
    """Leave a decided dual write in both partitions, with that end at once or later."""

    def spoil(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT:
            SPOILED[end](site)
            if said is Said.OPEN:
                raise Crash

    with suppress(Crash), site.writer(spoil) as writer:
        write_both(writer)
    site.world.settle()
    if said is Said.NOTHING:
        let_end(site, Way.INITIALISED)


def seen(site: Site) -> Counter[str]:
    """The values that read_committed consumers get, with their counts."""
    return Counter(site.committed())


def assert_once(site: Site, *others: str) -> None:
    """Both records are published, each once, and each of the others."""
    expected = ["before", *BOTH, *others]
    assert seen(site) == Counter(expected)
    assert rows(site.store.aside) == sorted(["before", "decided", *others])


def assert_hangs(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Each use of the id says so, and how to end it; nothing is changed, and nothing published again."""
    row, text = site.row(), site.text()
    uses: list[Callable[[DualWriter], object]] = [DualWriter.recover, lambda writer: write(writer, "refused")] * 2
    for use in uses:
        caplog.clear()
        with site.writer() as writer, pytest.raises(TransactionHangsError) as raised:
            use(writer)
        assert raised.value.partitions == (TORN,)
        assert raised.value.prepared_state == str(row)
        (error,) = errors_in(caplog)
        assert error == str(raised.value)
        command = f"dualwrite transactions commit --topic orders --partition 1 --prepared-state {row}"
        assert f"`{command}`" in error
    for apply in (False, True):
        (found,) = site.serviced(apply=apply).found
        assert (found.action, found.changed, found.is_left) == (Action.HANGS, False, True)
        assert command in (found.error or "")
    assert (site.row(), site.text()) == (row, text)
    assert seen(site) == Counter(["before", "decided 0"])


# ---- each end, with each description --------------------------------------------------------------------------------


@pytest.mark.parametrize("via", ["recover", "write", "service"])
@every_said
@every_tier
def test_complete_transactions_are_left_alone(site: Site, said: Said, via: str) -> None:
    site.write("before")
    leave(site, End.FINE, said)
    if via == "recover":
        assert site.recover() is (Outcome.COMMITTED if said is Said.OPEN else Outcome.NOTHING)
        assert is_settled(site.row(), site.text())
    elif via == "service":
        done = [each.action for each in site.serviced().found]
        assert done == ([Action.COMMIT] if said is Said.OPEN else [])
        assert site.serviced().is_clean
    site.write("later")
    assert_once(site, "later")


@pytest.mark.parametrize("via", ["recover", "write", "service"])
@every_said
@every_tier
def test_records_aborted_in_one_partition_are_published_again(site: Site, said: Said, via: str, heard: Heard) -> None:
    site.write("before")
    leave(site, End.ABORTED, said)
    if via == "recover":
        assert site.recover() is Outcome.REPAIRED
        assert site.recover() is Outcome.NOTHING
    elif via == "service":
        planned = [each.action for each in site.serviced(apply=False).found]
        assert planned == [Action.COMMIT if said is Said.OPEN else Action.REPAIR]
        done = site.serviced().found
        assert [(each.action, each.changed) for each in done] == [(Action.REPAIR, True)]
        assert site.serviced().is_clean
    site.write("later")
    assert_once(site, "later")
    assert heard.sums("dualwrite.torn") == {"aborted": 1}
    assert heard.sums("dualwrite.republished") == {"": 1}


@pytest.mark.parametrize("end", [End.ABORTED, End.HANGING], ids=lambda end: end.name)
@every_tier
def test_records_published_by_a_recovery_are_not_settled_before_readers_see_them(site: Site, end: End) -> None:
    """Otherwise the row would be settled, and no take-over would look again."""

    def spoil(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT:
            SPOILED[end](site)

    site.write("before")
    leave(site, End.FINE, Said.OPEN)
    let_end(site, Way.OPERATOR)
    expected = RetriableError if end is End.ABORTED else TransactionHangsError
    with site.writer(spoil) as writer, pytest.raises(expected, match="transactional id 'tid'"):
        writer.recover()
    assert not is_settled(site.row(), site.text())
    if end is End.HANGING:
        commit_there(site)
    assert site.recover() is (Outcome.REPAIRED if end is End.ABORTED else Outcome.NOTHING)
    site.write("later")
    assert_once(site, "later")


@pytest.mark.parametrize("remedy", [commit_there, abort_there], ids=["commit marker", "abort marker"])
@every_said
@every_tier
def test_a_hanging_transaction_is_not_taken_for_an_end(
    site: Site, said: Said, remedy: Callable[[Site], None], caplog: pytest.LogCaptureFixture, heard: Heard
) -> None:
    site.write("before")
    leave(site, End.HANGING, said)
    if said is Said.OPEN:  # its commit loses the marker
        with site.writer() as writer, pytest.raises(TransactionHangsError):
            writer.recover()
    assert_hangs(site, caplog)
    assert heard.sums("dualwrite.torn") == {"hanging": 6 + (said is Said.OPEN)}
    remedy(site)
    assert site.recover() is (Outcome.NOTHING if remedy is commit_there else Outcome.REPAIRED)
    site.write("later")
    assert_once(site, "later")
    assert site.serviced().is_clean


# ---- transactions that no row names ---------------------------------------------------------------------------------


def leave_undecided(site: Site) -> None:
    """Let a process stop with an undecided transaction, whose abort loses its marker in the second partition."""
    site.falls_asleep(PausePoint.AFTER_PREPARE, lambda writer: write_both(writer, "undecided"))
    lose_marker(site)
    site.recover()
    site.world.settle()


def write_without_marker(site: Site, writer: DualWriter) -> PreparedTxnState:
    """Write to both partitions, of which the second gets no marker; return the prepared state."""
    lose_marker(site)
    write_both(writer)
    site.world.settle()
    return site.row()


@every_tier
def test_nothing_is_written_behind_an_undecided_transaction_that_hangs(
    site: Site, caplog: pytest.LogCaptureFixture, heard: Heard
) -> None:
    """The next commit of the producer id there would make its record visible, without a row."""
    site.write("before")
    leave_undecided(site)
    with site.writer() as writer:
        write(writer, "elsewhere")  # in the first partition
        for _ in range(2):
            with pytest.raises(TransactionHangsError, match="Neither side was changed") as raised:
                write_both(writer, "refused")
            assert str(raised.value) in errors_in(caplog)
        assert raised.value.partitions == (TORN,)
        (offset,) = raised.value.start_offsets
        command = f"dualwrite transactions abort --topic orders --partition 1 --start-offset {offset}"
        assert f"not decided it, so abort it: `{command}`. Then" in str(raised.value)
        assert heard.sums("dualwrite.torn") == {"hanging": 2}
        with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
            admin.abort_transaction(TORN, start_offset=offset)
        write_both(writer)
    assert_once(site, "elsewhere")


@pytest.mark.parametrize("tier", [Tier.KEEP_PREPARED, Tier.STORED_PAIR, Tier.BOUNDED], ids=lambda tier: tier.name)
def test_nothing_is_written_behind_a_decided_transaction_that_hangs(site: Site, tier: Tier) -> None:
    """A living writer asks again when connections were lost: an abort of the next transaction would end both."""
    with site.writer() as writer:
        write(writer, "before")
        row = write_without_marker(site, writer)
        site.emulator.disconnect_clients()
        with pytest.raises(TransactionHangsError) as raised:
            write_both(writer, "refused")
        assert (raised.value.prepared_state, raised.value.partitions) == (str(row), (TORN,))
        command = f"dualwrite transactions commit --topic orders --partition 1 --prepared-state {row}"
        assert f"has decided it, so commit it: `{command}`. Then" in str(raised.value)
        commit_there(site)
        write(writer, "later")
    assert_once(site, "later")


@every_tier
def test_of_a_transaction_before_the_row_no_end_is_guessed(site: Site) -> None:
    with site.writer() as writer:
        write(writer, "before")
        hanging = write_without_marker(site, writer)
        write(writer, "later")
        by_manifest = site.serviced(apply=False)
    by_name = site.serviced(topics=["orders"])
    for report in (by_manifest, by_name):
        (told,) = report.left
        assert (told.action, told.pair, told.topic_partitions) == (Action.HANGS, str(hanging), ("orders-1",))
        assert f"`dualwrite transactions commit --topic orders --partition 1 --prepared-state {hanging}`" in (
            told.error or ""
        )
    with site.writer() as writer:
        with pytest.raises(TransactionHangsError, match="no longer shows whether the database has decided") as raised:
            write_both(writer, "refused")
        assert f"commit --topic orders --partition 1 --prepared-state {hanging}" in str(raised.value)
        assert f"abort --topic orders --partition 1 --start-offset {raised.value.start_offsets[0]}" in str(raised.value)
        with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
            admin.commit_transaction(TORN, hanging)
        write(writer, "last")
    assert_once(site, "later", "last")


@every_tier
def test_a_row_of_another_cluster_does_not_tell_whether_a_transaction_is_decided(site: Site) -> None:
    """Each cluster assigns the same pairs, so a lower one there is no earlier one."""
    with site.writer() as writer:
        write(writer, "before")
        write_without_marker(site, writer)
    row = PreparedTxnState.of(producer_id=site.row().producer_id, producer_epoch=0)
    site.change_row(prepared_transaction_state=str(row), manifest=f"committed {row} another orders")
    (told,) = site.serviced(apply=False).left
    assert "If a database has decided it" in str(told.error)
    with site.writer() as writer:
        with pytest.raises(TransactionHangsError, match="no longer shows whether the database has decided"):
            write_both(writer, "refused")


@every_tier
def test_recovery_commits_a_hanging_transaction_named_by_the_settled_row(site: Site, tier: Tier) -> None:
    """Before transaction.version 2 another transaction may have the pair."""
    with site.writer() as writer:
        write(writer, "before")
        row = write_without_marker(site, writer)
    site.change_row(manifest=settled_text(row, site.text() or ""))
    (told,) = site.serviced(apply=False).left
    assert ("so the database has decided it" in str(told.error)) is (tier is not Tier.BOUNDED_V1)


@pytest.mark.parametrize("tier", [Tier.KEEP_PREPARED, Tier.STORED_PAIR, Tier.BOUNDED], ids=lambda tier: tier.name)
def test_markers_that_are_under_way_are_awaited_by_the_next_block(site: Site, tier: Tier) -> None:
    with site.writer() as writer, ThreadPoolExecutor(1) as threads:
        write(writer, "before")
        markers = site.emulator.faults.add(Fault(api="WriteTxnMarkers", action=Hold(), topic="orders", count=None))
        write_both(writer)
        markers.wait_held(2)
        site.emulator.disconnect_clients()
        asked = site.emulator.faults.add(Fault(api="DescribeTransactions", action=None, count=None))
        later = threads.submit(write, writer, "later")
        asked.wait(2)
        markers.remove()
        markers.release()
        later.result(60)
    assert_once(site, "later")


@pytest.mark.parametrize(
    "action",
    [Error("not_leader_or_follower"), Error("request_timed_out"), Error("unknown_server_error"), CloseBefore()],
    ids=["not the leader", "a timeout", "an unknown error", "a lost connection"],
)
@every_tier
def test_a_leader_without_an_answer_is_asked_again(site: Site, action: Any) -> None:
    leave_undecided(site)
    site.emulator.faults.add(Fault(api="DescribeProducers", action=action))
    with site.writer() as writer, pytest.raises(TransactionHangsError):
        write_both(writer, "refused")


@every_tier
def test_a_leader_is_asked_once(site: Site) -> None:
    asked = site.emulator.faults.add(Fault(api="DescribeProducers", action=None, count=None))
    with site.writer() as writer:
        for value in BOTH:
            write(writer, value)
    assert asked.hits == 1


# ---- sleeping and living processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [DualWriter.recover, lambda writer: write(writer, "asleep")], ids=["recover", "write"])
@pytest.mark.parametrize(
    "at", [PausePoint.AFTER_INIT, PausePoint.AFTER_COMPLETION, PausePoint.AFTER_TAKEOVER, PausePoint.AFTER_PREPARE]
)
@every_said
@every_tier
def test_a_process_sleeps_before_or_after_reading(
    site: Site, said: Said, at: PausePoint, use: Callable[[DualWriter], object]
) -> None:
    """Another one finds the same, and publishes it again; the sleeper does not."""
    site.write("before")
    leave(site, End.ABORTED, said)
    sleeper = site.falls_asleep(at, use)
    assert site.recover() is Outcome.REPAIRED
    site.write("later")
    sleeper.wake()
    site.world.settle()
    assert site.recover() is Outcome.NOTHING
    site.write("last")
    assert_once(site, "later", "last")


@pytest.mark.parametrize("end", [End.ABORTED, End.HANGING], ids=lambda end: end.name)
@every_tier
def test_the_deciding_process_wakes_up(site: Site, end: End) -> None:
    """The process has decided and not committed in Kafka; another process has taken over, and found the tear."""
    site.write("before")
    owner = site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, write_both)
    SPOILED[end](site)
    if end is End.ABORTED:
        assert site.recover() is Outcome.REPAIRED
    else:
        with site.writer() as writer, pytest.raises(TransactionHangsError):
            writer.recover()
    owner.wake()
    if end is End.HANGING:
        commit_there(site)
    assert site.recover() is Outcome.NOTHING
    site.write("later")
    assert_once(site, "later")


@every_tier
def test_a_writer_that_is_ready_reads_nothing(site: Site, heard: Heard) -> None:
    with site.writer() as writer:
        write(writer, "before")
        reads = [site.emulator.faults.add(Fault(api=api, action=None, count=None)) for api in ("Fetch", "Metadata")]
        proofs = heard.sums("dualwrite.proofs")
        for number in range(3):
            write(writer, f"{number}")
        assert [each.hits for each in reads] == [0, 0]
        assert heard.sums("dualwrite.proofs") == proofs


@every_tier
def test_a_take_over_reads_once(site: Site, heard: Heard) -> None:
    """However many partitions the transaction has; and a row that is settled is not read again."""
    site.write("before")
    leave(site, End.FINE, Said.OPEN)
    proofs = sum(heard.sums("dualwrite.proofs").values())
    fetches = site.emulator.faults.add(Fault(api="Fetch", action=None, count=None))
    for _ in range(3):
        site.recover()
    assert fetches.hits == 1
    assert sum(heard.sums("dualwrite.proofs").values()) == proofs + 1


# ---- in between -----------------------------------------------------------------------------------------------------


@every_tier
def test_markers_that_are_under_way_are_awaited(site: Site) -> None:
    """The markers come late, and nothing hangs: the commit is that of this process or of the previous one."""
    site.write("before")
    leave(site, End.FINE, Said.OPEN)
    markers = site.emulator.faults.add(Fault(api="WriteTxnMarkers", action=Hold(), topic="orders", count=None))
    for _ in range(2):
        with (
            site.writer(max_block_ms=1_000, resolve_timeout_ms=1_000) as writer,
            pytest.raises(KafkaTimeoutError) as raised,
        ):
            writer.recover()
        assert not isinstance(raised.value, TransactionHangsError)
    assert bool(markers.held)
    markers.remove()
    markers.release()
    assert site.recover() is Outcome.NOTHING
    site.write("later")
    assert_once(site, "later")


@pytest.mark.parametrize("partition", [0, 1])
@every_tier
def test_another_transaction_of_the_producer_is_open_behind_a_hanging_one(site: Site, partition: int) -> None:
    """No row names it, so it is aborted; where both are in one partition, its marker ends both."""
    site.write("before")
    leave(site, End.HANGING, Said.COMMITTED)
    producer = site.world.ready(transactional_id=site.kafka_id, **ASKS_NOTHING)
    producer.begin_transaction()
    producer.send("orders", "undecided", partition=partition).result(60)
    if partition == TORN.partition:
        assert site.recover() is Outcome.REPAIRED
    else:
        with site.writer() as writer, pytest.raises(TransactionHangsError):
            writer.recover()
        commit_there(site)
        assert site.recover() is Outcome.NOTHING
    site.write("later")
    assert_once(site, "later")


def test_a_commit_marker_does_not_commit_a_later_transaction(site: Site) -> None:
    """The tool refuses where the producer has begun another transaction in the partition."""
    site.write("before")
    leave(site, End.HANGING, Said.COMMITTED)
    row = site.row()
    with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
        foreign = site.world.ready(transactional_id=site.kafka_id, **ASKS_NOTHING)
        foreign.begin_transaction()
        foreign.send("orders", FOREIGN, partition=TORN.partition).result(60)
        with pytest.raises(AdminError, match=r"another transaction.*nothing was committed"):
            admin.commit_transaction(TORN, row)
        foreign.abort_transaction()
    assert site.recover() is Outcome.REPAIRED
    site.write("later")
    assert_once(site, "later")


@pytest.mark.parametrize("tier", [Tier.KEEP_PREPARED, Tier.STORED_PAIR, Tier.BOUNDED], ids=lambda tier: tier.name)
def test_a_description_that_is_older_than_the_row(
    site: Site, tier: Tier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit leaves the pair of the next transaction, which is open meanwhile and does not hang."""
    decided: list[str] = []

    def die(point: PausePoint) -> None:
        if decided and point is PausePoint.AFTER_DATABASE_COMMIT:
            raise Crash

    with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
        with suppress(Crash), site.writer(die) as writer:
            write(writer, "before")
            site.world.settle()
            older = admin.describe_transactions([site.kafka_id])
            decided.append("next")
            write_both(writer)
        monkeypatch.setattr(RecoveryService, "_described", lambda *_: older)
        assert [each.action for each in site.serviced().found] == [Action.COMMIT]
        assert errors_in(caplog) == []
        assert_once(site)


# ---- where the log cannot tell --------------------------------------------------------------------------------------


@every_tier
def test_records_that_have_left_the_log_were_committed(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The coordinator says so, and nothing contradicts it: no error is logged."""
    site.write("before")
    leave(site, End.FINE, Said.COMMITTED)
    for partition in (0, 1):
        site.delete_records(partition=partition)
    caplog.clear()
    assert site.serviced().is_clean
    assert site.recover() is Outcome.NOTHING
    site.write("later")
    assert errors_in(caplog) == []
    assert site.committed() == ["later"]


@every_tier
def test_without_read_a_committed_transaction_is_believed(
    store: Database, tier: Tier, caplog: pytest.LogCaptureFixture
) -> None:
    with site_of(tier, store, acls=ALLOWED) as site:
        site.write("before")
        leave(site, End.ABORTED, Said.COMMITTED)
        site.emulator.add_acls(NOT_READABLE)
        caplog.set_level(logging.INFO, "dualwrite.recipes")
        assert site.serviced().is_clean
        assert site.recover() is Outcome.NOTHING
        assert errors_in(caplog) == []
        assert any("cannot verify that Kafka committed" in record.getMessage() for record in caplog.records)
        site.emulator.remove_acls(DENIALS)


def test_an_unreadable_manifest_of_a_committed_transaction_stops_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write("before")
    leave(site, End.FINE, Said.COMMITTED)
    site.change_row(manifest='{"format": 99}')
    site.write("later")
    assert_once(site, "later")
    assert any("cannot verify that Kafka committed" in record.getMessage() for record in caplog.records)


# ---- progress meanwhile ---------------------------------------------------------------------------------------------


def test_a_pool_goes_on_under_another_id(postgres: PostgresDatabase) -> None:
    ROWS.metadata.create_all(postgres.aside)
    with site_of(Tier.BOUNDED, postgres) as site:
        settings: dict[str, Any] = {"bootstrap_servers": site.emulator.bootstrap_servers, "max_writers": 2}

        def spoil(point: PausePoint) -> None:
            if point is PausePoint.AFTER_DATABASE_COMMIT:
                lose_marker(site)

        with DualWriter(postgres.aside, prefix="pool-", pause=spoil, **settings) as first, first.transaction() as tx:
            tx.connection.execute(ROWS.insert().values(value="decided"))
            for partition in (0, 1):
                tx.send("orders", f"decided {partition}", partition=partition)
        with DualWriter(postgres.aside, prefix="pool-", **settings) as second:
            for value in ("1", "2"):
                with second.transaction() as tx:
                    tx.connection.execute(ROWS.insert().values(value=value))
                    tx.send("orders", value, partition=0)
            until(lambda: bool(second.status.set_aside))
        assert seen(site) == Counter(["decided 0", "1", "2"])
        assert rows(postgres.aside) == ["1", "2", "decided"]
