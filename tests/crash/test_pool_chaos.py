"""Random kills of everything under pools for a minute, and with freezes on each tier for moments: `pool_chaos.py`.

CHAOS_SECONDS=600 for longer, CHAOS_SEED for the same choices again.
"""

from __future__ import annotations

import os
import random

import pytest

from dualwrite.guarantee import Tier
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.crash.pool_chaos import OUTBOXES, Plan, Tally, run_chaos, with_freezes
from tests.crash.rival_worker import RECOVERY
from tests.support.unavailable import skip

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SECONDS_WITH_FREEZES = float(os.environ.get("CHAOS_SECONDS", "15"))
SECONDS_TO_COME_RIGHT = 180
REST_S = 1.0
"""The longest rest between two dual writes of a slot: of 64 slots some are always in the middle of one."""
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**31)))


def _run(plan: Plan) -> Tally:
    print(f"CHAOS_SEED={SEED}")
    try:
        tally = run_chaos(plan)
    except ServerUnavailableError as error:
        skip(error)
    print(tally)
    return tally


@pytest.mark.timeout(SECONDS + SECONDS_TO_COME_RIGHT)
def test_eight_processes_with_eight_slots_each_come_right() -> None:
    tally = _run(Plan(SECONDS, SEED, rest_s=REST_S))
    assert tally.kills["worker"] > 0
    assert tally.told["committed"] > 0


@pytest.mark.timeout(SECONDS + SECONDS_TO_COME_RIGHT)
def test_eight_processes_with_an_outbox_come_right() -> None:
    tally = _run(Plan(SECONDS, SEED, rest_s=REST_S, kinds=OUTBOXES))
    assert tally.kills["worker"] > 0
    assert tally.told["committed"] > 0


@pytest.mark.timeout(SECONDS_WITH_FREEZES + SECONDS_TO_COME_RIGHT)
@pytest.mark.parametrize("tier", Tier, ids=lambda tier: tier.name)
def test_outboxes_that_are_frozen_and_killed_come_right(tier: Tier) -> None:
    tally = _run(with_freezes(SECONDS_WITH_FREEZES, SEED, tier=tier, kinds=(*OUTBOXES, *OUTBOXES, RECOVERY)))
    assert tally.kills.total() > 0
    assert tally.told["committed"] > 0


@pytest.mark.timeout(SECONDS_WITH_FREEZES + SECONDS_TO_COME_RIGHT)
@pytest.mark.parametrize("tier", Tier, ids=lambda tier: tier.name)
def test_rivals_and_pools_that_are_frozen_and_killed_come_right(tier: Tier) -> None:
    tally = _run(with_freezes(SECONDS_WITH_FREEZES, SEED, tier=tier))
    assert tally.kills.total() > 0
    assert tally.told["committed"] > 0
