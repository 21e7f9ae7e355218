"""Race 1: EndTxn(commit) against the scan for timeouts. The loser gets 51, then the error of table 2.6."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import PausePoint, Profile
from tests.emulator.races.racers import ALL_PROFILES, TIMEOUT_MS, Racer, completion, racing, state

SCAN_MS = TIMEOUT_MS + 20_000
CONCURRENT, FENCED, INVALID_STATE = 51, 90, 48


@pytest.mark.parametrize("profile", ALL_PROFILES)
def test_the_commit_is_first(profile: Profile) -> None:
    with racing(profile) as emulator:
        racer = Racer(emulator, new=profile is not Profile.KAFKA_3_9)
        racer.init()
        assert racer.write() == 0
        prepare = emulator.hold(PausePoint.BEFORE_PREPARE_APPEND)
        ending = racer.send_end(commit=True)
        prepare.wait_reached()
        emulator.advance_clock(SCAN_MS)  # the scan finds the id pending and leaves it
        assert prepare.hits == 1
        completed = completion(emulator)
        prepare.release()
        assert racer.receive_end(ending) == 0
        completed.wait()
        assert state(emulator) == "CompleteCommit"
        emulator.advance_clock(SCAN_MS)
        assert state(emulator) == "CompleteCommit"


@pytest.mark.parametrize(
    ("profile", "commit_afterwards", "abort_afterwards"),
    [
        (Profile.KIP_939, FENCED, 0),
        (Profile.KAFKA_4_3, INVALID_STATE, 0),
        (Profile.KAFKA_3_9, FENCED, FENCED),  # the old rules ask for the same epoch, and the abort has raised it
    ],
)
def test_the_timeout_is_first(profile: Profile, commit_afterwards: int, abort_afterwards: int) -> None:
    with racing(profile) as emulator:
        racer = Racer(emulator, new=profile is not Profile.KAFKA_3_9)
        racer.init()
        assert racer.write() == 0
        prepare = emulator.hold(PausePoint.BEFORE_PREPARE_APPEND)
        completed = completion(emulator)
        emulator.advance_clock(SCAN_MS)
        prepare.wait_reached()
        # the old rules look at the epoch first, which is still the racer's
        assert racer.end(commit=True) == CONCURRENT
        prepare.release()
        completed.wait()
        assert state(emulator) == "CompleteAbort"
        assert racer.end(commit=True) == commit_afterwards
        assert racer.end(commit=False) == abort_afterwards
        assert state(emulator) == "CompleteAbort"
        assert emulator.log("t").last_stable_offset == 2


@pytest.mark.parametrize("profile", ALL_PROFILES)
def test_the_commit_comes_between_the_abort_and_its_markers(profile: Profile) -> None:
    with racing(profile) as emulator:
        racer = Racer(emulator, new=profile is not Profile.KAFKA_3_9)
        racer.init()
        assert racer.write() == 0
        marker = emulator.hold(PausePoint.BEFORE_MARKER)
        emulator.advance_clock(SCAN_MS)
        marker.wait_reached()
        assert state(emulator) == "PrepareAbort"
        # old rules: epoch before pending, and the Prepare record has raised it; new rules: pending first
        assert racer.end(commit=True) == (FENCED if profile is Profile.KAFKA_3_9 else CONCURRENT)
        assert emulator.log("t").last_stable_offset == 0
        marker.release()
