"""A request carried out after its sender was given up is harmless: its id is never leased again.

Below tier 1 an InitProducerId aborts any open transaction. Here each request of a process is delayed in turn, until the
next attempt of its partition is prepared and decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dualwrite.broker_emulator import Fault, Hold
from dualwrite.errors import KafkaError
from dualwrite.guarantee import Tier
from spark_sink.driver.finisher import CommitSummary
from spark_sink.driver.protocol import Sink
from spark_sink.errors import SinkError
from spark_sink.handoff import TaskResult
from spark_sink.pause_points import PausePoint
from tests.spark.repairs import SCHEMA, RepairSite, repair_site
from tests.spark.sink_model import QUERY, Stalling, task
from tests.support.conditions import until

LATE = "late"
USED_BATCH = 0
BATCH = 1
MODE: dict[str, Any] = {"txn__mode": "resume"}
DESCRIBE, INIT, ADD, PRODUCE, END = (
    "DescribeTransactions",
    "InitProducerId",
    "AddPartitionsToTxn",
    "Produce",
    "EndTxn",
)
BY_PAIR = [(DESCRIBE, 0), (DESCRIBE, 1), (INIT, 0), (PRODUCE, 0)]
OF_TASK = {
    Tier.KEEP_PREPARED: [(DESCRIBE, 0), (INIT, 0), (PRODUCE, 0)],
    Tier.STORED_PAIR: BY_PAIR,
    Tier.BOUNDED: BY_PAIR,
    Tier.BOUNDED_V1: [*BY_PAIR, (INIT, 1), (INIT, 2), (ADD, 0)],
}
"""The requests of a task on each tier: the first of a kind, the second, and so on."""
OF_FINISHER = {
    Tier.KEEP_PREPARED: {"open": [DESCRIBE, INIT], "prepared": [DESCRIBE, INIT, END]},
    Tier.STORED_PAIR: {"open": [DESCRIBE, INIT, END], "prepared": [DESCRIBE, END]},
    Tier.BOUNDED: {"open": [DESCRIBE, INIT, END], "prepared": [DESCRIBE, END]},
    Tier.BOUNDED_V1: {"open": [DESCRIBE, INIT], "prepared": [DESCRIBE, INIT]},
}
"""The requests by which a plan ends the transaction that an earlier task has left."""


@pytest.fixture(params=[pytest.param(False, id="new", marks=pytest.mark.proof), pytest.param(True, id="used")])
def site(request: pytest.FixtureRequest, tier: Tier, tmp_path: Path) -> Iterator[RepairSite]:
    """Yield a sink whose ids are new to the broker, or have been used by a batch before."""
    with repair_site(tier, tmp_path) as made:
        if request.param:
            made.write(USED_BATCH, "used", **MODE)
        yield made


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def late_sink(site: RepairSite) -> Sink:
    """Return a sink whose requests a fault can select."""
    return site.sink(kafka__client__id=LATE, **MODE)


def write(sink: Sink, value: str) -> TaskResult:
    """Plan a batch, and write one partition of it."""
    plan = sink.plan(SCHEMA, query_id=QUERY)
    return sink.write(plan, task(BATCH, 0), iter([pa.record_batch({"key": [value], "value": [value]})]))


def outcome(call: Future[object]) -> object:
    """Return the result of a delayed process, or its error, which has to be one of the sink's or Kafka's."""
    try:
        return call.result(60)
    except (SinkError, KafkaError) as error:
        return error


def run_late(
    site: RepairSite, thread: ThreadPoolExecutor, late: Callable[[], object], request_name: str, skipped: int
) -> None:
    """Delay a request of `late` until another process has written its batch and decided it; then let that one go on."""
    held = site.emulator.faults.add(Fault(api=request_name, action=Hold(), client_id=LATE, skip=skipped))
    call = thread.submit(late)
    until(lambda: held.held > 0 or call.done())
    committer = site.writing(BATCH, "right", **MODE).until(PausePoint.AFTER_DECISION)
    assert held.hits == 1, f"{request_name} was sent at most {skipped} times"
    held.release()
    outcome(call)
    committer.go_on()
    assert committer.error is None
    summary: CommitSummary = committer.result
    assert summary.repaired == 0, "nothing of it was aborted, so nothing had to be published again"
    site.sink(**MODE).plan(SCHEMA, query_id=QUERY)  # ends a zombie's leftovers
    used = ["used"] if site.store.batches("s")[1:] else []
    site.assert_agreed("right", *used)


@pytest.mark.parametrize(
    ("tier", "request_name", "skipped"),
    [
        pytest.param(tier, *sent, id=f"tier {int(tier)}-{sent[0]}-{sent[1]}")
        for tier, of_tier in OF_TASK.items()
        for sent in of_tier
    ],
)
def test_a_task_whose_request_is_carried_out_when_its_slot_has_another_holder(
    site: RepairSite, thread: ThreadPoolExecutor, request_name: str, skipped: int
) -> None:
    run_late(site, thread, lambda: write(late_sink(site), "late"), request_name, skipped)


@pytest.mark.parametrize(
    ("tier", "left", "request_name"),
    [
        pytest.param(tier, left, name, id=f"tier {int(tier)}-{left}-{name}")
        for tier, of_tier in OF_FINISHER.items()
        for left, names in of_tier.items()
        for name in names
    ],
)
def test_a_finisher_whose_request_is_carried_out_when_the_slot_has_another_holder(
    site: RepairSite, thread: ThreadPoolExecutor, left: str, request_name: str
) -> None:
    if left == "prepared":
        write(site.sink(**MODE), "condemned")
    else:
        sleeper = Stalling(lambda me: write(site.sink(me.reach, **MODE), "condemned")).until(PausePoint.AFTER_SEND)
        sleeper.kill()
    run_late(site, thread, lambda: late_sink(site).plan(SCHEMA, query_id=QUERY), request_name, skipped=0)
