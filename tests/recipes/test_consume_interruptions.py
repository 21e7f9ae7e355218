"""An exception of a signal handler, wherever it strikes, leaves out no partition and no record."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import count, cycle
from types import FrameType
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Partition

from dualwrite.errors import KafkaTimeoutError
from dualwrite.producer import ConsumerGroupMetadata, Producer, TopicPartition
from dualwrite.recipes.consume import consumer_confluent
from dualwrite.recipes.consume.consume import ConsumedRecord, ConsumeTransformWrite
from dualwrite.recipes.consume.consumer_confluent import ConfluentAdapter
from dualwrite.recipes.consume.consumers import KafkaPythonAdapter
from dualwrite.recipes.core import blocking
from dualwrite.recipes.sqlalchemy.writer import DualTransaction
from tests.recipes.pipelines import Site, copy
from tests.recipes.pipelines import emulator as emulator
from tests.recipes.pipelines import library as library
from tests.recipes.pipelines import site as site
from tests.support.conditions import until
from tests.support.databases import event_bodies
from tests.support.strikes import StruckError, StruckExit, explained

FIRST, SECOND, LOST = ALL = [TopicPartition("in", partition) for partition in range(3)]
OFFSETS = {FIRST: 5, SECOND: 7, LOST: 3}
"""The group's offsets in Kafka."""


class Librdkafka:
    """The assignment of a consumer, and the rebalances that its polls report, under librdkafka's rules."""

    def __init__(self, is_cooperative: bool) -> None:
        self.is_cooperative = is_cooperative
        self.owned: set[TopicPartition] = set()
        self.assigned: dict[TopicPartition, int] = {}
        self.rebalances: list[tuple[str, Collection[TopicPartition]]] = []

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self._callbacks = callbacks

    def assign(self, partitions: list[Any]) -> None:
        self._is_answered = True
        if self.is_cooperative:
            self._is_answered = False
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.assigned = positions(partitions)

    def incremental_assign(self, partitions: list[Any]) -> None:
        self._is_answered = True
        if self.assigned.keys() & positions(partitions).keys():
            raise KafkaException(KafkaError(KafkaError._CONFLICT))
        self.assigned.update(positions(partitions))

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self._is_answered = True
        if positions(partitions).keys() - self.assigned.keys():
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
        for each in positions(partitions):
            del self.assigned[each]

    def assignment(self) -> list[Any]:
        return [Partition(*each) for each in self.assigned]

    def position(self, partitions: list[Any]) -> list[Any]:
        return [Partition(each.topic, each.partition, OFFSET_INVALID) for each in partitions]

    def poll(self, timeout_s: float) -> None:
        while self.rebalances:
            kind, partitions = self.rebalances.pop(0)
            self.owned = self.owned.union(partitions) if kind == "on_assign" else self.owned.difference(partitions)
            given = [Partition(*each, OFFSET_INVALID) for each in partitions]
            self._is_answered = False
            try:
                self._callbacks[kind](self, given)
            except StruckExit:
                with suppress(KafkaException):
                    self._answer(kind, given)
                raise
            self._answer(kind, given)

    def _answer(self, kind: str, given: list[Any]) -> None:
        """Do what the binding does after a callback that did not."""
        if self._is_answered:
            return
        if not self.is_cooperative:
            self.assign(given if kind == "on_assign" else [])
        elif kind == "on_assign":
            self.incremental_assign(given)
        else:
            self.incremental_unassign(given)


def positions(partitions: list[Any]) -> dict[TopicPartition, int]:
    named = {TopicPartition(each.topic, each.partition): each.offset for each in partitions}
    return {each: OFFSETS[each] if offset == OFFSET_INVALID else offset for each, offset in named.items()}


class Use:
    """A consumer that has two partitions, gets a third one, reads them again, and loses one."""

    def __init__(self, is_cooperative: bool) -> None:
        self.library = Librdkafka(is_cooperative)
        self._adapter = ConfluentAdapter(self.library)
        self._adapter.start = self._start
        blocking.run(self._adapter.subscribe(["in"]))
        kept = [FIRST, SECOND]
        self._gain = [("on_assign", [LOST])] if is_cooperative else [("on_revoke", kept), ("on_assign", ALL)]
        self._loss = [("on_revoke", [LOST])] if is_cooperative else [("on_revoke", ALL), ("on_assign", kept)]
        self._rebalance([("on_assign", ALL), *self._loss])  # one is lost before it is placed
        self.acts: list[Callable[[], object]] = [
            lambda: self._rebalance(self._gain),
            self._read_again,
            self._start_again,
            lambda: self._rebalance(self._loss),
        ]

    async def _start(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {}

    def _rebalance(self, rebalances: list[tuple[str, list[TopicPartition]]]) -> None:
        self.library.rebalances += rebalances
        self._poll_twice()

    def _read_again(self) -> None:
        """Behind records that are not written yet."""
        blocking.run(self._adapter.seek({SECOND: 9}))

    def _start_again(self) -> None:
        """After a poll that was interrupted when it had records."""
        self.library.assigned[FIRST] += 1
        self._adapter.is_torn = True
        blocking.run(self._adapter.seek({SECOND: OFFSETS[SECOND]}))

    def _poll_twice(self) -> None:
        """New partitions are placed by the poll after the one that reported them."""
        for _ in range(2):
            blocking.run(self._adapter.poll(0, 1))

    def go_on(self) -> None:
        """Do what the steps do after an error, which know the position of one partition."""
        blocking.run(self._adapter.seek({SECOND: OFFSETS[SECOND]}))
        self._poll_twice()


class StrikeBefore:
    """Raises an exception in front of the bytecode of the adapter with this number."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.where = ""
        """Empty if there is none with that number."""

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != consumer_confluent.__file__:
            return None
        frame.f_trace_opcodes = True
        self._left -= event == "opcode"
        if not self._left and not self.where:
            self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            raise StruckExit
        return self._trace


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("number", range(4), ids=["gain", "read again", "start again", "lose"])
@pytest.mark.parametrize("is_cooperative", [False, True], ids=["eager", "cooperative"])
def test_each_partition_is_read_from_its_position_wherever_confluent_kafka_is_interrupted(
    is_cooperative: bool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConfluentAdapter, "_membership", lambda _: ConsumerGroupMetadata("movers"))
    for at in count(1):
        use = Use(is_cooperative)
        assert use.library.assigned.keys() == use.library.owned
        for act in use.acts[:number]:
            act()
        strike = StrikeBefore(at)
        with strike, suppress(StruckExit):
            use.acts[number]()
        with explained(strike.where):
            for act in [lambda: None, *use.acts[number + 1 :]]:
                act()
                use.go_on()
                assert use.library.assigned == {each: OFFSETS[each] for each in use.library.owned}
        if not strike.where:
            break
    assert at > 50


class Unread:
    """A consumer of kafka-python whose group has no offsets, and whose poll is interrupted."""

    def __init__(self, reset: str) -> None:
        deserializers = {"key_deserializer": None, "value_deserializer": None}
        settings = {"enable_auto_commit": False, "isolation_level": "read_committed", "auto_offset_reset": reset}
        self.config = settings | deserializers
        self.sought: list[str] = []

    def assignment(self) -> set[TopicPartition]:
        return {FIRST}

    def committed(self, partition: object) -> None:
        return None

    def poll(self, *_: object, **named: object) -> None:
        raise StruckError

    def seek_to_beginning(self, *partitions: object) -> None:
        self.sought.append("beginning")

    def seek_to_end(self, *partitions: object) -> None:
        self.sought.append("end")


@pytest.mark.parametrize(("reset", "sought"), [("earliest", ["beginning"]), ("latest", ["end"]), ("none", [])])
def test_a_partition_without_an_offset_starts_again_at_its_beginning(reset: str, sought: list[str]) -> None:
    consumer = Unread(reset)
    adapter = KafkaPythonAdapter(consumer)
    with pytest.raises(StruckError):
        blocking.run(adapter.poll(0, 1))
    for _ in range(2):
        blocking.run(adapter.seek({}))
    assert consumer.sought == sought


class Torn:
    """A consumer that is interrupted when the library has given records out, at every second poll that has some."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._strikes = cycle([True, False])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def poll(self, *arguments: Any, **named: Any) -> Any:
        found = self._consumer.poll(*arguments, **named)
        if found and next(self._strikes):
            raise StruckExit
        return found


class Refusing:
    """A handler that fails at first, so often, without blaming a record."""

    def __init__(self, times: int) -> None:
        self._left = times

    def __call__(self, tx: DualTransaction, record: ConsumedRecord) -> None:
        if self._left:
            self._left -= 1
            raise KafkaTimeoutError("refused")
        copy(tx, record)


def carry_despite_errors(site: Site, pipeline: ConsumeTransformWrite, *bodies: str) -> None:
    def is_last_written() -> bool:
        with suppress(StruckExit, KafkaTimeoutError):
            pipeline.step(10_000)
        return len(event_bodies(site.database)) >= len(bodies)

    until(is_last_written)
    site.assert_carried(*bodies)


def test_records_of_a_poll_that_was_interrupted_are_read_again(site: Site) -> None:
    """The interruption hits partitions that have no offset yet, from which nothing was written before."""
    site.fill(*"abcd")
    pipeline = site.pipeline(Refusing(3), max_records=1)
    adapter: Any = pipeline._steps._consumer
    adapter._consumer = Torn(adapter._consumer)
    carry_despite_errors(site, pipeline, *"abcd")


def test_records_before_a_gap_are_read_again_when_their_write_failed(site: Site) -> None:
    """Of a partition without an offset, whose gap is read twice before it is believed."""
    with Producer(bootstrap_servers=site.emulator.bootstrap_servers, transactional_id="filler") as producer:
        producer.init_transactions()
        for values in ("ab", "cd"):
            producer.begin_transaction()
            for value in values:
                producer.send("in", value, partition=0)
            producer.commit_transaction()
    carry_despite_errors(site, site.pipeline(Refusing(2)), *"abcd")
