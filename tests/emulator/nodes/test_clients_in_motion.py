"""aiokafka does transactions while leaders and coordinators move and nodes die: only committed records are seen.

Our own producer is disturbed in tests/producer/test_moves_and_limits.py, librdkafka's in tests/interop/killed_copy.py.

Nothing happens "meanwhile": a disturbance is either a call between two steps of the client, or a fault at a request or
at an instant of the coordinator, which crashes the serving node. A crashed node is started again once the next
transaction has begun, and everything has to come right while the last transactions run undisturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, CrashAfter, CrashBefore, Emulator, Fault, FaultHandle, PausePoint
from tests.emulator.nodes.conftest import NODES
from tests.emulator.nodes.reading import read_committed
from tests.support.conditions import until

# imported as untyped: their types do not pass mypy's strict mode
aiokafka: Any = import_module("aiokafka")
aiokafka_errors: Any = import_module("aiokafka.errors")

TIMEOUT_S = 30.0
TOPIC = "many"
PARTITIONS = 3
OUTCOMES = [True, False, True, True, False]
DISTURBED = (1, 2)
"""The disturbed transactions: an aborted and a committed one."""

Disturbance = Callable[[Emulator], FaultHandle | None]


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=3, offsets_topic_num_partitions=3)
    with Emulator(nodes=NODES, config=config, topics={TOPIC: PARTITIONS}) as broker:
        yield broker


def next_living(emulator: Emulator, node_id: int) -> int:
    living = emulator.living_nodes
    return next(other for other in [*living, *living] if other > node_id or other == living[0] != node_id)


def move_every_leader(emulator: Emulator) -> None:
    for index in range(PARTITIONS):
        emulator.move_leader(TOPIC, index, next_living(emulator, emulator.log(TOPIC, index).leader_id))


def move_coordinator(emulator: Emulator) -> None:
    emulator.move_coordinator(next_living(emulator, emulator.coordinator(transactional_id="x")), transactional_id="x")


def crash_coordinator(emulator: Emulator) -> None:
    emulator.crash_node(emulator.coordinator(transactional_id="x"))


def stop_coordinator(emulator: Emulator) -> None:
    emulator.stop_node(emulator.coordinator(transactional_id="x"))


def leader_only(emulator: Emulator) -> int:
    """A node that leads a partition and does not coordinate."""
    leaders = {emulator.log(TOPIC, index).leader_id for index in range(PARTITIONS)}
    leaders.discard(emulator.coordinator(transactional_id="x"))
    return min(leaders)


def crash_leader(emulator: Emulator) -> None:
    emulator.crash_node(leader_only(emulator))


def stop_leader(emulator: Emulator) -> None:
    emulator.stop_node(leader_only(emulator))


def at_request(api: str, action: CrashBefore | CrashAfter) -> Disturbance:
    return lambda emulator: emulator.faults.add(Fault(api=api, action=action))


def at_point(point: PausePoint) -> Disturbance:
    return lambda emulator: emulator.faults.add(Fault(point=point, action=CrashBefore()))


BETWEEN = [move_every_leader, move_coordinator, crash_coordinator, stop_coordinator, crash_leader, stop_leader]
AT = {
    "produce-before": at_request("Produce", CrashBefore()),
    "produce-after": at_request("Produce", CrashAfter()),
    "end-txn-before": at_request("EndTxn", CrashBefore()),
    "end-txn-after": at_request("EndTxn", CrashAfter()),
    "before-state": at_point(PausePoint.BEFORE_STATE_APPEND),
    "after-state": at_point(PausePoint.AFTER_STATE_APPEND),
    "before-prepare": at_point(PausePoint.BEFORE_PREPARE_APPEND),
    "after-prepare": at_point(PausePoint.AFTER_PREPARE_APPEND),
    "before-marker": at_point(PausePoint.BEFORE_MARKER),
    "after-marker": at_point(PausePoint.AFTER_MARKER),
    "before-complete": at_point(PausePoint.BEFORE_COMPLETE_APPEND),
    "after-complete": at_point(PausePoint.AFTER_COMPLETE_APPEND),
}
CASES: dict[str, tuple[str, Disturbance]] = {
    **{f"{between.__name__}-at-{step}": (step, between) for between in BETWEEN for step in ("send", "flush")},
    **{name: ("begin", at) for name, at in AT.items()},
}


class HasToAbortError(Exception):
    """The client says that only another transaction can be committed."""


class Client:
    """aiokafka, in a loop that runs only during a call. Every call may raise HasToAbortError, except for `abort`."""

    def __init__(self, servers: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._producer = self._loop.run_until_complete(self._start(servers))

    @staticmethod
    async def _start(servers: str) -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers, transactional_id="x", retry_backoff_ms=10, request_timeout_ms=10_000
        )
        await producer.start()
        return producer

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, value: bytes, partition: int) -> None:
        self._run(self._producer.send(TOPIC, value, partition=partition))

    def flush(self) -> None:
        self._run(self._producer.flush())

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            self._loop.run_until_complete(asyncio.wait_for(work, TIMEOUT_S))
        except aiokafka_errors.KafkaError as error:
            raise HasToAbortError from error


@pytest.mark.parametrize("case", sorted(CASES))
def test_only_committed_records_are_seen(emulator: Emulator, case: str) -> None:
    step, disturb = CASES[case]
    expected: list[bytes] = []
    with ExitStack() as closing:
        client = Client(emulator.bootstrap_servers)
        closing.callback(client.close)
        for number, commits in enumerate(OUTCOMES):
            disturbed_step = step if number in DISTURBED else None
            expected += run_until_done(emulator, client, number, commits, disturbed_step, disturb)
    until(lambda: all(row.state in ("CompleteCommit", "CompleteAbort") for row in emulator.transactions()))
    assert read_committed(emulator, TOPIC, PARTITIONS) == sorted(expected)
    for index in range(PARTITIONS):
        log = emulator.log(TOPIC, index)
        assert log.last_stable_offset == log.high_watermark == log.log_end_offset
        assert all(producer.current_txn_start_offset == -1 for producer in log.producers)


def run_until_done(
    emulator: Emulator, client: Client, number: int, commits: bool, disturbed_step: str | None, disturb: Disturbance
) -> list[bytes]:
    """Run a transaction, again as often as the client reports an abort; return the committed values."""
    for attempt in range(10):
        values = [f"{number}-{attempt}-{index}".encode() for index in range(PARTITIONS)]
        fault = None

        def reach(step: str) -> FaultHandle | None:
            return disturb(emulator) if step == disturbed_step and attempt == 0 else None  # noqa: B023

        client.begin()
        start_crashed_nodes(emulator)
        try:
            fault = reach("begin")
            client.send(values[0], 0)
            fault = reach("send") or fault
            for index in range(1, PARTITIONS):
                client.send(values[index], index)
            client.flush()
            fault = reach("flush") or fault
            (client.commit if commits else client.abort)()
        except HasToAbortError:
            client.abort()
        else:
            return values if commits else []
        finally:
            if fault is not None:
                fault.wait()  # the crash may come after the response
    raise AssertionError("ten attempts, and none could be ended as it was meant to be")


def start_crashed_nodes(emulator: Emulator) -> None:
    for node_id in set(range(NODES)) - set(emulator.living_nodes):
        emulator.start_node(node_id)
