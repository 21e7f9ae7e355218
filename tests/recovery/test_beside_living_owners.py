"""Recovery in a loop, without a minimum age, beside running writers: nothing is lost, and nothing gets stuck.

The minimum age only spares living owners from being fenced. These tests show that correctness does not depend on it.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import FencedError
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.recovery.service import Action, RecoveryReport, RecoveryService
from tests.crash.scenario import InjectedError, Scenario, event_texts
from tests.support.databases import Database, event_bodies
from tests.support.topics import read_topic

WRITERS = 3
WRITES = 12


class Dying:
    """A pause hook that fails at random points, as a killed process does."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, point: PausePoint) -> None:
        if self._random.random() < 0.03:
            raise InjectedError(point)


def write_all(scenario: Scenario, first_number: int, seed: int) -> None:
    """Each write until it has taken effect, by a new writer after each trouble."""
    engine = sa.create_engine(scenario.database.url, poolclass=sa.NullPool)
    for number in range(first_number, first_number + WRITES):
        attempt = 0
        while True:
            with scenario.writer(Dying(seed + number * 100 + attempt), engine=engine) as writer:
                seen = scenario.write_events(writer, number)
            if seen.took_effect:
                break
            assert isinstance(seen.error, FencedError | InjectedError), seen.error
            attempt += 1


@pytest.mark.parametrize("seed", [1, 2])
def test_services_that_never_rest(database: Database, emulator: Emulator, seed: int) -> None:
    scenarios = [Scenario(database, emulator, transactional_id=f"busy-{number}") for number in range(WRITERS)]
    stopped = threading.Event()
    reports: list[RecoveryReport] = []
    failures: list[Exception] = []

    def serve(_: int) -> None:
        engine = sa.create_engine(database.url, poolclass=sa.NullPool)
        with RecoveryService(
            engine, bootstrap_servers=emulator.bootstrap_servers, prefix="busy-", min_age_ms=0, timeout_ms=20_000
        ) as service:
            service.run(0.005, stopped=stopped, heard=reports.append, failed=failures.append)

    with ThreadPoolExecutor(WRITERS + 2) as threads:
        services = [threads.submit(serve, number) for number in range(2)]
        try:
            writers = [
                threads.submit(write_all, scenario, 1 + number * 100, seed) for number, scenario in enumerate(scenarios)
            ]
            for writer in writers:
                writer.result(timeout=90)
        finally:
            stopped.set()
        for each in services:
            each.result(timeout=30)
    assert failures == []
    assert {found.action for report in reports for found in report.left} <= {Action.FAILED}
    engine = sa.create_engine(database.url, poolclass=sa.NullPool)
    with RecoveryService(engine, bootstrap_servers=emulator.bootstrap_servers, prefix="busy-", min_age_ms=0) as service:
        assert service.recover().is_clean
        assert service.recover().found == ()
    expected: list[str] = []
    for number, scenario in enumerate(scenarios):
        ours = [body for write in range(WRITES) for body in event_texts(str(1 + number * 100 + write))]
        assert [value for _, value in read_topic(emulator.bootstrap_servers, scenario.topic)] == ours
        scenario.assert_nothing_open()
        expected += ours
    assert event_bodies(database) == expected
