"""What a process does that commits blocks 1 to 4 as one group and kills itself at a pause point; see `killed.py`."""

from __future__ import annotations

import argparse
import os
import signal

import sqlalchemy as sa

from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.pool.group_settings import GroupCommit
from tests.crash import group_styles
from tests.crash.scenario import AtPoint

LEASE_MS = 300
PATIENT = GroupCommit(max_groups=1, slow_block_ms=600_000, max_block_ms=600_000)
"""So that no time passes that changes who is in which group."""


def main(options: list[str]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name in ("--style", "--database-url", "--bootstrap-servers", "--prefix", "--topic", "--point"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args(options)
    kill = AtPoint(PausePoint(arguments.point), lambda: os.kill(os.getpid(), signal.SIGKILL))
    style = getattr(group_styles, arguments.style)(
        sa.make_url(arguments.database_url),
        arguments.topic,
        PATIENT,
        prefix=arguments.prefix,
        bootstrap_servers=arguments.bootstrap_servers,
        lease_ms=LEASE_MS,
        pause=kill,
    )
    with style:
        members = style.together([[], [], ["raise"], []], first=1)
    raise SystemExit(f"still alive after {arguments.point}: {[member.error for member in members]}")
