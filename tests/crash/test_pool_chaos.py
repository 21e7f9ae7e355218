"""Pools under random kills of everything: `pool_chaos.py`, for a minute; CHAOS_SECONDS=600 for longer."""

from __future__ import annotations

import os
import random

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError, servers_are_required
from tests.crash.pool_chaos import Plan, run_chaos

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SECONDS_TO_COME_RIGHT = 180
REST_S = 1.0
"""At the most, between two dual writes of a slot: of 64 slots some are always in the middle of one."""
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**31)))


@pytest.mark.timeout(SECONDS + SECONDS_TO_COME_RIGHT)
def test_eight_processes_with_eight_slots_each_come_right() -> None:
    print(f"CHAOS_SEED={SEED}")
    try:
        tally = run_chaos(Plan(SECONDS, SEED, rest_s=REST_S))
    except ServerUnavailableError as error:
        if servers_are_required():
            raise
        pytest.skip(str(error))
    print(tally)
    assert tally.kills["worker"] > 0
    assert tally.told["committed"] > 0
