"""Requests that arrive late on real brokers: every effect is reported, as on the emulator's profiles."""

from __future__ import annotations

import pytest

from dualwrite.guarantee import Tier
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.late_matrix import STORED_PAIR, V1, V2, cells, forgotten, told
from tests.support.late_requests import TWO_PHASE, Cell, How, Play
from tests.support.own_producer import OwnProducer
from tests.support.real_kafkas import shared_kafka
from tests.support.unavailable import skip

from .clusters import KINDS

MATRICES = {Tier.BOUNDED_V1: V1, Tier.BOUNDED: V2, Tier.STORED_PAIR: STORED_PAIR}
ARRIVES_LATE = (How.LATE, How.BETWEEN)
"""The other ways take long and show little here; `python -m tests.interop.late_requests` runs all."""


@pytest.mark.parametrize(
    ("tier", "cell"),
    [
        pytest.param(tier, cell, id=f"tier {tier}-{cell}")
        for tier, kind in MATRICES.items()
        for cell in cells(kind)
        if cell.how in ARRIVES_LATE
    ],
)
def test_every_effect_is_reported(tier: Tier, cell: Cell) -> None:
    try:
        kafka = shared_kafka(KINDS[tier])
    except ServerUnavailableError as error:
        skip(error)
    make = OwnProducer.with_two_phase_commit if cell.end in TWO_PHASE else OwnProducer
    outcome = Play(kafka.bootstrap_servers, make, cell).run()
    assert outcome.is_caught
    assert outcome.anomalies == forgotten(MATRICES[tier], cell)
    assert outcome.told == told(MATRICES[tier], cell)
