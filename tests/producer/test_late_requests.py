"""Every transactional request late, lost, twice and overtaken, on every profile: nothing happens that is not told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from tests.support.late_requests import TWO_PHASE, Cell, End, How, Play, Request
from tests.support.own_producer import OwnProducer

PROFILES = (Profile.KAFKA_3_9, Profile.KAFKA_4_3, Profile.KIP_939)


@pytest.fixture(scope="module", params=PROFILES, ids=lambda profile: profile.value)
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    with Emulator(config=BrokerConfig(profile=request.param)) as running:
        yield running


CELLS = [
    Cell(request, how, end, next_end)
    for request in Request
    for how in How
    for end in End
    for next_end in ((End.COMMIT, End.ABORT) if how is How.LATE else (End.COMMIT,))
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_x(emulator: Emulator, cell: Cell) -> None:
    v1 = emulator.config.profile is Profile.KAFKA_3_9
    if not v1 and cell.request in (Request.ADD_OFFSETS, Request.ADD_PARTITIONS, Request.RAISE):
        pytest.skip("x")
    make = OwnProducer.with_two_phase_commit if cell.end in TWO_PHASE else OwnProducer
    outcome = Play(emulator.bootstrap_servers, make, cell).run()
    assert outcome.is_caught
    assert (outcome.anomalies, outcome.told) == ([], [])
