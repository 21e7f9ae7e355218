"""Race 5: a marker of one transaction arrives when the next one has begun on the partition.

By the old rules both have the same epoch, and the marker closes the wrong one: this is why KIP-890 bumps it.
"""

from __future__ import annotations

from typing import Any

import pytest

from dualwrite.broker_emulator import Duplicate, Emulator, Fault
from tests.emulator.races.racers import Racer, committed_read, completion, racing


def late_marker(emulator: Emulator, racer: Racer, *, commit: bool) -> Any:
    """Run a transaction whose marker comes twice, begin the next, let the copy arrive; return the leader's response."""
    racer.init()
    assert racer.write() == 0
    completed = completion(emulator)
    late = emulator.faults.add(Fault(api="WriteTxnMarkers", topic="t", action=Duplicate(on_release=True)))
    assert racer.end(commit=commit) == 0
    completed.wait()
    assert racer.write() == 0
    late.wait_held()
    late.release()
    (answer,) = late.wait_unsent()
    return answer.markers[0].topics[0].partitions[0].error_code


@pytest.mark.parametrize("commit", [False, True])
def test_new_rules_refuse_it(commit: bool) -> None:
    with racing() as emulator:
        racer = Racer(emulator, new=True)
        assert late_marker(emulator, racer, commit=commit) == 47
        assert committed_read(racer.client)[0] == 2
        completed = completion(emulator)
        assert racer.end(commit=True) == 0
        completed.wait()
        assert committed_read(racer.client) == (4, [] if commit else [0])


def test_old_rules_abort_a_transaction_that_is_open_and_is_committed_afterwards() -> None:
    with racing() as emulator:
        racer = Racer(emulator, new=False)
        assert late_marker(emulator, racer, commit=False) == 0
        assert committed_read(racer.client) == (4, [0, 2])  # record, abort, record, abort
        completed = completion(emulator)
        assert racer.end(commit=True) == 0
        completed.wait()
        assert committed_read(racer.client) == (5, [0, 2])  # committed, and lost
