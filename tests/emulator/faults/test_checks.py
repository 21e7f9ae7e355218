"""A fault that can never hit is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from dualwrite.broker_emulator import (
    CloseAfter,
    Delay,
    Duplicate,
    Error,
    Fault,
    Faults,
    PartitionError,
    PausePoint,
)

ANYTHING: Any = object()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (Fault(api="EndTnx"), "Kafka has no API called 'EndTnx'; did you mean 'EndTxn'"),
        (Fault(api="zzzzzz"), "Kafka has no API called 'zzzzzz'"),
        (Fault(api=999), "Kafka has no API with key 999"),
        (Fault(api=ANYTHING), "api must be the key or the name"),
        (Fault(topic=ANYTHING), "topic must be a string"),
        (Fault(group=ANYTHING), "group must be a string"),
        (Fault(partition=-1), "partition must be a number of at least 0, not -1"),
        (Fault(node=ANYTHING), "node must be a number"),
        (Fault(skip=-1), "skip must be a number"),
        (Fault(count=0), "count must be a number of at least 1, or None"),
        (Fault(predicate=ANYTHING), "predicate must be callable"),
        (Fault(action=ANYTHING), "is not an action; there are Error, PartitionError"),
        (Fault(action=Error("NOT_CORDINATOR")), "Kafka has no error code 'NOT_CORDINATOR'"),
        (Fault(action=Error(4711)), "Kafka has no error code 4711"),
        (Fault(action=PartitionError(3)), "PartitionError needs a topic"),
        (Fault(action=Delay(-1)), "duration_ms must be a number of at least 0"),
        (Fault(action=Duplicate(after_requests=-1)), "after_requests must be a number of at least 0"),
        (Fault(action=Duplicate(after_requests=1, on_release=True)), "not both"),
        (Fault(point=ANYTHING), "is not a pause point; there are before-"),
        (Fault(point=PausePoint.BEFORE_MARKER, api="EndTxn"), "a pause point has no api to select by"),
        (Fault(point=PausePoint.BEFORE_MARKER, group="g"), "has no group to select by"),
        (
            Fault(point=PausePoint.BEFORE_MARKER, action=CloseAfter()),
            "only the actions Hold, Delay, CrashBefore are possible",
        ),
    ],
)
def test_refused(fault: Fault, sentence: str) -> None:
    faults = Faults()
    with pytest.raises(ValueError) as raised:
        faults.add(fault)
    assert sentence in str(raised.value)
    assert not faults.active


@pytest.mark.parametrize("api", ["EndTxn", "end_txn", "endtxn", 26, "26"])
def test_an_api_has_several_names(api: str | int) -> None:
    assert Faults().add(Fault(api=api, action=Error("not_coordinator"))).hits == 0
