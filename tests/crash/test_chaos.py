"""All ways side by side under kills, freezes and an absence of Kafka, for moments: `chaos.py`.

CHAOS_SECONDS=600 for longer, CHAOS_SEED for the same choices again.
"""

from __future__ import annotations

import os
import random

import pytest

from dualwrite.guarantee import Tier
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.crash.chaos import run_chaos
from tests.crash.chaos_job import COMMITTED
from tests.crash.chaos_plan import Plan
from tests.crash.chaos_ways import WAYS
from tests.support.unavailable import skip

SHORT_S = 3.0
AWAY_S = 15.0
SECONDS = float(os.environ.get("CHAOS_SECONDS", "45"))
SECONDS_TO_COME_RIGHT = 300
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**31)))


def _come_right(plan: Plan) -> None:
    print(f"CHAOS_SEED={SEED}")
    try:
        tally = run_chaos(plan)
    except ServerUnavailableError as error:
        skip(error)
    print(*tally.lines(), sep="\n")
    assert tally.deeds.total() > 0
    assert {way for way, told in tally.told if told == COMMITTED} == set(WAYS)
    assert set(tally.ordered) == set(WAYS)


@pytest.mark.timeout(SECONDS_TO_COME_RIGHT)
def test_both_sides_agree_after_moments() -> None:
    _come_right(Plan(SHORT_S, SEED, Tier.KEEP_PREPARED, away_s=SHORT_S, writers=2))


@pytest.mark.timeout(SECONDS + SECONDS_TO_COME_RIGHT)
@pytest.mark.parametrize("tier", Tier, ids=lambda tier: tier.name)
def test_both_sides_agree_on_every_tier(tier: Tier) -> None:
    _come_right(Plan(SECONDS, SEED, tier, away_s=AWAY_S))
