"""Many lives of a process with Django, whose threads write at the same time, each killed at some pause point.

CHAOS_SEED repeats a run, CHAOS_LIVES makes it longer.
"""

from __future__ import annotations

import os
import random

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from tests.crash import django_worker
from tests.crash.django_scenario import DjangoScenario
from tests.crash.killed import run_until_killed
from tests.support.conditions import until
from tests.support.databases import Database, event_bodies, unique
from tests.support.topics import read_topic

LIVES = int(os.environ.get("CHAOS_LIVES", "20"))
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**31)))


@pytest.mark.timeout(600 + 60 * LIVES)
def test_both_sides_agree_after_every_kill(store: Database, emulator: Emulator) -> None:
    print(f"CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    scenario = DjangoScenario(store, emulator, transactional_id=f"{unique('django')}-0")
    for life in range(1, LIVES + 1):
        run_until_killed(
            django_worker.main,
            *("--database-url", store.url.render_as_string(hide_password=False)),
            *("--bootstrap-servers", emulator.bootstrap_servers),
            *("--transactional-id", scenario.transactional_id),
            *("--topic", scenario.topic),
            *("--life", str(life)),
            *("--points", str(chance.randrange(150))),
        )
    with scenario.writer() as writer:
        writer.recover()
        until(lambda: not writer.pool.status.set_aside)
        in_table = sorted(event_bodies(store))
        in_topic = sorted(value for _, value in read_topic(emulator.bootstrap_servers, scenario.topic))
        print(f"{LIVES} kills, {len(in_table)} rows")
        assert in_topic == in_table
        assert django_worker.DROPPED not in in_table
        assert len(in_table) > LIVES
        scenario.assert_nothing_open()
    scenario.close()
