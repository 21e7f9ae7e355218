"""The store in a topic gives the results of the SQL store: the same operations on both, in any order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import BatchLostError, SinkError, StoreWentBackError
from spark_sink.handoff import TaskIdentity
from spark_sink.options import OnNewCheckpoint
from spark_sink.store.attempt_states import Claim, Ended, Ending, Prepared, Verdict
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.tables import AttemptRow, Decided, Decision, Lease, Planned
from spark_sink.store.topic.topic_store import TopicStore
from tests.spark.fake_log import FakeLog, FakePartition

QUERIES = st.sampled_from(["q1", "q1", "q1", "q1#2", "q2", "job:a", "versioned job:b"])
BATCHES = st.integers(0, 4)
PARTITIONS = st.integers(0, 2)
SINKS = st.sampled_from(["s", "s", "s", "t"])
POLICIES = st.sampled_from([OnNewCheckpoint.FAIL, OnNewCheckpoint.FAIL, OnNewCheckpoint.ADOPT])
PAIRS = st.sampled_from(["7:1", "7:2", "8:1"])
BACK = st.integers(0, 2)
"""How many generations ago a process has planned."""


def _replaced(sink: str, attempt: tuple[str, ...], given: Any, store: Any, index: int) -> Any:
    return store.replace(sink, attempt[index], *given)


def _marked_lost(sink: str, attempt: tuple[str, ...], state: PreparedTxnState, store: Any, index: int) -> Any:
    return store.mark_lost(sink, {attempt[index]: state}, "gone")


def _recorded(sink: str, ended: Callable[[int], dict[str, Ended]], store: Any, index: int) -> Any:
    return store.record(sink, ended(index))


def _completed(sink: str, attempts: Sequence[tuple[str, ...]], ending: Ending, store: Any, index: int) -> Any:
    """Record the ending of the attempts, and that the last of several was aborted."""
    ids = [each[index] for each in attempts]
    ended = {each: Ended(ending, RuntimeError("dropped"), judged=PreparedTxnState("7:1")) for each in ids}
    return store.record(sink, ended | {each: Ended(Ending.ABORTED) for each in ids[1:][-1:]})


def _all_committed(attempts: Sequence[tuple[str, ...]], index: int) -> dict[str, Ended]:
    return {each[index]: Ended(Ending.COMMITTED, judged=PreparedTxnState("7:1")) for each in attempts}


def _shown(sink: str, operation: str, store: Any, _: int) -> Any:
    return getattr(store, operation)(sink)


def _still_wanted(verdict: Verdict, attempts: Sequence[tuple[str, ...]], store: Any, index: int) -> Any:
    named = [each[index] for each in attempts]
    return store.still_wanted(dict.fromkeys(named, verdict), named)


class SameAnswers(RuleBasedStateMachine):
    """Two stores, and the attempts of each under common numbers."""

    @initialize()
    def begin(self) -> None:
        self.engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
        self.sql = CommitStore(self.engine)
        self.sql.create_tables()
        self.partition = FakePartition()
        self.topic = TopicStore(FakeLog(self.partition))
        self.topic.create()
        self.attempts: list[tuple[str, str, str]] = []
        """The attempts' ids in both stores, and the sink."""

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.dispose()

    def both(self, call: Callable[[Any, int], Any]) -> Any:
        """Call both stores; the call gets a store, and the index of its attempt ids."""
        answers = []
        for index, store in enumerate((self.sql, self.topic)):
            try:
                answers.append(call(store, index))
            except SinkError as error:
                answers.append(error)
        sql, topic = answers
        if isinstance(sql, Lease) and isinstance(topic, Lease):
            assert sql.transactional_id == topic.transactional_id
            return sql.attempt_id, topic.attempt_id
        assert self.common(sql, 0) == self.common(topic, 1)
        return None

    def common(self, answer: Any, index: int) -> Any:
        """Return a result with the numbers of attempts for their ids, and without times."""
        if isinstance(answer, SinkError):
            text = str(answer)
            for number, ids in enumerate(self.attempts):
                text = text.replace(ids[index], f"#{number}")
            if isinstance(answer, BatchLostError):  # of several lost batches, a database names any
                text = re.sub(r"^batch \d+ of the query .*? was|--query .*? --batch \d+", "", text)
            return type(answer), text.replace("this is the right database", "this is the right topic")
        if isinstance(answer, Planned):
            in_doubt = [self.common(each.row, index) for each in answer.in_doubt]
            return answer.generation, answer.begins_late, self.common(answer.claims, index), in_doubt
        if isinstance(answer, Decided):
            return answer.anew, answer.records, self.common(answer.claims, index)
        if isinstance(answer, Claim):
            return self.number(answer.attempt_id, index), answer.transactional_id, answer.verdict, answer.prepared_state
        if isinstance(answer, AttemptRow):
            others = (answer.transactional_id, answer.prepared_state, answer.records, answer.status, answer.detail)
            where = (answer.query_id, answer.batch_id, answer.generation, answer.partition_id)
            return (self.number(answer.attempt_id, index), *where, *others)
        if isinstance(answer, Ended):
            return answer.ending, str(answer.error), answer.judged
        if hasattr(answer, "decided_at"):
            times = (answer.done_at is None, answer.acknowledged_at is None)
            fields = (answer.status, answer.generation, answer.attempts, answer.records, answer.offsets_digest)
            return (answer.query_id, answer.batch_id, *fields, *times)
        if hasattr(answer, "updated_at"):
            return answer.sink_id, answer.generation, answer.query_id
        if isinstance(answer, dict):
            return {self.number(key, index): self.common(value, index) for key, value in answer.items()}
        if isinstance(answer, list | tuple) and not isinstance(answer, Prepared):
            return sorted((self.common(each, index) for each in answer), key=repr)
        return answer

    def number(self, attempt_id: str, index: int) -> str:
        return next((f"#{number}" for number, ids in enumerate(self.attempts) if ids[index] == attempt_id), attempt_id)

    def generation(self, sink: str, back: int) -> int:
        """Return the generation of some process."""
        current = next((row.generation for row in self.sql.sinks() if row.sink_id == sink), 0)
        return max(0, current + 1 - back)

    def some(self, data: Any, most: int = 3) -> list[int]:
        """Return the numbers of some attempts, mostly of new ones."""
        newest = range(max(0, len(self.attempts) - 5), len(self.attempts))
        return data.draw(st.lists(st.sampled_from(newest), max_size=most, unique=True)) if newest else []

    def mark_prepared(self, number: int, pair: str) -> None:
        prepared = Prepared(PreparedTxnState(pair), "manifest")
        self.both(lambda store, i: store.mark_prepared(self.attempts[number][i], prepared, records=3))

    # ---- operations -----------------------------------------------------------------------------------------

    @rule(sink=SINKS, query=st.none() | QUERIES, policy=POLICIES, batch=st.none() | BATCHES)
    def plan(self, sink: str, query: str | None, policy: OnNewCheckpoint, batch: int | None) -> None:
        self.both(lambda store, _: store.plan(sink, query_id=query, on_new_checkpoint=policy, batch_id=batch))

    @rule(sink=SINKS, query=QUERIES, policy=POLICIES, back=BACK)
    def begin_late(self, sink: str, query: str, policy: OnNewCheckpoint, back: int) -> None:
        generation = self.generation(sink, back)
        self.both(lambda store, _: store.begin(sink, generation, query, policy, None))

    @rule(sink=SINKS, query=QUERIES, batch=BATCHES, partition=PARTITIONS, back=BACK)
    def lease(self, sink: str, query: str, batch: int, partition: int, back: int) -> None:
        generation = self.generation(sink, back)
        task = TaskIdentity(query, batch, partition, 1, "host")
        leased = self.both(lambda store, _: store.lease(sink, generation, task))
        if leased is not None:
            self.attempts.append((*leased, sink))

    @rule(sink=SINKS, query=QUERIES, batch=BATCHES, policy=POLICIES, back=BACK)
    def is_decided_for(self, sink: str, query: str, batch: int, policy: OnNewCheckpoint, back: int) -> None:
        generation = self.generation(sink, back)
        task = TaskIdentity(query, batch, 0, 1, "host")
        self.both(lambda store, _: store.is_decided_for(sink, generation, task, policy))

    @rule(data=st.data(), pair=PAIRS)
    def prepare(self, data: Any, pair: str) -> None:
        for number in self.some(data):
            self.mark_prepared(number, pair)

    @rule(
        data=st.data(), sink=SINKS, batch=BATCHES, back=BACK, policy=POLICIES, digest=st.sampled_from([None, "a", "b"])
    )
    def decide(self, data: Any, sink: str, batch: int, back: int, policy: OnNewCheckpoint, digest: str | None) -> None:
        numbers = self.some(data)
        if numbers and data.draw(st.booleans()):
            sink = self.attempts[numbers[0]][2]
            row = next((r for r in self.sql.attempts(sink) if r.attempt_id == self.attempts[numbers[0]][0]), None)
        else:
            row = None
        query = data.draw(QUERIES) if row is None else row.query_id
        batch = batch if row is None else row.batch_id
        generation = self.generation(sink, back) if row is None else row.generation
        asked = data.draw(st.sampled_from([generation, generation, generation, None]))

        def decision(index: int) -> Decision:
            winners = tuple(self.attempts[number][index] for number in numbers)
            return Decision(sink, query, batch, asked, winners, 3 * len(winners), 0, False, digest)

        self.both(lambda store, i: store.decide(decision(i), policy))
        self.both(lambda store, i: store.resolve(decision(i)))

    @rule(sink=SINKS, batch=BATCHES, query=QUERIES, losers=st.integers(0, 1), pair=PAIRS)
    def whole_batch(self, sink: str, batch: int, query: str, losers: int, pair: str) -> None:
        """Plan, lease, prepare and decide, as far as the rules allow it."""
        self.plan(sink, query, OnNewCheckpoint.ADOPT, None)
        before = len(self.attempts)
        for partition in range(2 + losers):
            self.lease(sink, query, batch, partition, 1)
        for number in range(before, len(self.attempts) - losers):
            self.mark_prepared(number, pair)

        def decision(index: int) -> Decision:
            winners = tuple(each[index] for each in self.attempts[before : len(self.attempts) - losers])
            return Decision(sink, query, batch, self.generation(sink, 1), winners, 3 * len(winners), 0, False, "a")

        self.both(lambda store, i: store.decide(decision(i), OnNewCheckpoint.ADOPT))

    @rule(
        sink=SINKS,
        first=BATCHES,
        count=st.integers(1, 4),
        query=QUERIES,
        keep=st.integers(1, 2),
        lost=st.sampled_from([None, None, 0, 1]),
        acknowledged=st.booleans(),
    )
    def batches_and_retention(
        self, sink: str, first: int, count: int, query: str, keep: int, lost: int | None, acknowledged: bool
    ) -> None:
        """Decide and complete several batches, and delete the old ones; perhaps one lost a transaction."""
        for batch in range(first, first + count):
            before = len(self.attempts)
            self.whole_batch(sink, batch, query, 1, "7:1")
            ending = Ending.LOST if batch - first == lost else Ending.COMMITTED
            self.both(partial(_completed, sink, self.attempts[before:], ending))
            if ending is Ending.LOST and acknowledged:
                self.acknowledge(sink, query, batch)
        self.both(lambda store, _: store.plan(sink, query_id=query, on_new_checkpoint=OnNewCheckpoint.FAIL, batch_id=1))
        self.both(lambda store, _: store.prune(sink, keep))

    @rule(sink=SINKS, query=QUERIES, first=st.integers(5, 9), keep=st.integers(1, 3))
    def generations_that_were_given_up(self, sink: str, query: str, first: int, keep: int) -> None:
        """Before each of some batches give a generation up, with an attempt; delete old batches."""
        for batch in range(first, first + 3):
            self.plan(sink, query, OnNewCheckpoint.ADOPT, None)
            before = len(self.attempts)
            self.lease(sink, query, batch, 0, 1)
            self.condemn(sink)
            self.both(partial(_completed, sink, self.attempts[before:], Ending.ABORTED))
            before = len(self.attempts)
            self.whole_batch(sink, batch, query, 0, "7:1")
            self.both(partial(_recorded, sink, partial(_all_committed, self.attempts[before:])))
        self.both(lambda store, _: store.prune(sink, keep))

    @rule(sink=SINKS, data=st.data(), pair=PAIRS)
    def record(self, sink: str, data: Any, pair: str) -> None:
        numbers = self.some(data)
        endings = [data.draw(st.sampled_from(Ending)) for _ in numbers]
        errors = [
            data.draw(st.sampled_from([None, ValueError("x" * 2000), StoreWentBackError("back")])) for _ in numbers
        ]
        pairs = [data.draw(st.sampled_from([pair, "7:1"])) for _ in numbers]
        numbers = [number for number in numbers if self.attempts[number][2] == sink]

        def ended(index: int) -> dict[str, Ended]:
            given = zip(numbers, endings, errors, pairs, strict=False)
            return {self.attempts[n][index]: Ended(end, e, PreparedTxnState(p)) for n, end, e, p in given}

        self.both(lambda store, i: store.record(sink, ended(i)))

    @rule(data=st.data(), old=PAIRS, new=PAIRS)
    def replace(self, data: Any, old: str, new: str) -> None:
        for number in self.some(data, 1):
            sink, anew = self.attempts[number][2], Prepared(PreparedTxnState(new), "anew")
            given = (PreparedTxnState(old), anew)
            self.both(partial(_replaced, sink, self.attempts[number], given))

    @rule(data=st.data(), pair=PAIRS)
    def mark_lost(self, data: Any, pair: str) -> None:
        for number in self.some(data, 1):
            lost = self.attempts[number][:2]
            sink, state = self.attempts[number][2], PreparedTxnState(pair)
            self.both(partial(_marked_lost, sink, lost, state))

    @rule(sink=SINKS, query=QUERIES, batch=BATCHES)
    def acknowledge(self, sink: str, query: str, batch: int) -> None:
        self.both(lambda store, _: store.acknowledge_lost(sink, query, batch))

    @rule(sink=SINKS, query=QUERIES, batch=BATCHES, back=BACK)
    def give_up(self, sink: str, query: str, batch: int, back: int) -> None:
        generation = self.generation(sink, back)
        self.both(lambda store, _: store.give_up(sink, query_id=query, batch_id=batch, generation=generation))

    @rule(sink=SINKS)
    def condemn(self, sink: str) -> None:
        self.both(lambda store, _: store.condemn(sink))

    @rule(sink=SINKS, keep=st.integers(1, 2))
    def prune(self, sink: str, keep: int) -> None:
        self.both(lambda store, _: store.prune(sink, keep))

    @rule(
        sink=SINKS,
        partition=PARTITIONS,
        slots=st.lists(st.integers(0, 3), max_size=2),
        pair=PAIRS,
        retire=st.booleans(),
    )
    def orphans(self, sink: str, partition: int, slots: list[int], pair: str, retire: bool) -> None:
        pairs = {f"{sink}-{partition}-{slot}": pair for slot in slots}
        self.both(lambda store, _: store.retire_orphans(sink, pairs, "") if retire else store.orphans(sink, pairs, ""))

    @rule()
    def another_process(self) -> None:
        """Read the topic anew."""
        self.topic = TopicStore(FakeLog(self.partition))

    # ---- displays -------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_the_same(self) -> None:
        if not hasattr(self, "topic"):
            return
        self.both(lambda store, _: store.sinks())
        for sink in ("s", "t"):
            for operation in ("batches", "attempts", "claims"):
                self.both(partial(_shown, sink, operation))
        ids = list(range(len(self.attempts)))[-4:]
        for verdict in Verdict:
            self.both(partial(_still_wanted, verdict, [self.attempts[number] for number in ids]))
        self.both(lambda store, i: [store.is_open(self.attempts[n][i]) for n in ids])
        self.both(lambda store, i: store.prepared_states([self.attempts[n][i] for n in ids]))


def test_the_same_answers() -> None:
    run_state_machine_as_test(
        SameAnswers,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
