"""Race 4: a Produce of the aborted transaction. Before the marker it is part of the abort, after it it is refused."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.races.racers import Racer, committed_read, completion, racing

INVALID_EPOCH, INVALID_STATE, ABORTABLE = 47, 48, 120


@pytest.mark.parametrize("new", [False, True])
def test_before_the_marker_it_is_aborted_too(new: bool) -> None:
    with racing() as emulator:
        racer, late = Racer(emulator, new=new), Racer(emulator, new=new)
        late.become(racer.init())
        assert racer.write() == 0
        marker = emulator.hold(PausePoint.BEFORE_MARKER)
        completed = completion(emulator)
        assert racer.end(commit=False) == 0
        marker.wait_reached()
        assert late.produce(sequence=1) == 0
        marker.release()
        completed.wait()
        assert committed_read(racer.client) == (3, [0])


@pytest.mark.parametrize(("new", "error"), [(False, INVALID_STATE), (True, INVALID_EPOCH)])
def test_verified_before_the_marker_and_appended_after_it(new: bool, error: int) -> None:
    """KAFKA-14884: an append verified before the abort must not follow it. The marker removed its guard.

    The marker of EndTxn v5 has a later epoch, which is checked first (KAFKA-19690).
    """
    with racing() as emulator:
        racer, late = Racer(emulator, new=new), Racer(emulator, new=new)
        late.become(racer.init())
        if not new:
            assert racer.add() == 0
        verified = emulator.hold(PausePoint.AFTER_VERIFICATION)
        producing = late.send_produce()
        verified.wait_reached()
        completed = completion(emulator)
        assert racer.end(commit=False) == 0
        completed.wait()
        verified.release()
        assert late.receive_produce(producing).error_code == error
        assert committed_read(racer.client) == (1, [])  # the marker, and nothing that it would have to abort


@pytest.mark.parametrize(("new", "error"), [(False, ABORTABLE), (True, INVALID_EPOCH)])
def test_after_the_marker_it_is_refused(new: bool, error: int) -> None:
    """By the coordinator, which is asked again: the partition is in no transaction, or the epoch is over."""
    with racing() as emulator:
        racer, late = Racer(emulator, new=new), Racer(emulator, new=new)
        late.become(racer.init())
        assert racer.write() == 0
        completed = completion(emulator)
        assert racer.end(commit=False) == 0
        completed.wait()
        assert late.produce(sequence=1) == error
        assert committed_read(racer.client) == (2, [0])
