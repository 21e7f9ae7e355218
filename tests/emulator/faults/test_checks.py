"""A fault that can never hit is refused, with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from dualwrite.broker_emulator import (
    CloseAfter,
    CrashBefore,
    Delay,
    Duplicate,
    Error,
    Fault,
    Faults,
    Hold,
    PartitionError,
    PausePoint,
)

ANYTHING: Any = object()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (Fault(api="EndTnx"), "Kafka has no API called 'EndTnx'; did you mean 'EndTxn'"),
        (Fault(api="zzzzzz"), "Kafka has no API called 'zzzzzz'"),
        (Fault(api=999), "Kafka has no API of key 999"),
        (Fault(api=ANYTHING), "api is a key or a name"),
        (Fault(topic=ANYTHING), "topic is a name"),
        (Fault(group=ANYTHING), "group is a name"),
        (Fault(partition=-1), "partition is a number from 0 on, not -1"),
        (Fault(node=ANYTHING), "node is a number"),
        (Fault(skip=-1), "skip is a number"),
        (Fault(count=0), "count is a number from 1 on, or None"),
        (Fault(predicate=ANYTHING), "predicate is called with each request"),
        (Fault(action=ANYTHING), "is no action; there are Error, PartitionError"),
        (Fault(action=Error("NOT_CORDINATOR")), "Kafka has no error code 'NOT_CORDINATOR'"),
        (Fault(action=Error(4711)), "Kafka has no error code 4711"),
        (Fault(action=PartitionError(3)), "PartitionError needs a topic"),
        (Fault(action=Delay(-1)), "a delay lasts a number of milliseconds"),
        (Fault(action=Duplicate(after_requests=-1)), "after_requests is a number from 0 on"),
        (Fault(action=Duplicate(after_requests=1, on_release=True)), "not for both"),
        (Fault(point=ANYTHING), "is no pause point; there are before-"),
        (Fault(point=PausePoint.BEFORE_MARKER, api="EndTxn"), "a pause point of the coordinator knows no api"),
        (Fault(point=PausePoint.BEFORE_MARKER, group="g"), "knows no group"),
        (Fault(point=PausePoint.BEFORE_MARKER, action=CloseAfter()), "only Hold, Delay, CrashBefore can be done"),
    ],
)
def test_refused(fault: Fault, sentence: str) -> None:
    faults = Faults()
    with pytest.raises(ValueError) as raised:
        faults.add(fault)
    assert sentence in str(raised.value)
    assert not faults.active


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"no API called.*count is a number"):
        Faults().add(Fault(api="nope", count=0))


@pytest.mark.parametrize("api", ["EndTxn", "end_txn", "endtxn", 26, "26"])
def test_an_api_has_several_names(api: str | int) -> None:
    assert Faults().add(Fault(api=api, action=Error("not_coordinator"))).hits == 0


def test_what_is_in_place_says_who_has_to_look() -> None:
    faults = Faults()
    request = faults.add(Fault(api="EndTxn", action=Hold()))
    assert (faults.active, faults.meets_markers, faults.meets_points) == (True, False, False)
    marker = faults.add(Fault(api="WriteTxnMarkers", action=Error(7)))
    assert faults.meets_markers
    point = faults.add(Fault(point=PausePoint.BEFORE_MARKER, action=CrashBefore()))
    assert faults.meets_points
    for handle in (request, marker, point):
        handle.remove()
    assert (faults.active, faults.meets_markers, faults.meets_points) == (False, False, False)
