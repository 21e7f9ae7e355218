"""The operations of the store: given the rows of a sink, each computes its answer and its change. Pure.

Each returns a `Step`: the answer, and the change that has to count before the answer is true, or none. The names that a
change expects and touches are those of the table in `docs/decisions/a-store-in-a-topic.md`: `gate` belongs to plans and
decisions, `tasks` shows them the changes of tasks, and each partition has a `slot`, so that the attempts of different
partitions do not disturb each other. The errors are those of the SQL store, by the same rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import SinkError, StoreWentBackError
from spark_sink.handoff import BatchName, TaskIdentity
from spark_sink.options import OnNewCheckpoint
from spark_sink.store import rules
from spark_sink.store.attempt_states import (
    EVENTS,
    LIVE,
    VERDICTS,
    AttemptEvent,
    AttemptStatus,
    Ended,
    Ending,
    Prepared,
    Verdict,
    after,
    before,
)
from spark_sink.store.tables import (
    DETAIL_LENGTH,
    AttemptRow,
    BatchInDoubt,
    BatchRow,
    BatchStatus,
    Decided,
    Decision,
    Lease,
    Planned,
)
from spark_sink.store.topic.records import Drop, Put
from spark_sink.store.topic.rows import (
    ATTEMPT,
    BATCH,
    RETIRED,
    SINK,
    THE_SINK,
    SinkRows,
    batch_key,
    moment,
)

AnswerT = TypeVar("AnswerT")

GATE: Final = "gate"
TASKS: Final = "tasks"


def slot_name(partition_id: int) -> str:
    """Return the name that the attempts of one partition touch."""
    return f"slot/{partition_id}"


@dataclass(frozen=True)
class Change:
    """The change of an update, with the names that it expects at the versions that were read."""

    expects: tuple[str, ...]
    touches: tuple[str, ...]
    puts: tuple[Put, ...] = ()
    drops: tuple[Drop, ...] = ()


@dataclass(frozen=True)
class Step(Generic[AnswerT]):
    """The answer and the change of an operation in one state."""

    answer: Callable[[int], AnswerT]
    """Makes the answer, given the leader's time in milliseconds at which the operation took effect."""
    change: Change | None = None


def known(answer: AnswerT) -> Step[AnswerT]:
    """Return the step of an operation that changes nothing."""
    return Step(lambda _: answer)


def _changed(answer: AnswerT, puts: Iterable[Put], drops: Iterable[Drop] = ()) -> Step[AnswerT]:
    """Return the step of an operation that changes decided or condemned rows, if there are any."""
    change = _at_the_gate(puts, drops)
    return Step(lambda _: answer, change if change.puts or change.drops else None)


def _excluding_all(puts: Iterable[Put]) -> Change:
    """Return a change that excludes every concurrent change of an attempt."""
    return Change((GATE, TASKS), (GATE,), tuple(puts))


def _at_the_gate(puts: Iterable[Put], drops: Iterable[Drop] = ()) -> Change:
    return Change((GATE,), (GATE,), tuple(puts), tuple(drops))


def _of_partition(partition_id: int, puts: Iterable[Put]) -> Change:
    slot = slot_name(partition_id)
    return Change((GATE, slot), (TASKS, slot), tuple(puts))


def barrier() -> Step[None]:
    """Change only the version of the gate: an earlier record that expects it, and has not counted yet, never will."""
    return Step(lambda _: None, _at_the_gate(()))


# ---- PLAN -------------------------------------------------------------------------------------------------------


def plan(rows: SinkRows, query_id: str | None, policy: OnNewCheckpoint, batch_id: int | None) -> Step[Planned]:
    """See `SinkStore.plan`."""
    _check_plan(rows, query_id, batch_id, policy)
    live, in_doubt = rows.live(), _in_doubt(rows)
    if _is_job_decided(rows, query_id, batch_id):
        return Step(lambda now_ms: _planned(None, live, in_doubt, now_ms))
    generation = (rows.generation or 0) + 1
    if query_id is None:
        # Its first task begins it; a driver that decides before that must find the sink.
        added = None if rows.exists else _excluding_all([_sink_put(generation=0, query_id=None)])
        return Step(lambda now_ms: _planned(generation, live, in_doubt, now_ms, begins_late=True), added)
    change, left = _begin(rows, query_id, policy)
    undecided = rules.first_undecided(query_id, batch_id, rows.newest(query_id))
    return Step(lambda now_ms: _planned(generation, left, in_doubt, now_ms, undecided=undecided), change)


def begin(rows: SinkRows, generation: int | None, query_id: str, policy: OnNewCheckpoint) -> Step[None]:
    """See `TaskStore.begin`."""
    if rows.generation == generation or not rules.check_may_begin(rows.sink_id, rows.generation, generation):
        return known(None)
    _check_plan(rows, query_id, None, policy)
    change, _ = _begin(rows, query_id, policy)
    return Step(lambda _: None, change)


def _check_plan(rows: SinkRows, query_id: str | None, batch_id: int | None, policy: OnNewCheckpoint) -> None:
    lost = [row for row in rows.batches([BatchStatus.LOST]) if row.acknowledged_at is None]
    rules.check_nothing_lost(rows.sink_id, lost, None)
    rules.query_to_claim(rows.sink_id, rows.query_id, query_id, policy)
    if query_id is not None and not _is_job_decided(rows, query_id, batch_id):
        rules.check_job(rows.sink_id, rows.query_id, query_id, policy)


def _is_job_decided(rows: SinkRows, query_id: str | None, batch_id: int | None) -> bool:
    if query_id is None or batch_id is None or not rules.is_job(query_id):
        return False
    return rows.found(query_id, batch_id) is not None


def _begin(rows: SinkRows, query_id: str, policy: OnNewCheckpoint) -> tuple[Change, list[AttemptRow]]:
    """Return the change that begins the next generation, and the live attempts after it, none of which can win."""
    claimed = rules.query_to_claim(rows.sink_id, rows.query_id, query_id, policy)
    puts = [_sink_put(generation=(rows.generation or 0) + 1, query_id=rows.query_id if claimed is None else claimed)]
    live = rows.live()
    return _excluding_all(puts + _condemned(live)), [_as(each, AttemptEvent.CONDEMN) for each in live]


def _sink_put(**columns: Any) -> Put:
    return Put(SINK, THE_SINK, columns, ("updated_at",))


def _in_doubt(rows: SinkRows) -> list[BatchRow]:
    return sorted(rows.batches([BatchStatus.COMMIT]), key=lambda row: (row.generation, row.batch_id))


def _planned(
    generation: int | None,
    live: Collection[AttemptRow],
    in_doubt: Collection[BatchRow],
    now_ms: int,
    *,
    begins_late: bool = False,
    undecided: BatchName | None = None,
) -> Planned:
    now = moment(now_ms)
    ages = tuple(BatchInDoubt(row, max(0, round((now - row.decided_at).total_seconds() * 1000))) for row in in_doubt)
    return Planned(generation, rules.claims_of(list(live)), ages if live else (), begins_late, undecided)


# ---- WRITE ------------------------------------------------------------------------------------------------------


def is_decided_for(rows: SinkRows, generation: int | None, task: TaskIdentity, policy: OnNewCheckpoint) -> Step[bool]:
    """See `TaskStore.is_decided_for`."""
    rules.check_generation(rows.sink_id, rows.generation, generation)
    rules.query_to_claim(rows.sink_id, rows.query_id, task.query_id, policy)
    return known(rules.is_decided(task.query_id, task.batch_id, rows.nearest(task.query_id, task.batch_id)))


def lease(rows: SinkRows, generation: int | None, task: TaskIdentity, attempt_id: str) -> Step[Lease | None]:
    """See `TaskStore.lease`; the attempt gets this id."""
    rules.check_generation(rows.sink_id, rows.generation, generation)
    if rows.found(task.query_id, task.batch_id) is not None:
        return known(None)
    leased = {row.transactional_id for row in rows.live() if row.partition_id == task.partition_id}
    free = rows.leasable(task.partition_id).free(f"{rows.sink_id}-{task.partition_id}-", leased)
    taken = Lease(attempt_id, free)
    columns = {
        "attempt_id": attempt_id,
        "query_id": task.query_id,
        "batch_id": task.batch_id,
        "generation": generation,
        "partition_id": task.partition_id,
        "task_attempt_id": task.task_attempt_id,
        "host": task.host,
        "txn_id": taken.transactional_id,
        "prepared_state": "",
        "manifest": None,
        "n_records": 0,
        "status": AttemptStatus.OPEN,
        "detail": None,
    }
    put = Put(ATTEMPT, attempt_id, columns, ("created_at", "updated_at"))
    return Step(lambda _: taken, _of_partition(task.partition_id, [put]))


def is_open(rows: SinkRows, attempt_id: str) -> Step[bool]:
    """See `TaskStore.is_open`."""
    attempt = rows.attempt(attempt_id)
    return known(attempt is not None and attempt.status is AttemptStatus.OPEN)


def mark_prepared(rows: SinkRows, attempt_id: str, prepared: Prepared, records: int) -> Step[None]:
    """See `TaskStore.mark_prepared`."""
    attempt = rows.attempt(attempt_id)
    if attempt is None or attempt.status not in before(AttemptEvent.PREPARE):
        raise rules.condemned(attempt_id)
    put = _event(attempt, AttemptEvent.PREPARE, n_records=records, **_columns_of(prepared))
    return Step(lambda _: None, _of_partition(attempt.partition_id, [put]))


def prepared_states(rows: SinkRows, attempt_ids: Collection[str]) -> Step[dict[str, PreparedTxnState]]:
    """See `SinkStore.prepared_states`."""
    attempts = [row for row in rows.attempts([AttemptStatus.PREPARED]) if row.attempt_id in set(attempt_ids)]
    return known({row.transactional_id: PreparedTxnState(row.prepared_state) for row in attempts})


# ---- COMMIT, ABORT ----------------------------------------------------------------------------------------------


def decide(rows: SinkRows, decision: Decision, policy: OnNewCheckpoint) -> Step[Decided]:
    """See `SinkStore.decide`."""
    rules.check_generation(decision.sink_id, rows.generation, decision.generation)
    claimed = rules.query_to_claim(decision.sink_id, rows.query_id, decision.query_id, policy)
    stands = rows.found(decision.query_id, decision.batch_id)
    if stands is not None:
        rules.check_decided(stands, decision, _own(rows, decision), rows.newest(decision.query_id))
        return known(Decided(False, stands.records, rows.claims(), stands.content_digest))
    live = rows.live()
    losers = rules.losers(decision, live)
    puts = [_event(row, AttemptEvent.CHOOSE) for row in live if row.attempt_id in decision.winners]
    puts += [_event(row, AttemptEvent.CONDEMN) for row in live if row.attempt_id in losers]
    if claimed is not None:
        puts.append(Put(SINK, THE_SINK, {"query_id": claimed}))
    puts.append(_decision_put(decision, rows.generation, nothing_left=not live))
    answer = Decided(True, decision.records, rules.claims_of(rules.as_decided(decision, live), just_decided=True))
    return Step(lambda _: answer, _excluding_all(puts))


def _decision_put(decision: Decision, generation: int | None, *, nothing_left: bool) -> Put:
    columns = {
        "query_id": decision.query_id,
        "batch_id": decision.batch_id,
        "status": BatchStatus.DONE if nothing_left else BatchStatus.COMMIT,
        "generation": generation,
        "n_attempts": len(decision.winners),
        "n_records": decision.records,
        "offsets_digest": decision.offsets_digest,
        "content_digest": decision.content_digest,
        "done_at": None,
        "acknowledged_at": None,
    }
    times = ("decided_at", "done_at") if nothing_left else ("decided_at",)
    return Put(BATCH, batch_key(decision.query_id, decision.batch_id), columns, times)


def decided(rows: SinkRows, decision: Decision) -> Step[Decided | None]:
    """Return the stored decision, for `SinkStore.resolve`."""
    stands = rows.found(decision.query_id, decision.batch_id)
    if stands is None:
        return known(None)
    rules.check_resolved(stands, decision, _own(rows, decision), rows.newest(decision.query_id))
    return known(Decided(True, stands.records, rows.claims()))


def _own(rows: SinkRows, decision: Decision) -> list[AttemptRow]:
    return [row for each in decision.winners if (row := rows.attempt(each)) is not None]


def is_decided(rows: SinkRows, query_id: str, batch_id: int) -> Step[bool]:
    """See `SinkStore.is_decided`."""
    return known(rows.found(query_id, batch_id) is not None)


def condemn(rows: SinkRows) -> Step[int]:
    """See `OperatedStore.condemn`."""
    puts = _condemned(rows.live())
    return Step(lambda _: len(puts), _excluding_all(puts) if puts else None)


def give_up(rows: SinkRows, query_id: str, batch_id: int, generation: int) -> Step[None]:
    """See `SinkStore.give_up`."""
    if not rows.exists:
        return known(None)
    given_up = (query_id, batch_id, generation)
    puts = _condemned(row for row in rows.live() if (row.query_id, row.batch_id, row.generation) == given_up)
    if rows.generation == generation and rows.found(query_id, batch_id) is None:
        puts.append(_sink_put(generation=(rows.generation or 0) + 1))
    return Step(lambda _: None, _excluding_all(puts) if puts else None)


# ---- FINISH -----------------------------------------------------------------------------------------------------


def claims(rows: SinkRows, verdicts: Collection[Verdict]) -> Step[tuple[Any, ...]]:
    """See `ClaimStore.claims`."""
    return known(tuple(claim for claim in rows.claims() if claim.verdict in verdicts))


def still_wanted(
    rows: SinkRows, wanted: Mapping[str, Verdict], attempt_ids: Collection[str]
) -> Step[dict[str, Prepared]]:
    """See `ClaimStore.still_wanted`, for the attempts of one sink."""
    found = [row for each in attempt_ids if (row := rows.attempt(each)) is not None]
    return known(
        {row.attempt_id: rows.prepared(row) for row in found if VERDICTS.get(row.status) is wanted[row.attempt_id]}
    )


def replace(rows: SinkRows, attempt_id: str, old: PreparedTxnState, new: Prepared) -> Step[bool]:
    """See `ClaimStore.replace`."""
    attempt = rows.attempt(attempt_id)
    if attempt is None or attempt.status is not after(AttemptEvent.CHOOSE):
        return known(False)
    if attempt.prepared_state != str(old):
        return known(attempt.prepared_state == str(new.state))
    put = Put(ATTEMPT, attempt_id, _columns_of(new), ("updated_at",))
    return _changed(True, [put, *_retired(rows, [attempt.transactional_id])])


def record(rows: SinkRows, ended: Mapping[str, Ended]) -> Step[dict[str, Ended]]:
    """See `ClaimStore.record`."""
    attempts = {each: row for each in ended if (row := rows.attempt(each)) is not None}
    outdated: set[str] = set()
    changes: dict[str, Put] = {}
    retired: list[str] = []
    for attempt_id, row in attempts.items():
        end = ended[attempt_id]
        event = EVENTS.get(end.ending)
        if end.ending is Ending.ABORTED:
            retired.append(row.transactional_id)
        elif event is not None and row.status in before(event) and row.prepared_state != str(end.judged):
            outdated.add(attempt_id)
            event = None
        if event is not None and row.status in before(event):
            changes[attempt_id] = _event(row, event, **_detail_of(end))
            if end.ending is Ending.LOST:
                retired.append(row.transactional_id)
        elif isinstance(end.error, StoreWentBackError) and row.status in VERDICTS:
            columns = {"detail": str(end.error)[:DETAIL_LENGTH]}
            changes[attempt_id] = Put(ATTEMPT, attempt_id, columns, ("updated_at",))
    answer = {each: Ended(Ending.LEFT, end.error) if each in outdated else end for each, end in ended.items()}
    return _changed(answer, [*changes.values(), *_retired(rows, retired), *_closed(rows, changes)])


def _detail_of(end: Ended) -> dict[str, Any]:
    return {"detail": str(end.error)[:DETAIL_LENGTH]} if end.ending is Ending.LOST else {}


def mark_lost(rows: SinkRows, prepared: Mapping[str, PreparedTxnState], detail: str) -> Step[int]:
    """Record that Kafka has dropped these transactions of COMMITTING attempts; answer their number."""
    lost = [
        row
        for each, state in prepared.items()
        if (row := rows.attempt(each)) is not None
        and row.status in before(AttemptEvent.LOSE)
        and row.prepared_state == str(state)
    ]
    changes = {row.attempt_id: _event(row, AttemptEvent.LOSE, detail=detail[:DETAIL_LENGTH]) for row in lost}
    ids = [row.transactional_id for row in lost]
    return _changed(len(lost), [*changes.values(), *_retired(rows, ids), *_closed(rows, changes)])


def _closed(rows: SinkRows, changes: Mapping[str, Put]) -> list[Put]:
    """Return the resulting changes of batches: those with a lost attempt, and those without attempts left."""
    puts: list[Put] = []
    for batch in rows.batches([BatchStatus.COMMIT]):
        statuses = rows.statuses(batch.query_id, batch.batch_id)
        changed = {each: put.columns["status"] for each, put in changes.items() if "status" in put.columns}
        found = {changed.get(each, status) for each, status in statuses.items()}
        key = batch_key(batch.query_id, batch.batch_id)
        if AttemptStatus.LOST in found:
            puts.append(Put(BATCH, key, {"status": BatchStatus.LOST}))
        elif not found & LIVE:
            puts.append(Put(BATCH, key, {"status": BatchStatus.DONE}, ("done_at",)))
    return puts


def acknowledge_lost(rows: SinkRows, query_id: str, batch_id: int, gone: str) -> Step[bool]:
    """See `CommitStore.acknowledge_lost`."""
    key = batch_key(query_id, batch_id)
    of_batch = [row for row in rows.live() if (row.query_id, row.batch_id) == (query_id, batch_id)]
    in_gone = [row for row in of_batch if gone and row.status in VERDICTS and rows.prepared(row).prepared_in == gone]
    if in_gone:
        return _changed(True, _given_up(rows, in_gone, gone, key))
    lost = [row for row in rows.batches([BatchStatus.LOST]) if row.acknowledged_at is None]
    if any((row.query_id, row.batch_id) == (query_id, batch_id) for row in lost):
        return _changed(True, [Put(BATCH, key, {}, ("acknowledged_at",))])
    went_back = [row for row in of_batch if row.detail is not None and row.status in VERDICTS]
    changes = {
        row.attempt_id: _event(row, event)
        for row in went_back
        for event in (AttemptEvent.COMMIT, AttemptEvent.ABORT)
        if row.status in before(event)
    }
    ids = [row.transactional_id for row in went_back]
    return _changed(bool(went_back), [*changes.values(), *_retired(rows, ids), *_closed(rows, changes)])


def _given_up(rows: SinkRows, attempts: Collection[AttemptRow], cluster_id: str, key: str) -> list[Put]:
    """Return the changes that give up attempts of one batch with their cluster."""
    detail = rules.given_up_in(cluster_id)
    changes = {
        row.attempt_id: _event(row, event, detail=detail)
        for row in attempts
        for event in (AttemptEvent.LOSE, AttemptEvent.ABORT)
        if row.status in before(event)
    }
    puts = [*changes.values(), *_retired(rows, [row.transactional_id for row in attempts]), *_closed(rows, changes)]
    if any(row.status in before(AttemptEvent.LOSE) for row in attempts):
        puts.append(Put(BATCH, key, {}, ("acknowledged_at",)))
    return puts


def prune(rows: SinkRows, keep: int) -> Step[int]:
    """See `SinkStore.prune`."""
    batches = rows.batches()
    expired = rules.expired(batches, keep)
    if not expired:
        return known(0)
    gone = {(row.query_id, row.batch_id) for row in expired}
    oldest = batches[0].generation - keep
    drops = [
        Drop(ATTEMPT, row.attempt_id)
        for row in rows.attempts(set(AttemptStatus) - LIVE)
        if (row.query_id, row.batch_id) in gone or (row.status is AttemptStatus.ABORTED and row.generation < oldest)
    ]
    drops += [Drop(BATCH, batch_key(*each)) for each in sorted(gone)]
    return _changed(len(expired), (), drops)


# ---- orphans ----------------------------------------------------------------------------------------------------


def orphans(rows: SinkRows, pairs: Mapping[str, str], cluster_id: str) -> Step[dict[str, AttemptStatus | None]]:
    """See `OrphanStore.orphans`."""
    live = {row.transactional_id for row in rows.live()}
    statuses = {
        row.transactional_id: row.status
        for row in rows.attempts()
        if pairs.get(row.transactional_id) == row.prepared_state and not rows.prepared(row).is_elsewhere(cluster_id)
    }
    return known({each: statuses.get(each) for each in pairs if each not in live})


def retire_orphans(rows: SinkRows, pairs: Mapping[str, str], cluster_id: str) -> Step[dict[str, AttemptStatus | None]]:
    """See `OrphanStore.retire_orphans`. Expects the names that leases touch: one may have taken an id since then."""
    if not rows.exists:
        raise SinkError(
            f"the commit store has no sink {rows.sink_id!r}, so its orphans cannot be recognised; nothing was "
            "changed. If this is the right topic, start the application once, which creates the sink"
        )
    step = orphans(rows, pairs, cluster_id)
    slots = rules.slots_by_partition(step.answer(0))
    left = {each: rows.leasable(each).beyond(max(retired)) for each, retired in slots.items()}
    return Step(step.answer, _excluding_all(_leasable_puts(rows, left)))


# ---- parts ------------------------------------------------------------------------------------------------------


def _event(attempt: AttemptRow, event: AttemptEvent, **columns: Any) -> Put:
    return Put(ATTEMPT, attempt.attempt_id, {"status": after(event), **columns}, ("updated_at",))


def _condemned(attempts: Iterable[AttemptRow]) -> list[Put]:
    return [_event(row, AttemptEvent.CONDEMN) for row in attempts if row.status in rules.CONDEMNABLE]


def _as(attempt: AttemptRow, event: AttemptEvent) -> AttemptRow:
    """Return the attempt as it is after the event, if that may happen."""
    return dataclasses.replace(attempt, status=after(event)) if attempt.status in before(event) else attempt


def _columns_of(prepared: Prepared) -> dict[str, Any]:
    return {"prepared_state": str(prepared.state), "manifest": prepared.manifest or None}


def _retired(rows: SinkRows, transactional_ids: Iterable[str]) -> list[Put]:
    """Return the changes that retire these ids."""
    slots = rules.slots_by_partition(transactional_ids)
    return _leasable_puts(rows, {each: rows.leasable(each).without(retired) for each, retired in slots.items()})


def _leasable_puts(rows: SinkRows, left: Mapping[int, rules.Leasable]) -> list[Put]:
    """Return the changes after which exactly these slots of partitions may be leased."""
    return [
        Put(RETIRED, str(partition_id), {"first_slot": leasable.first, "spare_slot": leasable.spare})
        for partition_id, leasable in left.items()
        if leasable != rows.leasable(partition_id)
    ]
