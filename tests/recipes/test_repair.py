"""A decided transaction that Kafka aborted is published again, once; a committed one never is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from dualwrite.broker_emulator import Fault, Hold
from dualwrite.errors import (
    AbortableError,
    DatabaseWentBackError,
    FencedError,
    KafkaTimeoutError,
    KafkaUnreachableError,
    NotDurableError,
    OutcomeUnknown,
    RetriableError,
)
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.recovery.service import Action
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.producer.tiers import BOUNDED, BY_STORED_PAIR
from tests.recipes.repairs import FOREIGN, Site, Way, acknowledge, let_end, nodes_for, site_of, sqlite_store, ways_of
from tests.recipes.tiers import rows, write
from tests.support.conditions import until
from tests.support.databases import Database

UNTIL_DECIDED: Final = list(PausePoint)[: list(PausePoint).index(PausePoint.AFTER_DATABASE_COMMIT)]

LONG_MS: Final = 300_000
"""Outlasts a test."""

every_tier = pytest.mark.parametrize("tier", Tier, ids=[tier.name for tier in Tier])
every_way = pytest.mark.parametrize(
    ("tier", "way"), [pytest.param(tier, way, id=f"{tier.name} {way.name}") for tier in Tier for way in ways_of(tier)]
)
bounded = pytest.mark.parametrize("tier", BOUNDED, ids=[tier.name for tier in BOUNDED])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    made = sqlite_store(tmp_path)
    yield made
    made.close()


@pytest.fixture
def tier() -> Tier:
    """The tier of tests where it makes no difference."""
    return Tier.BOUNDED


@pytest.fixture
def site(tier: Tier, store: Database) -> Iterator[Site]:
    with site_of(tier, store) as made:
        yield made


def first(way: Way, tier: Tier) -> Way:
    """Return the way if it can happen on the tier, else an operator's abort."""
    return way if way in ways_of(tier) else Way.OPERATOR


# ---- aborted against the decision -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tier", "way", "via"),
    [
        pytest.param(tier, way, via, id=f"{tier.name} {way.name} {via}")
        for tier in Tier
        for way in ways_of(tier)
        for via in ("recover", "write", "service")
        if via == "recover" or way in (Way.INITIALISED, Way.OPERATOR)  # who finds it out does not ask how it came
    ],
)
def test_records_aborted_against_the_decision_are_published_again(
    store: Database, tier: Tier, way: Way, via: str
) -> None:
    with site_of(tier, store, nodes=nodes_for(way)) as site:
        site.write("before")
        sleeper = site.decided()
        let_end(site, way)
        if via == "recover":
            assert site.recover() is Outcome.REPAIRED
            assert site.recover() is Outcome.NOTHING
        elif via == "service":
            assert [found.action for found in site.serviced(apply=False).found] == [Action.REPAIR]
            report = site.serviced()
            (found,) = report.found
            assert (found.action, found.changed, found.is_left, report.is_clean) == (Action.REPAIR, True, False, True)
            assert site.serviced().found == ()
        site.write("later")
        site.assert_agreed("before", "decided", "later")
        sleeper.wake()
        site.write("last")
        site.assert_agreed("before", "decided", "later", "last")


@every_tier
def test_an_open_transaction_is_not_aborted_by_a_database_that_may_be_outdated(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server cut off from its standbys has no row yet of the new primary's dual write."""

    def is_cut_off(*_: object, **__: object) -> None:
        raise NotDurableError("cut off from its standbys")

    site.falls_asleep(PausePoint.AFTER_PREPARE, lambda writer: write(writer, "open"))
    with monkeypatch.context() as patched, site.writer() as writer:
        patched.setattr(SqlAlchemyDatabase, "make_durable", is_cut_off)
        with pytest.raises(NotDurableError):
            writer.recover()
    assert site.world.described(site.kafka_id)[0] == "Ongoing"
    site.write("later")
    site.assert_agreed("later")


def test_kafka_becomes_unreachable_while_the_log_is_read(site: Site) -> None:
    """The row is locked meanwhile, so its transaction ends as soon as no broker can be reached."""
    site.write("before")
    site.decided()
    let_end(site, Way.OPERATOR)
    has_left = False

    def leave(point: PausePoint) -> None:
        nonlocal has_left
        if point is PausePoint.AFTER_INIT and not has_left:
            site.emulator.crash_node(0)
            has_left = True

    with site.writer(pause=leave, resolve_timeout_ms=LONG_MS, max_block_ms=LONG_MS) as writer:
        with pytest.raises(KafkaUnreachableError, match="neither side was changed"):
            write(writer, "refused")
        site.emulator.start_node(0)
        until(lambda: not writer.coordinator.owned.availability.is_away)
        write(writer, "later")
    site.assert_agreed("before", "decided", "later")


@pytest.mark.parametrize("at", PausePoint)
@every_tier
def test_a_process_that_sleeps_at_any_point(site: Site, tier: Tier, at: PausePoint) -> None:
    """The process sleeps, its transaction is aborted, another process repairs it, and the first one continues."""
    is_decided = at not in UNTIL_DECIDED
    is_prepared = at in list(PausePoint)[list(PausePoint).index(PausePoint.AFTER_PREPARE) :]
    site.write("before")
    sleeper = site.falls_asleep(at, lambda writer: write(writer, "asleep"))
    let_end(site, first(Way.TIMEOUT, tier) if is_prepared else Way.OPERATOR)
    outcome = site.recover()
    assert (outcome is Outcome.REPAIRED) is (at is PausePoint.AFTER_DATABASE_COMMIT)
    site.write("later")
    expected = ["before", "asleep", "later"] if is_decided else ["before", "later"]
    site.assert_agreed(*expected)
    sleeper.wake()
    assert site.recover() is Outcome.NOTHING
    site.write("last")
    site.assert_agreed(*expected, "last")


@pytest.mark.parametrize("via", ["recover", "write"])
@pytest.mark.parametrize("at", PausePoint)
@every_tier
def test_a_repair_that_sleeps_at_any_point(site: Site, tier: Tier, at: PausePoint, via: str) -> None:
    """The second crash: in the repair, whose transaction is aborted too; both processes go on at last."""
    uses: dict[str, Callable[[DualWriter], object]] = {
        "recover": DualWriter.recover,
        "write": lambda writer: write(writer, "asleep"),
    }
    is_decided = at not in UNTIL_DECIDED
    site.write("before")
    writing = site.decided()
    let_end(site, first(Way.TIMEOUT, tier))
    repairing = site.falls_asleep(at, uses[via])
    let_end(site, Way.INITIALISED)
    outcome = site.recover()
    assert (outcome is Outcome.NOTHING) is (at is PausePoint.AFTER_KAFKA_COMMIT)
    site.write("later")
    asleep = ["asleep"] if is_decided and via == "write" else []
    site.assert_agreed("before", "decided", *asleep, "later")
    repairing.wake()
    writing.wake()
    site.write("last")
    site.assert_agreed("before", "decided", *asleep, "later", "last")


@pytest.mark.parametrize("at", UNTIL_DECIDED)
@every_tier
def test_two_processes_that_repair_at_once(site: Site, store: Database, tier: Tier, at: PausePoint) -> None:
    """One process loses its lock at any point of its repair; the other repairs, while the first one continues."""
    site.write("before")
    site.decided()
    let_end(site, first(Way.TIMEOUT, tier))
    late = site.falls_asleep(at, lambda writer: write(writer, "late"))

    def rouse_late(point: PausePoint) -> None:
        if point is PausePoint.AFTER_INIT:
            late.rouse()

    while "other" not in rows(store.aside):  # the late one may fence it, and then fails itself
        with suppress(FencedError, AbortableError):
            site.write("other", pause=rouse_late)
    late.wake()
    assert late.error is not None
    site.assert_agreed("before", "decided", "other")


@every_tier
def test_a_chain_of_aborts(site: Site, tier: Tier) -> None:
    """The repair is aborted again, several times, in every way."""
    site.write("before")
    site.decided("1")
    for number, way in enumerate([Way.OPERATOR, Way.INITIALISED, first(Way.TIMEOUT, tier), Way.MISUSED], start=2):
        let_end(site, way)
        site.decided(str(number))
    let_end(site, Way.EXPIRED)
    assert site.recover() is Outcome.REPAIRED
    site.write("later")
    site.assert_agreed("before", "1", "2", "3", "4", "5", "later")


@bounded
def test_the_writer_repairs_when_it_learns_of_the_abort(site: Site) -> None:
    aborted: list[str] = []

    def abort(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT and not aborted:
            aborted.append("once")
            site.world.abort_by_timeout()

    with site.writer(abort) as writer:
        write(writer, "decided")
        assert writer.state is SlotState.READY
        assert writer.in_doubt.is_empty
        write(writer, "later")
    site.assert_agreed("decided", "later")


def test_a_rollback_after_the_transaction_timeout_is_not_called_a_take_over(
    store: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Tier 4 refuses it as it refuses an older process, so that both reasons are named."""
    why = "another process has taken it over, or the broker has aborted its transaction after transaction.timeout.ms"
    with site_of(Tier.BOUNDED_V1, store) as site:
        site.write("before")
        aborted: list[str] = []

        def abort(point: PausePoint) -> None:
            if point is PausePoint.AFTER_PREPARE and not aborted:
                aborted.append("once")
                site.world.abort_by_timeout()
                raise InterruptedError

        with site.writer(abort) as writer:
            with pytest.raises(InterruptedError):
                write(writer, "too slow")
            assert f"Kafka fences this writer, because {why}" in caplog.text
            with pytest.raises(FencedError, match=f"has lost transactional id .*: {why}; nothing was written"):
                write(writer, "refused")
        site.write("by a new writer")
        site.assert_agreed("before", "by a new writer")


@bounded
def test_a_repair_that_is_aborted_again_is_repeated(site: Site) -> None:
    """By its own timeout, after its own decision: recover() says so, and the next one publishes it."""

    def abort(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT:
            site.world.abort_by_timeout()

    site.decided()
    site.world.abort_by_timeout()
    with site.writer(abort) as writer:
        for _ in range(2):
            with pytest.raises(RetriableError, match="they are owed now"):
                writer.recover()
            assert writer.state is SlotState.IN_DOUBT
        write(writer, "later")  # its own transaction is aborted, and then the repair
        assert writer.state is SlotState.IN_DOUBT
    assert site.committed() == []
    assert site.recover() is Outcome.REPAIRED
    site.assert_agreed("decided", "later")


@pytest.mark.parametrize("way", [Way.OPERATOR, Way.TIMEOUT])
@every_tier
def test_a_transaction_is_aborted_after_it_was_found_open(site: Site, tier: Tier, way: Way) -> None:
    """Between the description of the id and the commit; no caller gets a loss."""
    site.write("before")
    site.decided()
    aborts = [PausePoint.AFTER_INIT]

    def abort(point: PausePoint) -> None:
        if point in aborts:
            aborts.clear()
            let_end(site, first(way, tier))

    with site.writer(abort) as writer:
        try:
            write(writer, "first")
        except FencedError:  # tier 1 took the id over first, so that an operator fences it
            assert tier is Tier.KEEP_PREPARED
            site.write("first")
    site.assert_agreed("before", "decided", "first")


# ---- committed: never published again -------------------------------------------------------------------------------


COMMITTED_BY: Final = {
    "its owner, which hears no answer": PausePoint.AFTER_KAFKA_COMMIT,
    "another process, which dies": PausePoint.AFTER_COMPLETION,
    "another process, which takes over": PausePoint.AFTER_TAKEOVER,
}


@pytest.mark.parametrize("via", ["recover", "write"])
@pytest.mark.parametrize("by", COMMITTED_BY)
@every_way
def test_committed_records_are_never_published_again(store: Database, tier: Tier, way: Way, by: str, via: str) -> None:
    """Committed in any way, and with any later use of the id."""
    with site_of(tier, store, nodes=nodes_for(way)) as site:
        site.write("before")
        at = COMMITTED_BY[by]
        if at is PausePoint.AFTER_KAFKA_COMMIT:
            owner = site.falls_asleep(at, lambda writer: write(writer, "decided"))
        else:
            owner = site.decided()
            site.falls_asleep(at, DualWriter.recover)
        let_end(site, way)
        if way is Way.USED and tier in BY_STORED_PAIR:  # it looks like a database that went back
            with pytest.raises(DatabaseWentBackError, match="another program uses the id"):
                site.recover() if via == "recover" else site.write("refused")
            acknowledge(store, site.emulator)
        if via == "recover":
            assert site.recover() is Outcome.NOTHING
        site.write("later")
        site.assert_agreed("before", "decided", "later")
        owner.wake()
        assert site.recover() is Outcome.NOTHING
        site.assert_agreed("before", "decided", "later")


@pytest.mark.parametrize(
    "ways", [[Way.USED, Way.MISUSED], [Way.MISUSED, Way.USED], [Way.EXPIRED, Way.MISUSED, Way.USED]]
)
@pytest.mark.parametrize("is_aborted", [True, False])
@every_tier
def test_between_aborted_transactions_of_the_same_producer(
    site: Site, store: Database, tier: Tier, is_aborted: bool, ways: list[Way]
) -> None:
    """The log has transactions of the same producer before and after it that ended in the other way."""
    site.write("before")
    let_end(site, Way.MISUSED)
    let_end(site, Way.USED)
    let_end(site, Way.MISUSED)
    if is_aborted:
        site.decided()
        let_end(site, Way.OPERATOR)
    else:
        site.falls_asleep(PausePoint.AFTER_KAFKA_COMMIT, lambda writer: write(writer, "decided"))
    for way in ways:
        let_end(site, way)
    if ways[-1] is Way.USED and not is_aborted and tier in BY_STORED_PAIR:  # as if the database went back
        acknowledge(store, site.emulator)
    assert site.recover() is (Outcome.REPAIRED if is_aborted else Outcome.NOTHING)
    site.write("later")
    site.assert_agreed("before", "decided", "later")


@pytest.mark.parametrize("is_aborted", [True, False])
@every_tier
def test_another_producer_holds_the_last_stable_offset(site: Site, is_aborted: bool) -> None:
    """Records before its open transaction in the log are not decided for readers; the marker shows the end anyway."""
    site.write("before")
    holder = site.world.ready(transactional_id="holder", transaction_timeout_ms=900_000)
    holder.begin_transaction()
    holder.send("orders", FOREIGN, partition=0).result(60)
    if is_aborted:
        site.decided()
    else:
        site.falls_asleep(PausePoint.AFTER_KAFKA_COMMIT, lambda writer: write(writer, "decided"))
    let_end(site, Way.INITIALISED)
    assert site.recover() is (Outcome.REPAIRED if is_aborted else Outcome.NOTHING)
    site.write("later")
    holder.abort_transaction()
    site.assert_agreed("before", "decided", "later")


@pytest.mark.parametrize("is_aborted", [True, False])
@every_tier
def test_a_marker_that_comes_late(site: Site, is_aborted: bool) -> None:
    """While it is held, nothing is guessed: the id cannot be used, and neither side is changed."""
    site.write("before")
    markers = site.emulator.faults.add(Fault(api="WriteTxnMarkers", action=Hold(), topic="orders", count=None))
    operator = threading.Thread(target=let_end, args=(site, Way.OPERATOR))
    if is_aborted:
        site.decided()
        operator.start()
    else:
        site.falls_asleep(PausePoint.AFTER_KAFKA_COMMIT, lambda writer: write(writer, "decided"))
    until(lambda: bool(markers.held))
    row = site.row()
    for use in (DualWriter.recover, lambda writer: write(writer, "refused")):
        with site.writer(max_block_ms=500, resolve_timeout_ms=300) as writer, pytest.raises(KafkaTimeoutError):
            use(writer)
    assert site.row() == row
    markers.remove()
    markers.release()
    if is_aborted:
        operator.join()
    site.world.settle()
    assert site.recover() is (Outcome.REPAIRED if is_aborted else Outcome.NOTHING)
    site.write("later")
    site.assert_agreed("before", "decided", "later")


def test_a_log_that_cannot_be_read_in_time_after_the_commit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def times_out(*_: object, is_over: bool = False) -> None:
        assert is_over
        raise OutcomeUnknown("no leader", transactional_id="tid", prepared_state="")

    site.decided()
    with site.writer() as writer, monkeypatch.context() as patched:
        patched.setattr(KafkaParticipant, "end_of", times_out)
        with pytest.raises(KafkaTimeoutError, match="cannot be used yet: no leader"):
            writer.recover()
    assert site.recover() is Outcome.NOTHING
    site.assert_agreed("decided")
