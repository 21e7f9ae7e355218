"""The commit store, on each database."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.client.transactions.manifest import Manifest
from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import (
    AttemptCondemnedError,
    BatchLostError,
    CheckpointMismatchError,
    SinkError,
    SinkFencedError,
    SinkOptionError,
    StoreWentBackError,
)
from spark_sink.handoff import BatchName, TaskIdentity
from spark_sink.options import OnNewCheckpoint, StoreOptions
from spark_sink.store.attempt_states import LIVE, AttemptStatus, Ended, Ending, Prepared, Verdict
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.rules import query_id_of_job, slot_of
from spark_sink.store.tables import BatchStatus, Decision, StoreTables
from tests.spark.sink_model import QUERY, new_store, task
from tests.spark.store_engines import engine_on
from tests.spark.topic_stores import AnyStore, emulated_store
from tests.support.databases import unique

FAIL, ADOPT = OnNewCheckpoint.FAIL, OnNewCheckpoint.ADOPT
STATE = PreparedTxnState("7:3")
PREPARED = Prepared(STATE, "manifest")
WITHIN_S = 30


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    with engine_on(request.param, request, tmp_path_factory.mktemp("store")) as engine:
        yield engine


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb", "topic"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyStore]:
    if request.param == "topic":
        with emulated_store() as in_topic:
            yield in_topic
        return
    with engine_on(request.param, request, tmp_path_factory.mktemp("shared")) as engine:
        yield new_store(engine)


@pytest.fixture
def sink() -> str:
    return unique("sink").replace("-", "_")


def plan(store: AnyStore, sink: str, query_id: str | None = QUERY) -> int:
    generation = store.plan(sink, query_id=query_id, on_new_checkpoint=FAIL).generation
    assert generation is not None
    return generation


def leased(store: AnyStore, sink: str, generation: int, batch_id: int = 0, partition: int = 0) -> str:
    lease = store.lease(sink, generation, task(batch_id, partition))
    assert lease is not None
    return lease.attempt_id


def prepared(store: AnyStore, sink: str, generation: int, batch_id: int = 0, partition: int = 0) -> str:
    attempt_id = leased(store, sink, generation, batch_id, partition)
    store.mark_prepared(attempt_id, PREPARED, records=2)
    return attempt_id


def decision(
    sink: str,
    generation: int | None,
    *winners: str,
    batch_id: int = 0,
    query_id: str = QUERY,
    digest: str | None = "input",
) -> Decision:
    return Decision(sink, query_id, batch_id, generation, winners, 2 * len(winners), 0, False, digest)


def decided(store: AnyStore, sink: str, batch_id: int = 0, query_id: str = QUERY) -> None:
    """Do a whole batch with one attempt."""
    generation = plan(store, sink, query_id)
    identity = TaskIdentity(query_id, batch_id, 0, 1, "host-1")
    lease = store.lease(sink, generation, identity)
    assert lease is not None
    store.mark_prepared(lease.attempt_id, PREPARED, records=2)
    store.decide(decision(sink, generation, lease.attempt_id, batch_id=batch_id, query_id=query_id), FAIL)
    store.record(sink, {lease.attempt_id: Ended(Ending.COMMITTED, judged=STATE)})


def status_of(store: AnyStore, sink: str, attempt_id: str) -> AttemptStatus:
    return next(row.status for row in store.attempts(sink) if row.attempt_id == attempt_id)


# ---- tables --------------------------------------------------------------------------------------------------


def test_tables_are_created_by_many_at_once(
    request: pytest.FixtureRequest, tmp_path: object, engine: sa.Engine
) -> None:
    name = {"postgresql": "postgres", "sqlite": "sqlite"}.get(engine.dialect.name, "mariadb")
    with engine_on(name, request, tmp_path) as empty:  # type: ignore[arg-type]
        with ThreadPoolExecutor(4) as threads:
            together = threading.Barrier(4)

            def create(number: int) -> None:
                together.wait(WITHIN_S)
                CommitStore(empty).plan("s", query_id=QUERY, on_new_checkpoint=FAIL)

            list(threads.map(create, range(4)))
        assert [(row.sink_id, row.generation) for row in CommitStore(empty).sinks()] == [("s", 4)]


def test_a_manifest_of_the_longest_kind_is_stored(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    attempt_id = leased(store, sink, generation)
    longest = Prepared(STATE, "m" * 60_000)
    store.mark_prepared(attempt_id, longest, records=2)
    store.decide(decision(sink, generation, attempt_id), FAIL)
    assert store.still_wanted({attempt_id: Verdict.COMMIT}, [attempt_id]) == {attempt_id: longest}


# ---- replacing the transaction of an attempt -------------------------------------------------------------------

OTHER = Prepared(PreparedTxnState("7:9"), "another manifest")


def committing(store: AnyStore, sink: str) -> str:
    """Return an attempt that is decided."""
    generation = plan(store, sink)
    attempt_id = prepared(store, sink, generation)
    store.decide(decision(sink, generation, attempt_id), FAIL)
    return attempt_id


def test_the_transaction_of_a_decided_attempt_is_replaced_once(store: AnyStore, sink: str) -> None:
    attempt_id = committing(store, sink)
    wanted = {attempt_id: Verdict.COMMIT}
    third = Prepared(PreparedTxnState("7:11"), "m")
    assert not store.replace(sink, attempt_id, third.state, OTHER), "the row has not this one"
    assert store.still_wanted(wanted, wanted) == {attempt_id: PREPARED}
    assert store.replace(sink, attempt_id, STATE, OTHER)
    assert store.still_wanted(wanted, wanted) == {attempt_id: OTHER}
    assert store.replace(sink, attempt_id, STATE, OTHER), "another process with the same pair finds its own"
    assert not store.replace(sink, attempt_id, STATE, third)
    assert store.still_wanted(wanted, wanted) == {attempt_id: OTHER}


def test_only_rows_to_be_committed_are_replaced(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    undecided = prepared(store, sink, generation)
    assert not store.replace(sink, undecided, STATE, OTHER)
    plan(store, sink)
    assert not store.replace(sink, undecided, STATE, OTHER), "it was condemned"
    done = committing(store, sink)
    store.record(sink, {done: Ended(Ending.COMMITTED, judged=STATE)})
    assert not store.replace(sink, done, STATE, OTHER)
    other_sink = unique("sink").replace("-", "_")
    lost = committing(store, other_sink)
    assert store.mark_lost(other_sink, {lost: STATE}, "by hand") == 1
    assert not store.replace(other_sink, lost, STATE, OTHER)


def test_two_that_replace_at_once(store: AnyStore, sink: str) -> None:
    attempt_id = committing(store, sink)
    anew = [Prepared(PreparedTxnState(f"7:{epoch}"), f"{epoch}") for epoch in range(20, 26)]
    with ThreadPoolExecutor(len(anew)) as threads:
        replaced = list(threads.map(lambda each: store.replace(sink, attempt_id, STATE, each), anew))
    assert replaced.count(True) == 1
    assert store.still_wanted({attempt_id: Verdict.COMMIT}, [attempt_id]) == {attempt_id: anew[replaced.index(True)]}


@pytest.mark.parametrize("ending", [Ending.COMMITTED, Ending.LOST])
def test_an_ending_of_a_pair_that_was_replaced_is_not_recorded(store: AnyStore, sink: str, ending: Ending) -> None:
    attempt_id = committing(store, sink)
    assert store.replace(sink, attempt_id, STATE, OTHER)
    outdated = store.record(sink, {attempt_id: Ended(ending, RuntimeError("of the old pair"), judged=STATE)})
    assert outdated[attempt_id].ending is Ending.LEFT
    assert status_of(store, sink, attempt_id) is AttemptStatus.COMMITTING
    assert store.mark_lost(sink, {attempt_id: STATE}, "of the old pair") == 0
    recorded = store.record(sink, {attempt_id: Ended(ending, RuntimeError("of this pair"), judged=OTHER.state)})
    assert recorded[attempt_id].ending is ending
    assert status_of(store, sink, attempt_id) is AttemptStatus[ending.name]


def test_missing_tables_are_named(request: pytest.FixtureRequest, tmp_path: object, engine: sa.Engine) -> None:
    name = {"postgresql": "postgres", "sqlite": "sqlite"}.get(engine.dialect.name, "mariadb")
    with engine_on(name, request, tmp_path) as empty:  # type: ignore[arg-type]
        for call in (
            lambda: plan(CommitStore(empty, create_tables=False), "s"),
            lambda: CommitStore(empty).sinks(),
            lambda: CommitStore(empty).decide(decision("s", 1), FAIL),
        ):
            with pytest.raises(SinkError, match="init-store"):
                call()


def test_a_schema_of_its_own(engine: sa.Engine) -> None:
    if engine.dialect.name != "postgresql":
        pytest.skip("schemas are Postgres'")
    schema = unique("store").replace("-", "_")
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    store = CommitStore(engine, schema=schema)
    decided(store, "s")
    assert set(sa.inspect(engine).get_table_names(schema=schema)) == {
        table.name for table in StoreTables(None).metadata.sorted_tables
    }
    assert [row.status for row in store.batches("s")] == [BatchStatus.DONE]


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def open_store(url: str | None, env: str | None = None) -> CommitStore:
        return CommitStore.open(StoreOptions(url=url, url_env=env, schema=None))

    monkeypatch.setenv("THE_STORE", f"sqlite:///{tmp_path / 'store.db'}")
    assert open_store(None, "THE_STORE").engine is open_store(None, "THE_STORE").engine
    for url, env, sentence in (
        (None, "NO_STORE", "spark.executorEnv.NO_STORE"),
        (None, None, "commitStore.url"),
        ("nonsense", None, "is not a SQLAlchemy URL"),
        ("oracle://x", None, "not in oracle"),
        ("postgresql+nodriver://x", None, r"driver of postgresql\+nodriver:// cannot be loaded .*nothing was written"),
    ):
        with pytest.raises(SinkOptionError, match=sentence):
            open_store(url, env)


# ---- generations ---------------------------------------------------------------------------------------------


def test_a_plan_fences_and_condemns(store: AnyStore, sink: str) -> None:
    first = plan(store, sink)
    is_open, is_prepared = leased(store, sink, first), prepared(store, sink, first, partition=1)
    planned = store.plan(sink, query_id=QUERY, on_new_checkpoint=FAIL)
    assert planned.generation == first + 1
    assert [(c.attempt_id, c.verdict, c.prepared_state) for c in planned.claims] == [
        (is_open, Verdict.ABORT, PreparedTxnState()),
        (is_prepared, Verdict.ABORT, STATE),
    ]

    with pytest.raises(SinkFencedError):
        store.lease(sink, first, task(0, 0))
    with pytest.raises(SinkFencedError):
        store.is_decided_for(sink, first, task(0, 0), FAIL)
    with pytest.raises(AttemptCondemnedError):
        store.mark_prepared(is_open, PREPARED, records=1)
    with pytest.raises(AttemptCondemnedError if isinstance(store, CommitStore) else SinkOptionError):
        store.stage(is_open, lambda connection: None)
    with pytest.raises(SinkFencedError):
        store.decide(decision(sink, first, is_prepared), FAIL)
    assert not store.is_open(is_open)
    assert store.batches(sink) == []


def test_a_plan_waits_for_a_lease_and_a_lease_for_a_plan(store: AnyStore, sink: str) -> None:
    """Whichever is first, no attempt of the older generation stays OPEN."""
    generation = plan(store, sink)
    for _ in range(5):
        with ThreadPoolExecutor(5) as threads:
            together = threading.Barrier(5)

            def lease(partition: int, generation: int = generation, together: threading.Barrier = together) -> None:
                together.wait(WITHIN_S)
                try:
                    store.lease(sink, generation, task(0, partition % 2))
                except SinkFencedError:
                    return

            leases = [threads.submit(lease, number) for number in range(4)]
            together.wait(WITHIN_S)
            generation = plan(store, sink)
            for future in leases:
                future.result(WITHIN_S)
        assert store.attempts(sink, [AttemptStatus.OPEN]) == []


def test_leases_at_once_are_of_different_ids(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda _: store.lease(sink, generation, task(0, 0)), range(8)))
    assert {lease.transactional_id for lease in taken if lease} == {f"{sink}-0-{slot}" for slot in range(8)}


def test_the_id_of_an_aborted_attempt_is_never_leased_again(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    taken = [store.lease(sink, generation, task(0, 0)) for _ in range(3)]
    gone = taken[1]
    assert gone is not None
    store.condemn(sink)
    store.record(sink, {gone.attempt_id: Ended(Ending.ABORTED)})
    assert leased_slots(store, sink, generation, 2) == [3, 4]  # 0 and 2 are still live


@pytest.mark.parametrize("losers", [[False, False, False], [True, True, True], [False, True, False]])
def test_each_losing_copy_uses_up_one_id(store: AnyStore, sink: str, losers: Sequence[bool]) -> None:
    """Of two copies of a task, the first one loses or the second: the id of the other one is leased again."""
    leased_ids: set[str] = set()
    gone: set[str] = set()
    for batch_id, first_loses in enumerate(losers):
        generation = plan(store, sink)
        copies = [prepared(store, sink, generation, batch_id) for _ in range(2)]
        loser, winner = copies if first_loses else reversed(copies)
        ids = {row.attempt_id: row.transactional_id for row in store.attempts(sink) if row.attempt_id in copies}
        assert gone.isdisjoint(ids.values())
        store.decide(decision(sink, generation, winner, batch_id=batch_id), FAIL)
        ended = {winner: Ended(Ending.COMMITTED, judged=STATE), loser: Ended(Ending.ABORTED)}
        assert store.record(sink, ended) == ended
        leased_ids.update(ids.values())
        gone.add(ids[loser])
    assert len(leased_ids) == len(losers) + 1
    store.retire_orphans(sink, {f"{sink}-0-2": "7:3"}, "")  # of another store: its leased ids are unknown
    assert min(leased_slots(store, sink, plan(store, sink), 2)) >= 3


def test_a_retired_id_outlives_its_attempt(store: AnyStore, sink: str) -> None:
    gone = leased(store, sink, plan(store, sink))
    store.condemn(sink)
    store.record(sink, {gone: Ended(Ending.ABORTED)})
    for batch_id in range(4):
        decided(store, sink, batch_id)
    store.prune(sink, 1)
    assert gone not in [row.attempt_id for row in store.attempts(sink)]
    generation = plan(store, sink)
    assert leased_slots(store, sink, generation, 1) == [1]
    assert leased_slots(store, sink, generation, 1, partition=1) == [0]


def test_the_id_of_a_repaired_attempt_is_not_leased_again(store: AnyStore, sink: str) -> None:
    """A process that was about to repair it, too, may still send InitProducerId."""
    generation = plan(store, sink)
    winner = prepared(store, sink, generation)
    store.decide(decision(sink, generation, winner), FAIL)
    anew = Prepared(PreparedTxnState("7:5"), "manifest")
    assert store.replace(sink, winner, STATE, anew)
    store.record(sink, {winner: Ended(Ending.COMMITTED, judged=anew.state)})
    assert leased_slots(store, sink, plan(store, sink), 1) == [1]


def leased_slots(store: AnyStore, sink: str, generation: int, count: int, partition: int = 0) -> list[int]:
    taken = [store.lease(sink, generation, task(9, partition)) for _ in range(count)]
    return [slot_of(lease.transactional_id) for lease in taken if lease]


def test_the_id_of_a_committed_attempt_is_leased_again(store: AnyStore, sink: str) -> None:
    decided(store, sink)
    assert leased_slots(store, sink, plan(store, sink), 1) == [0]


def test_an_unknown_sink_has_no_generation(store: AnyStore, sink: str) -> None:
    with pytest.raises(SinkError, match="does not have the sink"):
        store.lease(sink, 1, task(0, 0))
    with pytest.raises(SinkError, match="does not have the sink"):
        store.decide(decision(sink, 1), FAIL)


# ---- decisions -----------------------------------------------------------------------------------------------


def test_a_decision_is_made_once(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    winner, loser = prepared(store, sink, generation), prepared(store, sink, generation, partition=1)
    asked = decision(sink, generation, winner)
    first = store.decide(asked, FAIL)
    assert first.anew
    assert {claim.attempt_id: claim.verdict for claim in first.claims} == {
        winner: Verdict.COMMIT,
        loser: Verdict.ABORT,
    }
    assert set(first.claims) == set(store.claims(sink))
    again = store.decide(asked, FAIL, last=lambda: pytest.fail("decided before"))
    assert (again.anew, again.records) == (False, 2)
    assert store.lease(sink, generation, task(0, 3)) is None
    assert store.is_decided_for(sink, generation, task(0, 3), FAIL)

    store.record(sink, {winner: Ended(Ending.COMMITTED, judged=STATE)})
    assert [row.status for row in store.batches(sink)] == [BatchStatus.COMMIT]  # the loser is still open
    store.record(sink, {loser: Ended(Ending.ABORTED)})
    (row,) = store.batches(sink)
    assert (row.status, row.attempts, row.records, row.generation) == (BatchStatus.DONE, 1, 2, generation)
    assert row.done_at is not None
    assert store.attempts(sink, LIVE) == []


@pytest.mark.parametrize("status", ["open", "condemned", "of another batch", "unknown"])
def test_winners_must_be_prepared(store: AnyStore, sink: str, status: str) -> None:
    generation = plan(store, sink)
    losers: dict[str, Callable[[], str]] = {
        "open": lambda: leased(store, sink, generation, 0, 1),
        "condemned": lambda: prepared(store, sink, generation, 0, 1),
        "of another batch": lambda: prepared(store, sink, generation, 1, 1),
        "unknown": lambda: "nobody",
    }
    bad = losers[status]()
    if status == "condemned":
        assert store.condemn(sink) == 1
    good = prepared(store, sink, generation)
    with pytest.raises(SinkError if status == "of another batch" else AttemptCondemnedError):
        store.decide(decision(sink, generation, good, bad), FAIL)
    assert store.batches(sink) == []
    assert store.claims(sink, [Verdict.COMMIT]) == ()


def test_a_transaction_of_another_cluster_is_not_named(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    here, unknown = PreparedTxnState(f"{uuid.uuid4().int >> 66}:3"), PreparedTxnState(f"{uuid.uuid4().int >> 66}:4")
    text = str(Manifest(here, "here", (), has_offsets=False))
    for partition, row in enumerate([Prepared(here, text), Prepared(unknown, "")]):
        store.mark_prepared(leased(store, sink, generation, 0, partition), row, records=0)
    assert store.named([here, unknown], "here") == {here, unknown}
    assert store.named([here, unknown], "elsewhere") == {unknown}


def test_an_orphan_is_not_known_by_an_attempt_of_another_cluster(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    text = str(Manifest(STATE, "here", (), has_offsets=False))
    attempt_id = leased(store, sink, generation)
    store.mark_prepared(attempt_id, Prepared(STATE, text), records=0)
    store.decide(decision(sink, generation, attempt_id), FAIL)
    store.record(sink, {attempt_id: Ended(Ending.COMMITTED, judged=STATE)})
    name = f"{sink}-0-0"
    for cluster_id, known in (("here", AttemptStatus.COMMITTED), ("", AttemptStatus.COMMITTED), ("elsewhere", None)):
        assert store.orphans(sink, {name: str(STATE)}, cluster_id) == {name: known}
        assert store.retire_orphans(sink, {name: str(STATE)}, cluster_id) == {name: known}


def test_a_decision_of_another_driver_is_not_taken_for_ones_own(store: AnyStore, sink: str) -> None:
    mine = decision(sink, generation := plan(store, sink), prepared(store, sink, generation))
    assert store.resolve(mine) is None
    decided(store, sink)
    with pytest.raises(SinkError, match="tasks have written it again"):
        store.resolve(mine)
    assert status_of(store, sink, mine.winners[0]) is AttemptStatus.ABORTING


def test_claims_are_handed_out_durably(engine: sa.Engine, sink: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision that is found may be visible and not on the disk yet: a call that changes nothing makes it so."""
    store, job = CommitStore(engine), query_id_of_job("nightly", None)
    monkeypatch.setattr("spark_sink.store.transactions.witness", lambda connection: False)
    leave_no_trace, written = store._transactions._leave_no_trace, list[sa.Connection]()

    def leave(connection: sa.Connection) -> None:
        leave_no_trace(connection)
        written.append(connection)

    monkeypatch.setattr(store._transactions, "_leave_no_trace", leave)
    generation = plan(store, sink, job)
    lease = store.lease(sink, generation, TaskIdentity(job, 0, 0, 1, "host-1"))
    assert lease is not None
    attempt_id = lease.attempt_id
    store.mark_prepared(attempt_id, PREPARED, records=2)
    taken = decision(sink, generation, attempt_id, query_id=job)
    store.decide(taken, FAIL)
    assert written == [], "the decision is a change itself"
    store.replace(sink, attempt_id, STATE, OTHER)
    calls: list[Callable[[], object]] = [
        lambda: store.plan(sink, query_id=job, batch_id=0, on_new_checkpoint=FAIL).claims,
        lambda: store.plan(sink, query_id=None, on_new_checkpoint=FAIL).claims,
        lambda: store.decide(taken, FAIL).claims,
        lambda: store.resolve(taken),
        lambda: store.replace(sink, attempt_id, STATE, OTHER),
    ]
    for number, call in enumerate(calls, 1):
        assert call()
        assert len(written) == number
    assert store.sinks() == [row for row in store.sinks() if "/" not in row.sink_id]


def test_a_failure_inside_the_decision_undoes_it(store: AnyStore, sink: str) -> None:
    if not isinstance(store, CommitStore):
        pytest.skip("nothing runs inside a record")
    generation = plan(store, sink)
    winner = prepared(store, sink, generation)

    def fail(connection: sa.Connection) -> None:
        raise LookupError("no price")

    def swallow(connection: sa.Connection) -> None:
        with pytest.raises(sa.exc.DBAPIError):
            connection.execute(sa.text("SELECT no_such_column FROM dw_sink"))

    def end(connection: sa.Connection) -> None:
        connection.commit()

    def end_past_sqlalchemy(connection: sa.Connection) -> None:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.rollback()

    for inside in (fail, swallow, end, end_past_sqlalchemy):
        with pytest.raises(Exception) as raised:
            store.decide(decision(sink, generation, winner), FAIL, inside)
        assert not isinstance(raised.value, AssertionError)
        assert store.batches(sink) == []
        assert status_of(store, sink, winner) is AttemptStatus.PREPARED
    assert store.decide(decision(sink, generation, winner), FAIL).anew


def test_batches_of_nothing_are_done_at_once(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    assert store.decide(decision(sink, generation), FAIL).claims == ()
    assert store.decide(decision(sink, None, batch_id=1), FAIL).anew
    assert [row.status for row in store.batches(sink)] == [BatchStatus.DONE] * 2

    leased(store, sink, generation, 2)
    with pytest.raises(SinkFencedError, match="another driver"):
        store.decide(decision(sink, None, batch_id=2), FAIL)


def test_a_batch_that_was_decided_with_other_input(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    store.decide(decision(sink, generation, prepared(store, sink, generation), digest="aa"), FAIL)
    assert not store.decide(decision(sink, generation, digest="aa"), FAIL).anew
    with pytest.raises(CheckpointMismatchError, match="requireDigest=false"):
        store.decide(decision(sink, generation, digest=None), FAIL)
    assert not store.decide(replace(decision(sink, generation, digest=None), needs_digest=False), FAIL).anew
    with pytest.raises(CheckpointMismatchError, match="other source offsets"):
        store.decide(decision(sink, generation, digest="bb"), FAIL)
    with pytest.raises(SinkError, match="but tasks have written it again"):
        store.decide(decision(sink, generation, "somebody else", digest="aa"), FAIL)


def test_a_restored_older_checkpoint(store: AnyStore, sink: str) -> None:
    for batch_id in range(4):
        decided(store, sink, batch_id)
    assert store.prune(sink, 1) == 3
    generation = plan(store, sink)
    for call in (
        lambda: store.is_decided_for(sink, generation, task(2, 0), FAIL),
        lambda: store.lease(sink, generation, task(2, 0)),
        lambda: store.decide(decision(sink, generation, batch_id=2), FAIL),
        lambda: store.is_decided(sink, QUERY, 2),
    ):
        with pytest.raises(CheckpointMismatchError, match="older copy"):
            call()
    assert store.is_decided(sink, QUERY, 3)
    assert not store.is_decided(sink, QUERY, 4)


# ---- checkpoints ---------------------------------------------------------------------------------------------


def test_a_sink_belongs_to_one_query(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink, "job:first")  # batch jobs have no checkpoint
    assert [row.query_id for row in store.sinks() if row.sink_id == sink] == [None]
    assert not store.is_decided_for(sink, generation, task(0, 0, "other"), FAIL)
    store.decide(decision(sink, generation), FAIL)  # the first to know the query claims the sink for it

    with pytest.raises(CheckpointMismatchError, match="onNewCheckpoint=adopt"):
        plan(store, sink, "other")
    with pytest.raises(CheckpointMismatchError):
        store.is_decided_for(sink, generation, task(0, 0, "other"), FAIL)
    with pytest.raises(CheckpointMismatchError):
        store.decide(decision(sink, generation, query_id="other"), FAIL)
    with pytest.raises(CheckpointMismatchError, match="batch job"):
        plan(store, sink, "job:nightly")
    assert store.plan(sink, query_id="job:nightly", on_new_checkpoint=ADOPT).generation == generation + 1
    assert plan(store, sink) == generation + 2

    adopted = store.plan(sink, query_id="other", on_new_checkpoint=ADOPT)
    assert not store.is_decided_for(sink, adopted.generation, task(0, 0, "other"), FAIL)
    with pytest.raises(CheckpointMismatchError):
        plan(store, sink, QUERY)


# ---- finishing -----------------------------------------------------------------------------------------------


def test_a_repeated_result_of_kafka_changes_nothing(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    winner, loser = prepared(store, sink, generation), leased(store, sink, generation, partition=1)
    store.decide(decision(sink, generation, winner), FAIL)
    answers = {winner: Ended(Ending.COMMITTED, judged=STATE), loser: Ended(Ending.ABORTED)}
    store.record(sink, {winner: Ended(Ending.ABORTED), loser: Ended(Ending.COMMITTED, judged=STATE)})  # not theirs
    store.record(sink, {winner: Ended(Ending.LEFT), loser: Ended(Ending.FAILED)})
    assert len(store.claims(sink)) == 2
    assert store.still_wanted({winner: Verdict.COMMIT, loser: Verdict.COMMIT}, [winner, loser]) == {winner: PREPARED}
    for _ in range(2):
        store.record(sink, answers)
        assert store.claims(sink) == ()
    assert status_of(store, sink, winner) is AttemptStatus.COMMITTED
    assert status_of(store, sink, loser) is AttemptStatus.ABORTED


def test_a_lost_batch_stops_the_sink_until_it_is_acknowledged(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    winners = [prepared(store, sink, generation, partition=n) for n in range(2)]
    store.decide(decision(sink, generation, *winners), FAIL)
    store.record(sink, {winners[0]: Ended(Ending.LOST, RuntimeError("dropped at 7:3" * 200), judged=STATE)})
    (lost,) = store.attempts(sink, [AttemptStatus.LOST])
    assert lost.detail is not None
    assert lost.detail.startswith("dropped at 7:3")
    assert [row.status for row in store.batches(sink)] == [BatchStatus.LOST]
    store.record(sink, {winners[1]: Ended(Ending.COMMITTED, judged=STATE)})
    assert [row.status for row in store.batches(sink)] == [BatchStatus.LOST]

    with pytest.raises(BatchLostError, match="acknowledge"):
        plan(store, sink)
    assert next(row for row in store.sinks() if row.sink_id == sink).generation == generation
    assert store.prune(sink, 1) == 0
    assert store.acknowledge_lost(sink, QUERY, 0)
    assert not store.acknowledge_lost(sink, QUERY, 0)
    assert plan(store, sink) == generation + 1
    assert store.is_decided(sink, QUERY, 0)


def test_the_newest_lost_batch_is_named(store: AnyStore, sink: str) -> None:
    for batch_id in range(3):
        generation = plan(store, sink)
        winner = prepared(store, sink, generation, batch_id)
        store.decide(decision(sink, generation, winner, batch_id=batch_id), FAIL)
    ids = [attempt.attempt_id for attempt in store.attempts(sink, LIVE)]
    assert store.mark_lost(sink, {ids[each]: STATE for each in (1, 2, 0)}, "the cluster is gone") == 3
    named = []
    for _ in range(3):
        with pytest.raises(BatchLostError, match=r"dualwrite spark status --sink \S+ --json") as lost:
            plan(store, sink)
        named.append(int(str(lost.value).split()[1]))
        assert store.acknowledge_lost(sink, QUERY, named[-1])
    assert named == [2, 1, 0]


def test_a_plan_lists_undecided_attempts(store: AnyStore, sink: str) -> None:
    assert store.plan(sink, query_id=None, on_new_checkpoint=FAIL).undecided is None, "the query is not known yet"
    assert store.plan(sink, query_id=QUERY, on_new_checkpoint=FAIL).undecided == BatchName(QUERY, 0)
    for batch_id in range(2):
        decided(store, sink, batch_id)
    assert store.plan(sink, query_id=QUERY, on_new_checkpoint=FAIL).undecided == BatchName(QUERY, 2)
    adopted = store.plan(sink, query_id="other", on_new_checkpoint=OnNewCheckpoint.ADOPT)
    assert adopted.undecided == BatchName("other", 0)


def test_a_plan_of_a_job_lists_undecided_attempts(store: AnyStore, sink: str) -> None:
    job = query_id_of_job("daily", 20261120)
    planned = store.plan(sink, query_id=job, batch_id=20261120, on_new_checkpoint=FAIL)
    assert planned.undecided == BatchName(job, 20261120)


def test_a_lease_costs_four_statements(store: AnyStore, sink: str) -> None:
    """Durability or a lock, the row of the sink, all conditions of the lease, and the attempt."""
    if not isinstance(store, CommitStore):
        pytest.skip("there are no statements")
    generation = plan(store, sink)
    statements: list[str] = []

    def note(*event: object) -> None:
        statements.append(str(event[2]))

    sa.event.listen(store.engine, "before_cursor_execute", note)
    leased(store, sink, generation)
    sa.event.remove(store.engine, "before_cursor_execute", note)
    assert len([each for each in statements if "INSERT" in each]) == 1
    assert len(statements) <= 4


def test_an_operator_marks_a_batch_lost(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    winner, other = prepared(store, sink, generation), leased(store, sink, generation, 1)
    store.decide(decision(sink, generation, winner), FAIL)
    assert store.mark_lost(sink, {winner: STATE, other: STATE}, "the cluster is gone") == 1
    with pytest.raises(BatchLostError):
        plan(store, sink)


# ---- operators -----------------------------------------------------------------------------------------------


def test_only_an_attempt_found_committed_in_kafka_is_acknowledged(store: AnyStore, sink: str) -> None:
    """Other attempts are to be aborted; they may be open in Kafka, and would stay so."""
    attempt_id = prepared(store, sink, plan(store, sink), 0, 0)
    store.condemn(sink)
    assert not store.acknowledge_lost(sink, QUERY, 0)
    assert [claim.verdict for claim in store.claims(sink)] == [Verdict.ABORT]
    store.record(sink, {attempt_id: Ended(Ending.FAILED, StoreWentBackError("Kafka has committed it"))})
    assert store.acknowledge_lost(sink, QUERY, 0)
    assert store.claims(sink) == ()
    assert not store.acknowledge_lost(sink, QUERY, 0)
    assert leased_slots(store, sink, plan(store, sink), 1) == [1]  # an abort of the first id may be under way


def test_a_decided_attempt_whose_id_has_a_later_transaction_is_acknowledged(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    noted, other = (prepared(store, sink, generation, partition=number) for number in range(2))
    store.decide(decision(sink, generation, noted, other), FAIL)
    assert not store.acknowledge_lost(sink, QUERY, 0)
    store.record(sink, {noted: Ended(Ending.FAILED, StoreWentBackError("its id has a later transaction"))})
    assert [row.status for row in store.batches(sink)] == [BatchStatus.COMMIT]
    assert store.acknowledge_lost(sink, QUERY, 0)
    assert [claim.attempt_id for claim in store.claims(sink)] == [other]
    store.record(sink, {other: Ended(Ending.COMMITTED, judged=STATE)})
    assert {status_of(store, sink, each) for each in (noted, other)} == {AttemptStatus.COMMITTED}
    assert [row.status for row in store.batches(sink)] == [BatchStatus.DONE]
    assert not store.acknowledge_lost(sink, QUERY, 0)
    assert leased_slots(store, sink, plan(store, sink), 1) == [1]  # the first id is left to that transaction


def test_the_last_prepared_transaction_of_each_id_is_known(store: AnyStore, sink: str) -> None:
    decided(store, sink)
    (first,) = store.attempts(sink)
    store.record(sink, {first.attempt_id: Ended(Ending.COMMITTED, judged=STATE)})
    assert store.newest_prepared(sink) == {first.transactional_id: PREPARED}
    generation = plan(store, sink)
    leased(store, sink, generation, 1)
    second, later = leased(store, sink, generation, 1, 1), Prepared(PreparedTxnState("7:4"), "later")
    store.mark_prepared(second, later, records=1)
    assert store.newest_prepared(sink) == {
        each.transactional_id: later if each.attempt_id == second else PREPARED
        for each in store.attempts(sink)
        if each.prepared_state
    }


def test_attempts_in_a_cluster_that_is_gone_are_given_up(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    text = str(Manifest(STATE, "gone", (), has_offsets=False))
    won, loser, here = (leased(store, sink, generation, 0, partition) for partition in range(3))
    for attempt_id, manifest in ((won, text), (loser, text), (here, "")):
        store.mark_prepared(attempt_id, Prepared(STATE, manifest), records=2)
    store.decide(decision(sink, generation, won, here), FAIL)
    assert not store.acknowledge_lost(sink, QUERY, 0)
    for cluster_id, batch_id in (("another", 0), ("gone", 1)):
        assert not store.acknowledge_lost(sink, QUERY, batch_id, gone=cluster_id)
    assert len(store.claims(sink)) == 3
    assert store.acknowledge_lost(sink, QUERY, 0, gone="gone")
    assert [claim.attempt_id for claim in store.claims(sink)] == [here]
    statuses = [status_of(store, sink, each) for each in (won, loser)]
    assert statuses == [AttemptStatus.LOST, AttemptStatus.ABORTED]
    assert [(row.status, row.acknowledged_at is None) for row in store.batches(sink)] == [(BatchStatus.LOST, False)]
    assert not store.acknowledge_lost(sink, QUERY, 0, gone="gone")
    assert leased_slots(store, sink, plan(store, sink), 1) == [1]


def test_a_batch_is_given_up_with_its_generation(store: AnyStore, sink: str) -> None:
    generation = plan(store, sink)
    mine, others = leased(store, sink, generation), leased(store, sink, generation, 1)
    store.give_up(sink, query_id=QUERY, batch_id=0, generation=generation - 1)
    assert (store.is_open(mine), store.is_open(others)) == (True, True)
    store.give_up(sink, query_id=QUERY, batch_id=0, generation=generation)
    assert (store.is_open(mine), store.is_open(others)) == (False, True)
    with pytest.raises(SinkFencedError):
        store.lease(sink, generation, task(0, 1))
    assert store.condemn(sink) == 1


def test_old_batches_are_forgotten_with_their_attempts(store: AnyStore, sink: str) -> None:
    for number in range(4):
        decided(store, sink, 0, f"job:{number}")
    for batch_id in range(5):
        decided(store, sink, batch_id)
    generation = plan(store, sink)
    winner = prepared(store, sink, generation, 5)
    store.decide(decision(sink, generation, winner, batch_id=5), FAIL)

    assert store.prune(sink, 2) == 4 + 2
    kept = [(row.query_id, row.batch_id) for row in store.batches(sink)]
    assert kept == [(QUERY, 5), (QUERY, 4), ("job:3", 0), ("job:2", 0)]
    assert len(store.attempts(sink)) == 4
    assert store.prune(sink, 2) == 0
    assert store.batches(sink, [BatchStatus.COMMIT])[0].batch_id == 5


def test_other_sinks_are_left_alone(store: AnyStore, sink: str) -> None:
    other = f"{sink}.b"
    attempt_id = leased(store, other, plan(store, other))
    decided(store, sink)
    plan(store, sink)
    store.condemn(sink)
    assert store.is_open(attempt_id)
    assert {sink, other} <= {row.sink_id for row in store.sinks()}
