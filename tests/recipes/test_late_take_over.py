"""Take-overs by a process that sleeps: its requests may arrive after the lock is gone and others have written."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from typing import Any, Final

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Fault, FaultHandle, Hold
from dualwrite.client import monotonic
from dualwrite.errors import BoundExceededError, DatabaseWentBackError, FencedError, PreparedTransactionLost
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.recovery.service import Action, RecoveryReport, RecoveryService
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from tests.crash.scenario import Crash, crash_at
from tests.producer.tiers import World, bounded, by_stored_pair, every_tier, on
from tests.recipes.repairs import acknowledge
from tests.recipes.test_repair import store
from tests.recipes.tiers import die, forget_manifest, rows, world, write, writer_of
from tests.support.conditions import until
from tests.support.databases import Database
from tests.support.kafka_ids import kafka_id_of

__all__ = ["store", "world"]  # fixtures

DEADLINE_S: Final = 30

with_exact_end = on(Tier.STORED_PAIR, Tier.BOUNDED)
with_claim = on(Tier.BOUNDED_V1)


class Taker:
    """A process that takes the id over, in a thread, on connections that can be cut; its requests can be held."""

    def __init__(self, world: World, store: Database) -> None:
        self._world = world
        self._store = store
        self._held: list[FaultHandle] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def hold(self, api: str, *, skip: int = 0) -> None:
        """Keep its request number `skip` to take over, not counting those that detect the tier."""
        self._held.append(
            self._world.emulator.faults.add(
                Fault(
                    api=api,
                    action=Hold(),
                    client_id="taker",
                    skip=skip,
                    predicate=lambda request: not getattr(request, "keep_prepared_txn", False),
                )
            )
        )

    def _run(self) -> None:
        try:
            with writer_of(self._world, self._store.engine, client_id="taker", max_block_ms=60_000) as writer:
                writer.recover()
        except BaseException as error:
            self.error = error

    def fall_asleep(self) -> None:
        """Sleep until a request is held; then the database ends its session, and its lock with it."""
        self._thread.start()
        until(lambda: any(handle.held for handle in self._held))
        for handle in self._held:
            if not handle.held:
                handle.remove()
        self._store.cut()

    def wake(self) -> None:
        """Its request arrives, and it finds out."""
        for handle in self._held:
            handle.release()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        self._world.settle()


def decide_and_die(world: World, engine: sa.Engine, value: str) -> None:
    """Commit in the database, and die before the commit in Kafka."""
    with pytest.raises(Crash):
        die(world, engine, PausePoint.AFTER_DATABASE_COMMIT, value)


def assert_repaired(world: World, engine: sa.Engine, *expected: str) -> None:
    with writer_of(world, engine) as writer:
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
        assert writer.recover() == []
    assert world.committed() == rows(engine) == list(expected)


def assert_lost_at_every_recovery(world: World, engine: sa.Engine) -> None:
    for _ in range(3):
        with writer_of(world, engine) as writer, pytest.raises(PreparedTransactionLost):
            writer.recover()


# ---- on brokers of every tier: a crash, and a loss


@pytest.mark.parametrize(
    ("world", "by"),
    [*((tier, "writer") for tier in Tier), (Tier.KEEP_PREPARED, "service"), (Tier.BOUNDED_V1, "service")],
    indirect=["world"],
)
@pytest.mark.parametrize("at", list(PausePoint))
def test_a_crash_at_any_point_leaves_both_sides_agreed(world: World, store: Database, at: PausePoint, by: str) -> None:
    with writer_of(world, store.aside) as writer:
        write(writer, "before")
    with suppress(Crash):  # some points are not reached
        die(world, store.aside, at, "crashed")
    if by == "service":
        planned, done = (serviced(world, store, apply=apply).found for apply in (False, True))
        assert [found.action for found in planned] == [found.action for found in done]
        assert serviced(world, store).found == ()
    with writer_of(world, store.aside) as writer:
        if by == "writer":
            writer.recover()
        assert writer.recover() == []
        assert sorted(world.committed()) == rows(store.aside)
        write(writer, "later")
    assert sorted(world.committed()) == rows(store.aside)
    assert {"before", "later"} <= set(rows(store.aside))


def serviced(world: World, store: Database, *, apply: bool = True, **settings: Any) -> RecoveryReport:
    where: dict[str, Any] = {"transactional_ids": ["tid"], "bootstrap_servers": world.emulator.bootstrap_servers}
    with RecoveryService(store.aside, min_age_ms=0, **where, **settings) as service:
        return service.recover() if apply else service.plan()


@bounded
def test_a_loss_is_raised_by_the_write_itself_and_by_every_recovery(world: World, store: Database) -> None:
    def pause(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT and "lost" in rows(store.aside):
            world.abort_by_timeout()
            forget_manifest(store.aside)

    with writer_of(world, store.aside, pause=pause) as writer:
        write(writer, "before")
        with pytest.raises(PreparedTransactionLost) as raised:
            write(writer, "lost")
        assert writer.state is SlotState.IN_DOUBT
        assert writer.in_doubt == PreparedTxnState(raised.value.prepared_state)
        for _ in range(2):
            with pytest.raises(PreparedTransactionLost):
                write(writer, "refused")
            with pytest.raises(PreparedTransactionLost):
                writer.recover()
    with writer_of(world, store.aside) as another, pytest.raises(PreparedTransactionLost):
        another.recover()
    assert rows(store.aside) == ["before", "lost"]
    world.ready(transactional_id=kafka_id_of(store.aside, "tid")).close()  # an operator has dealt with it
    with writer_of(world, store.aside) as writer:
        write(writer, "later")
    assert world.committed() == ["before", "later"]


@bounded
def test_a_loss_between_reading_the_rows_and_kafka_is_reported(
    world: World, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the earlier row, the abort would be an old one."""

    def pause(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT and "lost" in rows(store.aside):
            world.abort_by_timeout()
            forget_manifest(store.aside)

    with writer_of(world, store.aside, pause=pause) as writer:
        write(writer, "before")
        described = RecoveryService._described

        def lose_and_describe(service: RecoveryService, ids: list[str], unseen: list[str]) -> Any:
            with pytest.raises(PreparedTransactionLost):
                write(writer, "lost")
            return described(service, ids, unseen)

        monkeypatch.setattr(RecoveryService, "_described", lose_and_describe)
        (found,) = serviced(world, store).found
    assert found.action is Action.LOST


@every_tier
def test_a_row_that_kafka_has_never_heard_of_is_not_acknowledged_away(world: World, store: Database) -> None:
    """This may be the wrong cluster, and on the right one the row still decides."""
    kafka_id = kafka_id_of(store.aside, "tid")
    state = world.prepared(transactional_id=kafka_id)
    later = f"{state.producer_id}:{state.producer_epoch + 5}"
    with store.aside.begin() as connection:
        values = {"transactional_id": "tid", "prepared_transaction_state": later}
        connection.execute(kafka_transaction_state.insert().values(values))
    (found,) = serviced(world, store, acknowledge_lost=["tid"]).found
    assert (found.action, found.changed, found.is_left) == (Action.FORGOTTEN, False, True)
    assert world.described(kafka_id) == ("Ongoing", state.producer_id, state.producer_epoch)


# ---- an owner that is idle ----------------------------------------------------------------------------------------


@every_tier
def test_an_idle_owner_commits_the_decision_of_its_successor(world: World, store: Database) -> None:
    with writer_of(world, store.aside) as older:
        write(older, "1")
        decide_and_die(world, store.aside, "2")
        write(older, "3")
        assert older.state is SlotState.READY
    assert sorted(world.committed()) == rows(store.aside) == ["1", "2", "3"]


@every_tier
def test_owners_that_take_turns_on_one_id(world: World, store: Database) -> None:
    with writer_of(world, store.aside) as one, writer_of(world, store.aside) as other:
        for number in range(4):
            write(one, f"{number}a")
            write(other, f"{number}b")
    assert sorted(world.committed()) == rows(store.aside)
    assert len(rows(store.aside)) == 8


# ---- requests that arrive late ------------------------------------------------------------------------------------


@with_exact_end
@pytest.mark.parametrize("skip", [0, 1], ids=["first phase", "second phase"])
@pytest.mark.parametrize("left", ["nothing", "undecided", "decided"])
def test_a_late_take_over_leaves_its_successor_alone(world: World, store: Database, left: str, skip: int) -> None:
    with writer_of(world, store.aside) as writer:
        write(writer, "before")
    if left != "nothing":
        at = PausePoint.AFTER_PREPARE if left == "undecided" else PausePoint.AFTER_DATABASE_COMMIT
        with writer_of(world, store.aside, pause=crash_at(at)) as dying, pytest.raises(Crash):
            write(dying, left)
    taker = Taker(world, store)
    taker.hold("EndTxn", skip=skip)
    if not skip:
        taker.hold("InitProducerId")
    taker.fall_asleep()
    decide_and_die(world, store.aside, "of the successor")
    taker.wake()
    assert taker.error is not None
    with writer_of(world, store.aside) as writer:
        assert [found.outcome for found in writer.recover()] == [Outcome.COMMITTED]
        write(writer, "later")
    assert sorted(world.committed()) == rows(store.aside)
    assert "of the successor" in rows(store.aside)


@with_claim
@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("skip", [0, 1], ids=["first phase", "second phase"])
def test_a_late_claim_that_aborts_a_decided_transaction_is_repaired_or_loud(
    world: World, store: Database, skip: int, has_manifest: bool
) -> None:
    """Before transaction.version 2 InitProducerId aborts an open transaction, whichever pair it names."""
    with writer_of(world, store.aside) as writer:
        write(writer, "before")
    taker = Taker(world, store)
    taker.hold("InitProducerId", skip=skip)
    taker.fall_asleep()
    decide_and_die(world, store.aside, "of the successor")
    if not has_manifest:
        forget_manifest(store.aside)
    taker.wake()
    assert isinstance(taker.error, FencedError)
    if has_manifest:
        assert_repaired(world, store.aside, "before", "of the successor")
    else:
        assert_lost_at_every_recovery(world, store.aside)


@with_exact_end
@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_late_end_that_meets_the_next_transaction_of_the_old_owner_is_repaired_or_loud(
    world: World, store: Database, has_manifest: bool
) -> None:
    """The old owner was not fenced yet, so its next transaction has the very pair that was described."""
    taker = Taker(world, store)
    armed = False

    def pause(point: PausePoint) -> None:
        nonlocal armed
        if armed and point is PausePoint.AFTER_DATABASE_COMMIT:
            armed = False
            if not has_manifest:
                forget_manifest(store.aside)
            taker.wake()

    with writer_of(world, store.aside, pause=pause) as older:
        write(older, "before")
        taker.hold("EndTxn")
        taker.fall_asleep()
        armed = True
        with nullcontext() if has_manifest else pytest.raises(PreparedTransactionLost):
            write(older, "decided")
        for _ in range(0 if has_manifest else 2):
            with pytest.raises(PreparedTransactionLost):
                write(older, "refused")
    assert taker.error is not None
    if has_manifest:
        world.settle()
        assert world.committed() == rows(store.aside) == ["before", "decided"]
    else:
        assert_lost_at_every_recovery(world, store.aside)


@by_stored_pair
@pytest.mark.parametrize("at", [PausePoint.AFTER_INIT, PausePoint.AFTER_COMPLETION, PausePoint.AFTER_TAKEOVER])
def test_a_lock_lost_during_a_take_over_writes_nothing(world: World, store: Database, at: PausePoint) -> None:
    def pause(point: PausePoint) -> None:
        if point is at:
            store.cut()
            decide_and_die(world, store.aside, "of the successor")

    with writer_of(world, store.aside) as writer:
        write(writer, "before")
    with writer_of(world, store.engine, pause=pause) as slept, pytest.raises(Exception):  # noqa: B017
        write(slept, "refused")
    with writer_of(world, store.aside) as writer:
        assert [found.outcome for found in writer.recover()] == [Outcome.COMMITTED]
    assert sorted(world.committed()) == rows(store.aside) == ["before", "of the successor"]


# ---- a database that went back in time ----------------------------------------------------------------------------


def restore(engine: sa.Engine, state: PreparedTxnState, *lost: str) -> None:
    """Restore a backup from the time when the row held `state`."""
    with engine.begin() as connection:
        connection.execute(kafka_transaction_state.update().values(prepared_transaction_state=str(state)))
        connection.execute(
            sa.text("DELETE FROM rows WHERE value IN :lost").bindparams(sa.bindparam("lost", lost, expanding=True))
        )


def row(engine: sa.Engine) -> PreparedTxnState:
    with engine.connect() as connection:
        return PreparedTxnState(connection.scalar(sa.select(kafka_transaction_state.c.prepared_transaction_state)))


@every_tier
def test_a_database_that_was_restored_under_a_living_writer(world: World, store: Database) -> None:
    with writer_of(world, store.aside) as writer:
        write(writer, "1")
        backup = row(store.aside)
        write(writer, "2")
        restored = row(store.aside)
        restore(store.aside, backup, "2")
        world.settle()
        before = world.described(kafka_id_of(store.aside, "tid"))
        for _ in range(2):
            with pytest.raises(DatabaseWentBackError, match=f"holds '{backup}'.*'{restored}'"):
                write(writer, "3")
            with pytest.raises(DatabaseWentBackError):
                writer.recover()
        assert world.described(kafka_id_of(store.aside, "tid")) == before
    if world.tier is not Tier.KEEP_PREPARED:  # which leaves no trace of how transactions ended
        with writer_of(world, store.aside) as another, pytest.raises(DatabaseWentBackError, match=f"holds '{backup}'"):
            write(another, "3")
        assert world.described(kafka_id_of(store.aside, "tid")) == before
        acknowledge(store, world.emulator)
    with writer_of(world, store.aside) as another:
        write(another, "3")
    assert rows(store.aside) == ["1", "3"]
    assert world.committed() == ["1", "2", "3"]


@every_tier
def test_a_database_that_was_restored_while_kafka_was_still_to_follow(world: World, store: Database) -> None:
    armed = False

    def pause(point: PausePoint) -> None:
        if armed and point is PausePoint.AFTER_DATABASE_COMMIT:
            raise Crash

    with writer_of(world, store.aside, pause=pause) as writer:
        write(writer, "1")
        backup = row(store.aside)
        armed = True
        with pytest.raises(Crash):
            write(writer, "2")
        assert writer.state is SlotState.IN_DOUBT
        in_doubt = writer.in_doubt
        restore(store.aside, backup, "2")
        for _ in range(2):
            with pytest.raises(DatabaseWentBackError):
                write(writer, "3")
        assert world.described(kafka_id_of(store.aside, "tid"))[0] == "Ongoing"
        with store.aside.begin() as connection:  # it was the wrong backup
            connection.execute(kafka_transaction_state.update().values(prepared_transaction_state=str(in_doubt)))
        armed = False
        assert [found.outcome for found in writer.recover()] == [Outcome.COMMITTED]
    assert world.committed() == ["1", "2"]


# ---- a bound that is over -----------------------------------------------------------------------------------------


@every_tier
@pytest.mark.parametrize(("late_s", "refused"), [(890.0, False), (899.5, True), (2000.0, True)])
def test_no_commit_is_sent_when_the_bound_is_over(
    world: World, store: Database, monkeypatch: pytest.MonkeyPatch, late_s: float, refused: bool
) -> None:
    is_bounded = world.tier in (Tier.BOUNDED, Tier.BOUNDED_V1)
    armed = False
    since_boot_s, ahead_s = monotonic.since_boot_s, 0.0
    monkeypatch.setattr(monotonic, "since_boot_s", lambda: since_boot_s() + ahead_s)

    def pause(point: PausePoint) -> None:
        nonlocal ahead_s
        if armed and point is PausePoint.BEFORE_DATABASE_COMMIT:
            ahead_s += late_s

    with writer_of(world, store.aside, pause=pause) as writer:
        write(writer, "1")
        armed = True
        if refused and is_bounded:
            with pytest.raises(BoundExceededError, match=r"transaction\.timeout\.ms=900000"):
                write(writer, "late")
        else:
            write(writer, "late")
        armed = False
        write(writer, "next")
    assert sorted(world.committed()) == rows(store.aside)
    assert ("late" in rows(store.aside)) is not (refused and is_bounded)
