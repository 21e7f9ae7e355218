"""The cron job for recovery."""

from __future__ import annotations

import os
import subprocess
import sys

from dualwrite.broker_emulator.emulator import Emulator
from tests.crash.scenario import Predecessor, Scenario
from tests.recovery.world import left_open
from tests.support.databases import Database


def run(scenario: Scenario) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "examples.recovery_cron", "--prefix", "cron-", "--min-age-s", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ
        | {
            "DUALWRITE_BOOTSTRAP_SERVER": scenario.emulator.bootstrap_servers,
            "DUALWRITE_DATABASE_URL": scenario.database.url.render_as_string(hide_password=False),
        },
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_the_cron_job(database: Database, emulator: Emulator) -> None:
    scenario = Scenario(database, emulator, transactional_id="cron-1")
    scenario.leave_behind(Predecessor.COMMITTED)
    status, lines = run(scenario)
    assert (status, len(lines)) == (0, 1)
    assert lines[0].startswith("cron-1: commit of ")
    scenario.assert_both_sides_agree()
    assert run(scenario) == (0, [])
    left_open(emulator, "cron-2", scenario.topic)
    status, lines = run(scenario)
    assert (status, len(lines)) == (1, 1)
    assert lines[0].startswith("cron-2: no-row of ")
