"""The rules for planning, writing and deciding, given the rows of the store. Pure: callers read them under a lock."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Final, NamedTuple

from dualwrite.prepared_state import PreparedTxnState
from spark_sink import commands
from spark_sink.errors import (
    AttemptCondemnedError,
    BatchLostError,
    CheckpointMismatchError,
    SinkError,
    SinkFencedError,
    SinkOptionError,
)
from spark_sink.handoff import BatchName, TaskOutcome, TaskResult
from spark_sink.options import OnNewCheckpoint
from spark_sink.store.attempt_states import VERDICTS, AttemptEvent, AttemptStatus, Claim, after, before
from spark_sink.store.tables import QUERY_ID_LENGTH, AttemptRow, BatchRow, Decision

JOB_PREFIX: Final = "job:"
"""The prefix of the query ids of batch jobs, which have no checkpoint."""


VERSIONED_PREFIX: Final = "versioned job:"
"""The prefix of the query ids of batch jobs with versions; a run is the batch whose number is its version."""

_LONGEST_QUERY_ID: Final = QUERY_ID_LENGTH - len("#1000000")


def query_id_of_job(job_id: str, version: int | None) -> str:
    """Return the query id of a batch job."""
    return f"{JOB_PREFIX if version is None else VERSIONED_PREFIX}{job_id}"


def is_job(query_id: str) -> bool:
    """Return whether the query id is that of a batch job."""
    return query_id.startswith((JOB_PREFIX, VERSIONED_PREFIX))


_CALL: Final = re.compile(r"#[0-9]+$")
"""The end of the query id under which a later call of foreachBatch for a batch is kept."""


def query_of_call(query_id: str, number: int) -> str:
    """Return the query id of a call of foreachBatch for a batch; the first call has the id of the query itself."""
    return query_id if number == 1 else f"{query_id}#{number}"


def owner_of(query_id: str) -> str:
    """Return the query that a call belongs to."""
    return _CALL.sub("", query_id)


def check_query_id(query_id: str) -> None:
    """Raise SinkOptionError for a user's id that could be taken for that of a batch job or of a call."""
    if is_job(query_id) or owner_of(query_id) != query_id or not 0 < len(query_id) <= _LONGEST_QUERY_ID:
        raise SinkOptionError(
            f"query_id: {query_id!r} is not allowed; nothing was written. Give 1 to {_LONGEST_QUERY_ID} characters "
            f"that do not begin with {JOB_PREFIX!r} or {VERSIONED_PREFIX!r}, and do not end with # and a number"
        )


def check_generation(sink_id: str, current: int | None, mine: int | None) -> None:
    """Raise SinkFencedError if there was another plan since `mine`. None (no plan) is not checked."""
    if current is None:
        raise SinkError(
            f"the commit store does not have the sink {sink_id!r}, although it was planned: its row was deleted, or "
            "this process uses another store; no part of this batch is visible"
        )
    if mine is None or current == mine:
        return
    raise SinkFencedError(
        f"the sink {sink_id!r} is at generation {current}, but this batch was planned with generation {mine}: the "
        "batch was aborted, or another driver has taken over, or the same query runs twice. No part of the batch "
        "becomes visible through this driver; keep one query per sinkId"
    )


def query_to_claim(
    sink_id: str, known: str | None, query_id: str | None, on_new_checkpoint: OnNewCheckpoint
) -> str | None:
    """Return the new query id of the sink, or None if it keeps the one it has. A call belongs to its query.

    Raises CheckpointMismatchError if the sink belongs to another checkpoint and must not be given to this one.
    """
    if query_id is None or is_job(query_id) or (query_id := owner_of(query_id)) == known:
        return None
    if known is not None and on_new_checkpoint is OnNewCheckpoint.FAIL:
        raise CheckpointMismatchError(
            f"the sink {sink_id!r} belongs to the query {known}, but this is the query {query_id}: the checkpoint was "
            "deleted or replaced, or two queries share a sinkId. Its batches would count from 0 again and might repeat "
            "records; nothing was written. Restore the checkpoint, or use another sinkId, or set "
            "onNewCheckpoint=adopt if this query starts where the other one ended"
        )
    return query_id


def check_job(sink_id: str, known: str | None, query_id: str, on_new_checkpoint: OnNewCheckpoint) -> None:
    """Raise CheckpointMismatchError for a batch job that would fence the stream to which the sink belongs."""
    if known is not None and is_job(query_id) and on_new_checkpoint is OnNewCheckpoint.FAIL:
        raise CheckpointMismatchError(
            f"the sink {sink_id!r} belongs to the query {known}, and this is a batch job: if that query is running, "
            "the job would stop it in the middle of a batch. Nothing was written, and the query was not disturbed. "
            "Give the job a sinkId of its own; or, if the query is stopped, set onNewCheckpoint=adopt for this job"
        )


def check_may_begin(sink_id: str, current: int | None, mine: int | None) -> bool:
    """Return whether the generation `mine` has still to begin; False if another of its tasks was faster.

    Raises SinkFencedError if there was another plan since.
    """
    if current is not None and mine is not None and current == mine - 1:
        return True
    check_generation(sink_id, current, mine)
    return False


def is_decided(query_id: str, batch_id: int, nearest: int | None) -> bool:
    """Return whether the batch is decided. `nearest` is the oldest decided batch of its query that is not older.

    A newer `nearest` means that the version of a batch job is superseded. Otherwise raises CheckpointMismatchError:
    decided batches are deleted in order.
    """
    if query_id.startswith(VERSIONED_PREFIX):
        return nearest is not None
    if nearest is not None and nearest > batch_id:
        raise CheckpointMismatchError(
            f"batch {batch_id} of the query {query_id} is no longer known, but batch {nearest} is decided: an older "
            "copy of the checkpoint was restored. Writing it again might repeat records; nothing was written. Restore "
            "the newest checkpoint, or start a new one that begins after the last decided batch"
        )
    return nearest is not None


def first_undecided(query_id: str, batch_id: int | None, newest: int | None) -> BatchName:
    """Return the first batch of a query that is not decided; `newest` is its last decided one.

    A batch job is planned with its `batch_id`, if that is not decided.
    """
    if batch_id is not None:
        return BatchName(query_id, batch_id)
    return BatchName(query_id, 0 if newest is None else newest + 1)


def check_nothing_lost(sink_id: str, lost: Sequence[BatchRow], schema: str | None) -> None:
    """Raise BatchLostError for the first of these LOST batches; `schema` is the store's."""
    for row in lost:
        command = commands.acknowledge_lost(sink_id, row.query_id, row.batch_id, schema=schema)
        look = commands.status(sink_id, schema=schema)
        raise BatchLostError(
            f"batch {row.batch_id} of the query {row.query_id} was decided, but Kafka has aborted a part of it that "
            "could not be published again, or nothing proves that it has not (`detail` of its LOST attempts in "
            f"{look} says which); the sink {sink_id!r} is stopped, and no new batch has begun. Look first whether "
            f"consumers have the records; write those that are lost again by other means, then run {command}"
        )


def given_up_in(cluster_id: str) -> str:
    """Return the detail of an attempt that was given up with its cluster."""
    return f"given up by an operator, because the Kafka cluster {cluster_id} is gone"


def condemned(attempt_id: str) -> AttemptCondemnedError:
    """Return the error for a task whose attempt no longer belongs to it."""
    return AttemptCondemnedError(
        f"attempt {attempt_id} is no longer OPEN: its batch was aborted, decided without it, or planned again. Its "
        "transaction is aborted and no part of it becomes visible; Spark may try again"
    )


def check_digest(query_id: str, batch_id: int, digest: str | None) -> None:
    """Raise CheckpointMismatchError without a digest of the batch's input, where one is required."""
    if digest is None and not is_job(query_id):
        raise CheckpointMismatchError(
            f"batch {batch_id} of the query {query_id} has no digest of its source offsets, because its checkpoint was "
            "not found, or cannot be read by the driver's Python, and requireDigest is true; nothing was decided. Set "
            "the option checkpointLocation to a path that Python can read (for an object store, install its package "
            "of fsspec on the driver), or set requireDigest to replay"
        )


def _check_known(row: BatchRow, decision: Decision, newest: int | None) -> None:
    """Raise unless a batch without a digest to compare may be the decided one."""
    if newest is not None and newest > row.batch_id:
        raise CheckpointMismatchError(
            f"batch {row.batch_id} of the query {row.query_id} is decided, and so is batch {newest}, but Spark repeats "
            "no batch before its last one: an older copy of the checkpoint was restored. Nothing was written for it; "
            "restore the newest checkpoint"
        )
    if decision.needs_digest:
        raise CheckpointMismatchError(
            f"batch {row.batch_id} of the query {row.query_id} was decided before, and without a digest of its source "
            "offsets it cannot be shown that this batch has the same content: if an older copy of the checkpoint was "
            "restored, skipping it would lose rows. Nothing was written for it. If the checkpoint is the newest one, "
            "as after a crash, start the query once with requireDigest=false; to be able to tell, set the option "
            "checkpointLocation to a path that the driver's Python can read"
        )


def check_decided(row: BatchRow, decision: Decision, own: Collection[AttemptRow], newest: int | None) -> None:
    """Raise unless the decided batch is the one to be decided again.

    `own` are the rows of the winners, `newest` is the last decided batch of the query.
    """
    digests = {row.offsets_digest, decision.offsets_digest} - {None}
    if len(digests) > 1:
        raise CheckpointMismatchError(
            f"batch {row.batch_id} of the query {row.query_id} was decided with other source offsets than the "
            "checkpoint has now: an older copy of it was restored, and this batch has other content. Nothing was "
            "written for it; restore the newest checkpoint"
        )
    if not is_job(row.query_id) and None in (row.offsets_digest, decision.offsets_digest):
        _check_known(row, decision, newest)
    if {attempt.attempt_id for attempt in own if attempt.status in _CHOSEN} != set(decision.winners):
        raise SinkError(
            f"batch {row.batch_id} of the query {row.query_id} was decided at generation {row.generation}, but tasks "
            "have written it again. Their records are not committed, and the next plan aborts them"
        )


def check_resolved(row: BatchRow, decision: Decision, own: Collection[AttemptRow], newest: int | None) -> None:
    """Raise as `check_decided` does unless the decision that is found after a lost COMMIT is that one."""
    if (row.batch_id, row.generation) != (decision.batch_id, decision.generation):
        check_decided(row, decision, own, newest)


_CHOSEN: Final = frozenset({AttemptStatus.COMMITTING, AttemptStatus.COMMITTED, AttemptStatus.LOST})
CONDEMNABLE: Final = frozenset(before(AttemptEvent.CONDEMN))


def losers(decision: Decision, live: Sequence[AttemptRow]) -> tuple[str, ...]:
    """Return the attempts that can no longer win once `decision` is taken; `live` are all live ones of the sink.

    Raises if an attempt that should win cannot.
    """
    if decision.skipped:
        raise SinkError(
            f"a task found batch {decision.batch_id} of the query {decision.query_id} decided and skipped it, but now "
            "the commit store does not have the decision: it was deleted. Nothing was decided; the query can be "
            "started again"
        )
    by_id = {attempt.attempt_id: attempt for attempt in live}
    for attempt_id in decision.winners:
        _check_winner(decision, attempt_id, by_id)
    others = tuple(a.attempt_id for a in live if a.status in CONDEMNABLE and a.attempt_id not in decision.winners)
    if decision.generation is None and others:
        raise SinkFencedError(
            f"batch {decision.batch_id} of the query {decision.query_id} has no results, and tasks of another driver "
            f"are writing to the sink {decision.sink_id!r}; nothing was decided here"
        )
    return others


def as_decided(decision: Decision, live: Sequence[AttemptRow]) -> list[AttemptRow]:
    """Return the sink's live attempts as they are once the decision is taken."""
    return [replace(attempt, status=_status_as_decided(decision, attempt)) for attempt in live]


def _status_as_decided(decision: Decision, attempt: AttemptRow) -> AttemptStatus:
    if attempt.attempt_id in decision.winners:
        return after(AttemptEvent.CHOOSE)
    return after(AttemptEvent.CONDEMN) if attempt.status in CONDEMNABLE else attempt.status


def _check_winner(decision: Decision, attempt_id: str, live: Mapping[str, AttemptRow]) -> None:
    attempt = live.get(attempt_id)
    expected = (decision.query_id, decision.batch_id, decision.generation)
    if attempt is not None and (attempt.query_id, attempt.batch_id, attempt.generation) != expected:
        raise SinkError(
            f"attempt {attempt_id} belongs to batch {attempt.batch_id} of the query {attempt.query_id} in generation "
            f"{attempt.generation}, not to batch {decision.batch_id} of {decision.query_id} in generation "
            f"{decision.generation}; nothing was decided"
        )
    if attempt is None or attempt.status is not AttemptStatus.PREPARED:
        status = "no longer live" if attempt is None else f"{attempt.status}, not PREPARED"
        raise AttemptCondemnedError(
            f"batch {decision.batch_id} of the query {decision.query_id} cannot be committed: its attempt {attempt_id} "
            f"is {status}. The batch was aborted before; nothing was decided, and Spark replays it"
        )


def decision_of(
    sink_id: str,
    query_id: str,
    batch_id: int,
    results: Sequence[TaskResult],
    offsets_digest: str | None,
    *,
    content_digest: str | None = None,
    needs_digest: bool = True,
) -> Decision:
    """Return the decision for these results. Raises SinkError unless all are of one batch and one generation."""
    others = [result for result in results if (result.query_id, result.batch_id) != (query_id, batch_id)]
    generations = {result.generation for result in results}
    if others or len(generations) > 1:
        raise SinkError(
            f"the results for batch {batch_id} of the query {query_id} are not of one batch and one generation "
            f"(generations {sorted(map(str, generations))}, {len(others)} of other batches); nothing was decided"
        )
    chosen = sorted((r for r in results if r.outcome is TaskOutcome.PREPARED), key=lambda r: r.partition_id)
    if len({result.partition_id for result in chosen}) < len(chosen):
        raise SinkError(
            f"batch {batch_id} of the query {query_id} has two results for one partition; nothing was decided"
        )
    return Decision(
        sink_id=sink_id,
        query_id=query_id,
        batch_id=batch_id,
        generation=next(iter(generations), None),
        winners=tuple(result.attempt_id for result in chosen if result.attempt_id is not None),
        records=sum(result.records for result in chosen),
        staged_rows=sum(result.staged_rows for result in chosen),
        skipped=any(result.outcome is TaskOutcome.SKIPPED for result in results),
        offsets_digest=offsets_digest,
        needs_digest=needs_digest,
        content_digest=content_digest,
    )


def check_ended(
    sink_id: str, live: Sequence[AttemptRow], quiet_ms: int, *, min_age_ms: int, schema: str | None
) -> None:
    """Raise SinkError if a row shows that the application of the sink is running; `schema` is the store's."""
    if live:
        raise SinkError(
            f"the sink {sink_id!r} has {len(live)} attempts that are not completed; nothing was dropped: complete them "
            f"first, with the application or with {commands.recover(sink_id, schema=schema)}"
        )
    if quiet_ms < min_age_ms:
        raise SinkError(
            f"the sink {sink_id!r} changed {quiet_ms // 1000} s ago, so its application may be running; nothing "
            "was dropped: stop it, or wait until the sink has not changed for --min-age"
        )


class Leasable(NamedTuple):
    """The slots of a partition that were never retired, and may be leased if they are free."""

    first: int = 0
    """From this slot on, all may be leased."""
    spare: int | None = None
    """A slot before them, so that of the two copies of a task only the one that loses uses up its id."""

    def free(self, prefix: str, leased: Collection[str]) -> str:
        """Return the smallest transactional id that is not leased; `prefix` is its text before the slot."""
        slots = chain(() if self.spare is None else (self.spare,), count(self.first))
        return next(each for slot in slots if (each := f"{prefix}{slot}") not in leased)

    def without(self, retired: Collection[int]) -> Leasable:
        """Return the rest after these slots are retired; keeps one of the other slots before the last of them."""
        first = max(self.first, *(slot + 1 for slot in retired))
        left = chain(() if self.spare is None else (self.spare,), range(self.first, first))
        return Leasable(first, next((slot for slot in left if slot not in retired), None))

    def beyond(self, last: int) -> Leasable:
        """Return the rest after all slots up to `last` are retired."""
        spare = self.spare if self.spare is not None and self.spare > last else None
        return Leasable(max(self.first, last + 1), spare)


def slots_by_partition(transactional_ids: Iterable[str]) -> dict[int, set[int]]:
    """Return the slots of the ids of one sink by partition."""
    slots: dict[int, set[int]] = {}
    for each in transactional_ids:
        slots.setdefault(partition_of(each), set()).add(slot_of(each))
    return slots


def slot_of(transactional_id: str) -> int:
    """Return the slot of a transactional id: the number at its end."""
    return int(transactional_id.rpartition("-")[2])


def partition_of(transactional_id: str) -> int:
    """Return the partition of a transactional id: the number before its slot."""
    return int(transactional_id.split("-")[-2])


def expired(rows: Sequence[BatchRow], keep: int) -> list[BatchRow]:
    """Return the batches that may be deleted: all but the newest `keep` of each query, and of all batch jobs together.

    A batch job with versions counts as a query: its newest version stays, and is known for ever.

    A batch that is not done, or is lost and not acknowledged, is never deleted.
    """
    groups: dict[str, list[BatchRow]] = {}
    for row in sorted(rows, key=lambda row: (row.batch_id, row.generation), reverse=True):
        groups.setdefault(JOB_PREFIX if row.query_id.startswith(JOB_PREFIX) else row.query_id, []).append(row)
    return [row for group in groups.values() for row in group[max(keep, 1) :] if row.is_closed]


def claims_of(live: Sequence[AttemptRow], *, just_decided: bool = False) -> tuple[Claim, ...]:
    """Return the claims of live attempts."""
    return tuple(
        Claim(
            attempt.attempt_id,
            attempt.query_id,
            attempt.batch_id,
            attempt.transactional_id,
            verdict,
            PreparedTxnState(attempt.prepared_state),
            is_left=not just_decided,
        )
        for attempt in live
        if (verdict := VERDICTS.get(attempt.status)) is not None
    )
