"""Kafka away under load and under kills, with stored and with refused blocks: `away_chaos.py`.

CHAOS_AWAY_S=60 for a minute, CHAOS_SEED for the same choices again.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from dualwrite.guarantee import Tier
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.crash.away_chaos import REFUSE, STORE, plan_of, run_away_chaos
from tests.crash.away_verdict import AwayFindings
from tests.crash.chaos_job import COMMITTED
from tests.support.unavailable import skip

SHORT_S = 3.0
AWAY_S = float(os.environ.get("CHAOS_AWAY_S", "15"))
SECONDS_TO_COME_RIGHT = 180
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**31)))


def _run(mode: str, away_s: float, tier: Tier, **changes: Any) -> AwayFindings:
    print(f"CHAOS_SEED={SEED}")
    try:
        tally = run_away_chaos(plan_of(mode, away_s=away_s, seed=SEED, tier=tier, **changes))
    except ServerUnavailableError as error:
        skip(error)
    print(tally)
    found = tally.findings
    assert isinstance(found, AwayFindings)
    print(*found.lines(), sep="\n")
    return found


def committed_away(found: AwayFindings) -> int:
    return sum(each.how == COMMITTED for _, told in found.absences for each in told)


@pytest.mark.timeout(SECONDS_TO_COME_RIGHT)
def test_blocks_are_stored_and_come_right() -> None:
    found = _run(STORE, SHORT_S, Tier.KEEP_PREPARED, seconds=1.0, writers=2)
    assert committed_away(found) > 0


@pytest.mark.timeout(AWAY_S * 3 + SECONDS_TO_COME_RIGHT)
@pytest.mark.parametrize("tier", Tier, ids=lambda tier: tier.name)
def test_on_every_tier(tier: Tier) -> None:
    found = _run(STORE, AWAY_S, tier, seconds=5.0)
    assert committed_away(found) > 0


@pytest.mark.timeout(AWAY_S * 3 + SECONDS_TO_COME_RIGHT)
def test_while_connections_to_the_database_are_cut() -> None:
    found = _run(STORE, AWAY_S, Tier.KEEP_PREPARED, seconds=5.0, cuts=True)
    assert committed_away(found) > 0


@pytest.mark.timeout(AWAY_S * 3 + SECONDS_TO_COME_RIGHT)
def test_refused_for_longer() -> None:
    found = _run(REFUSE, AWAY_S, Tier.KEEP_PREPARED, seconds=5.0)
    assert committed_away(found) == 0
    assert found.refused_s
