"""Random schedules of several processes on one log that loses acknowledgements, repeats and delays records.

Processes are greenlets, which stop before and after each call to the log, so a process may act upon records that it
read long ago. The history is checked: the log, as the rule reads it, and the responses to processes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import greenlet
import pytest

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import DecisionUnknownError, SinkError
from spark_sink.handoff import TaskIdentity
from spark_sink.options import OnNewCheckpoint
from spark_sink.store.attempt_states import CHANGES, LIVE, Ended, Ending, Prepared, Verdict
from spark_sink.store.rules import CONDEMNABLE
from spark_sink.store.tables import AttemptRow, BatchRow, Decision
from spark_sink.store.topic import operations
from spark_sink.store.topic.log import StoredRecord
from spark_sink.store.topic.operations import GATE, TASKS, Change
from spark_sink.store.topic.records import NewStore, Snapshot, Update, decoded
from spark_sink.store.topic.replica import Replica
from spark_sink.store.topic.rows import SinkRows
from spark_sink.store.topic.state import StoreState
from spark_sink.store.topic.topic_store import TopicStore
from tests.spark.fake_log import FakeLog, FakePartition

SINK: Final = "s"
QUERY: Final = "q"
FAIL: Final = OnNewCheckpoint.FAIL
STATE: Final = PreparedTxnState("7:3")
SCHEDULES: Final = 150
STEPS: Final = 400


class Seen(NamedTuple):
    """The rows of the sink."""

    generation: int | None
    attempts: dict[str, AttemptRow]
    batches: dict[int, BatchRow]


class History:
    """The log's content, record by record, and its contradictions."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.state = StoreState()
        self.leased: dict[str, str] = {}
        """The ids that were ever leased, by attempt."""
        self.decided: dict[tuple[int, tuple[str, ...]], int] = {}
        """The offset of the decision, by batch and winners."""
        self.retired: set[str] = set()

    def read(self, records: list[StoredRecord]) -> None:
        for record in records:
            content = decoded(record.value)
            if isinstance(content, NewStore):
                self.state.name(content.id)
            elif isinstance(content, Snapshot):
                self._check_snapshot(content, records)
            elif isinstance(content, Update):
                before = self._rows()
                if self.state.apply(content, record.time_ms):
                    self.counted[content.id] += 1
                    assert self.counted[content.id] == 1, "a record has counted twice"
                    self._check(before, self._rows(), record.offset)

    def _check_snapshot(self, snapshot: Snapshot, records: list[StoredRecord]) -> None:
        place = records[snapshot.upto] if snapshot.upto < len(records) else None
        if place is not None and (place.epoch, decoded(place.value).id) == (snapshot.epoch, snapshot.of):
            anew = StoreState()
            for record in records[: snapshot.upto + 1]:
                content = decoded(record.value)
                if isinstance(content, NewStore):
                    anew.name(content.id)
                elif isinstance(content, Update):
                    anew.apply(content, record.time_ms)
            assert StoreState.of(snapshot.state) == anew, "a snapshot has another state than the log"

    def _rows(self) -> Seen:
        rows = SinkRows(SINK, self.state.sink(SINK))
        attempts = {row.attempt_id: row for row in rows.attempts()}
        return Seen(rows.generation, attempts, {row.batch_id: row for row in rows.batches()})

    def _check(self, before: Seen, after: Seen, offset: int) -> None:
        _, old, old_batches = before
        generation, new, batches = after
        for attempt_id, row in new.items():
            if attempt_id not in old:
                assert row.transactional_id not in self.retired, "a retired id was leased"
                assert row.generation == generation, "a lease in an old generation"
                self.leased[attempt_id] = row.transactional_id
            elif old[attempt_id].status != row.status:
                assert row.status in {to for (status, _), to in CHANGES.items() if status is old[attempt_id].status}
            if row.status in {"ABORTED", "LOST"} or was_repaired(old.get(attempt_id), row):
                self.retired.add(row.transactional_id)
        live = Counter(row.transactional_id for row in new.values() if row.status in LIVE)
        assert not live or max(live.values()) == 1, "an id is leased twice"
        for row in new.values():
            if row.status in CONDEMNABLE:
                assert row.generation == generation, "an attempt of an older generation can still win"
        for batch_id, batch in batches.items():
            if batch_id in old_batches:
                assert (batch.generation, batch.attempts) == (
                    old_batches[batch_id].generation,
                    old_batches[batch_id].attempts,
                )
                continue
            won = tuple(
                sorted(a for a, row in new.items() if row.status != old[a].status and row.status == "COMMITTING")
            )
            assert len(won) == batch.attempts
            self.decided[batch_id, won] = offset
            assert CONDEMNABLE.isdisjoint(row.status for row in new.values()), "a loser can still win"
        gone = set(old_batches) - set(batches)
        assert not gone or max(gone) < max(batches), "a decision was undone"


def was_repaired(old: AttemptRow | None, new: AttemptRow) -> bool:
    """Return whether the records of the attempt were published again."""
    return old is not None and new.prepared_state != old.prepared_state != ""


class World:
    """Processes on one partition."""

    def __init__(self, seed: int, *, may_lose: bool) -> None:
        self.chance = random.Random(seed)
        self.partition = FakePartition()
        self.all: list[StoredRecord] = []
        """Every record of the log, including deleted ones."""
        self.may_lose = may_lose
        self.told_leases: dict[str, str] = {}
        self.told_decided: list[tuple[int, tuple[str, ...]]] = []
        self.told_never: list[tuple[int, tuple[str, ...], int]] = []
        TopicStore(FakeLog(self.partition)).create()
        self._deleted = 0
        self.processes: list[greenlet.greenlet] = []
        one = [self._driver] + [self._task] * 6
        self._kinds = self.chance.choice([[self._driver] * 4 + [self._finisher, self._operator], one])
        self.counted_losses = 0

    def run(self) -> History:
        for step in range(STEPS):
            if len(self.processes) < 3 or self.chance.random() < 0.02:
                self.processes.append(greenlet.greenlet(self.chance.choice(self._kinds)))
            process = self.chance.choice(self.processes)
            process.switch()
            self.processes = [each for each in self.processes if not each.dead]
            if len(self.processes) > 5:
                self.processes.pop(self.chance.randrange(len(self.processes)))  # it sleeps for ever
            if self.partition.late and self.chance.random() < 0.05:
                self.partition.deliver(self.chance.randrange(len(self.partition.late)))
            if self.may_lose and self.chance.random() < 0.01:
                self._lose()
            self._keep()
            assert step >= 0
        while self.partition.late:
            self.partition.deliver(0)
        self._keep()
        history = History()
        history.read(self.all)
        return history

    def _lose(self) -> None:
        most = len(self.partition.records) - 2
        count = (
            min(self.chance.randrange(6), most) if self.partition.start else min(self.chance.randrange(6), max(0, most))
        )
        self.partition.lose_end(count)
        self.counted_losses += count
        del self.all[self.partition.end :]

    def _keep(self) -> None:
        """Remember the records of the log, before they are deleted."""
        known = len(self.all)
        self.all += self.partition.records[known - self.partition.start :] if known >= self.partition.start else []
        assert len(self.all) == self.partition.end

    def _store(self) -> TopicStore:
        log = FakeLog(self.partition, chance=self.chance, pause=self._stop)
        return TopicStore(log)

    def _stop(self) -> None:
        self._keep()
        if self.chance.random() < 0.5:
            parent = greenlet.getcurrent().parent
            assert parent is not None
            parent.switch()

    # ---- processes ------------------------------------------------------------------------------------------

    def _driver(self) -> None:
        """Write batches one after the other, until an error stops it."""
        store = self._store()
        try:
            for _ in range(6):
                for _ in self._batch(store):
                    pass
        except (SinkError, DecisionUnknownError):
            return

    def _batch(self, store: TopicStore) -> Iterator[None]:
        planned = store.plan(SINK, query_id=QUERY, on_new_checkpoint=FAIL)
        generation = planned.generation
        assert generation is not None
        self._finish(store)
        batch_id = self._next_batch(store)
        winners = []
        tasks = [(partition, self._store()) for partition in (0, 1, 0) if self.chance.random() < 0.8]
        for partition, of_task in tasks:
            lease = of_task.lease(SINK, generation, TaskIdentity(QUERY, batch_id, partition, 1, "h"))
            if lease is None:
                return
            assert lease.attempt_id not in self.told_leases
            self.told_leases[lease.attempt_id] = lease.transactional_id
            if of_task.is_open(lease.attempt_id) and self.chance.random() < 0.9:
                of_task.mark_prepared(lease.attempt_id, Prepared(STATE, "m"), records=1)
                winners.append((partition, lease.attempt_id))
            yield
        chosen = tuple(sorted(dict(winners).values()))
        decision = Decision(SINK, QUERY, batch_id, generation, chosen, 1, 0, False, "d")
        if self.chance.random() < 0.1:
            store.give_up(SINK, query_id=QUERY, batch_id=batch_id, generation=generation)
        try:
            anew = store.decide(decision, FAIL).anew
        except DecisionUnknownError:
            resolved = store.resolve(decision)
            if resolved is None:
                self.told_never.append((batch_id, chosen, self.partition.end))
                return
            anew = False
        if anew:
            self.told_decided.append((batch_id, chosen))
        self._finish(store)
        if self.chance.random() < 0.4:
            store.prune(SINK, 1)
        yield

    @staticmethod
    def _next_batch(store: TopicStore) -> int:
        batches = store.batches(SINK)
        return max((row.batch_id for row in batches), default=-1) + 1

    def _finish(self, store: TopicStore) -> None:
        claims = store.claims(SINK)
        wanted = {claim.attempt_id: claim.verdict for claim in claims}
        still = store.still_wanted(wanted, list(wanted))
        ended = {
            each: Ended(Ending.COMMITTED, judged=row.state) if wanted[each] is Verdict.COMMIT else Ended(Ending.ABORTED)
            for each, row in still.items()
        }
        store.record(SINK, ended)

    def _task(self) -> None:
        """Write a partition beside other copies of the same task, as speculation has it; the result is dropped."""
        store = self._store()
        try:
            generation = store.sinks()[0].generation
            lease = store.lease(SINK, generation, TaskIdentity(QUERY, self._next_batch(store), 0, 1, "h"))
            if lease is not None:
                self.told_leases[lease.attempt_id] = lease.transactional_id
                store.mark_prepared(lease.attempt_id, Prepared(STATE, "m"), records=1)
        except (SinkError, IndexError):
            return

    def _finisher(self) -> None:
        store = self._store()
        try:
            for claim in store.claims(SINK, [Verdict.COMMIT]):
                anew = Prepared(PreparedTxnState(f"{self.chance.randrange(8, 99)}:1"), "again")
                store.replace(SINK, claim.attempt_id, claim.prepared_state, anew)
            self._finish(store)
        except (SinkError, DecisionUnknownError):
            return

    def _operator(self) -> None:
        store = self._store()
        try:
            store.retire_orphans(SINK, {f"{SINK}-{partition}-0": "7:3" for partition in range(2)}, "")
            store.condemn(SINK)
            store.attempts(SINK)
        except SinkError:
            return


@pytest.fixture(autouse=True)
def _snapshots_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sink.store.topic.replica.SNAPSHOT_EVERY", 12)
    monkeypatch.setattr("spark_sink.store.topic.replica.decoded", lru_cache(4096)(decoded))


def without_gate(partition_id: int, puts: Any) -> Change:
    slot = operations.slot_name(partition_id)
    return Change((slot,), (TASKS, slot), tuple(puts))


def without_slot(partition_id: int, puts: Any) -> Change:
    nobody_s = f"slot/{random.random()}"
    return Change((GATE, nobody_s), (TASKS, nobody_s), tuple(puts))


def unseen(partition_id: int, puts: Any) -> Change:
    slot = operations.slot_name(partition_id)
    return Change((GATE, slot), (slot,), tuple(puts))


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("_excluding_all", lambda puts: Change((GATE,), (GATE,), tuple(puts))),
        ("_excluding_all", lambda puts: Change((GATE, TASKS), (TASKS,), tuple(puts))),
        ("_of_partition", without_gate),
        ("_of_partition", without_slot),
        ("_of_partition", unseen),
    ],
    ids=[
        "plans overlook tasks",
        "plans show nothing",
        "tasks overlook plans",
        "tasks overlook others",
        "tasks show nothing",
    ],
)
def test_a_name_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch, part: str, wrong: Any) -> None:
    monkeypatch.setattr(operations, part, wrong)
    with pytest.raises(AssertionError):
        for seed in range(100):
            World(seed, may_lose=False).run()


@pytest.mark.parametrize("first", range(0, SCHEDULES, 50))
def test_schedules_of_several_processes(first: int) -> None:
    told = counted = decided = 0
    for seed in range(first, first + 50):
        world = World(seed, may_lose=False)
        history = world.run()
        for attempt_id, transactional_id in world.told_leases.items():
            assert history.leased[attempt_id] == transactional_id, "a lease that does not stand"
        for each in world.told_decided:
            assert each in history.decided, "a decision that does not stand"
        for batch_id, winners, _ in world.told_never:
            assert not winners or (batch_id, winners) not in history.decided, "decided after it never could be"
        agree(world, history)
        told += len(world.told_leases)
        counted += history.counted.total()
        decided += len(history.decided)
    assert told > 400
    assert counted > 2000
    assert decided > 20


@pytest.mark.parametrize("first", range(0, SCHEDULES, 50))
def test_a_log_is_truncated(first: int) -> None:
    """Acknowledged decisions may be gone, but the log never contradicts itself."""
    lost = counted = 0
    for seed in range(first, first + 50):
        world = World(seed, may_lose=True)
        history = world.run()
        agree(world, history)
        lost += world.counted_losses
        counted += history.counted.total()
    assert lost > 200
    assert counted > 1000


def agree(world: World, history: History) -> None:
    """Check that a process that begins now, with the rest of the log, reads the same state."""
    assert history.counted
    replica = Replica(FakeLog(world.partition))
    replica.refresh()
    with replica.state() as state:
        assert state == history.state
