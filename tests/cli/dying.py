"""Dual writers, each in its own process, that are killed at a pause point."""

from __future__ import annotations

import os
import signal
from typing import Final

import sqlalchemy as sa

from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import POINTS_AFTER_THE_DECISION, AtPoint, Scenario, event_texts, make, write_events
from tests.support.forked_processes import processes

_WITHIN_S: Final = 60


def die(url: str, bootstrap_servers: str, transactional_id: str, topic: str, point: PausePoint, number: int) -> None:
    kill = AtPoint(point, lambda: os.kill(os.getpid(), signal.SIGKILL))
    writer = make(DualWriter, sa.create_engine(url), bootstrap_servers, transactional_id, pause=kill)
    raise SystemExit(f"still alive after {point}: {write_events(writer, topic, number)}")


def kill_at_each(scenarios: dict[PausePoint, Scenario]) -> None:
    """One writer per pause point dies there, with the write of its scenario."""
    for number, (point, scenario) in enumerate(scenarios.items(), start=1):
        url = scenario.database.url.render_as_string(hide_password=False)
        servers = scenario.emulator.bootstrap_servers
        arguments = (url, servers, scenario.transactional_id, scenario.topic, point, number)
        process = processes().Process(target=die, args=arguments, daemon=True)
        process.start()
        process.join(_WITHIN_S)
        assert process.exitcode == -signal.SIGKILL, f"{point}: {process.exitcode}"
        if point in POINTS_AFTER_THE_DECISION:
            scenario.expected += event_texts(str(number))
