"""The simulation of a Spark query: drivers, one after the other or two at a time, and their tasks."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from tests.proof.simulation.blocking import no_threads
from tests.proof.simulation.judge import judge_query
from tests.proof.simulation.loop import Process
from tests.proof.simulation.run import Result, World, simulate
from tests.proof.simulation.spark import Query

_MOST_DRIVERS: Final = 12
_CLEANINGS: Final = 20


class SparkQuery(World):
    """One query."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        batch_count = self.random.choice((1, 2, 2, 3))
        self.query: Final = Query(self.loop, self.history, self.brokers, Random(f"query {seed}"), seed, batch_count)
        self.query.kill = self.kill
        self.query.began = self._add
        self.query.ended = self._remove
        self.history.is_decided = lambda value: self.query.is_decided(int(value))
        self._running: dict[Process, None] = {}
        self._drivers = 0
        self._is_settled = False

    def run(self) -> None:
        """Run it, and check it."""
        with no_threads(self.loop):
            super().run()

    def begin(self) -> None:
        """Start the first driver, and the starter of others."""
        self.loop.begin(self.loop.world, self._supervise())

    async def _supervise(self) -> None:
        drivers: list[Process] = []
        while not self.query.is_over and self._drivers < _MOST_DRIVERS:
            drivers = [driver for driver in drivers if driver in self._running]
            if not drivers or self.random.random() < 0.02:
                drivers.append(self._start_driver())
            await asyncio.sleep(self.random.choice((0.2, 1.0, 5.0)))

    def _start_driver(self) -> Process:
        driver = Process(f"driver {self._drivers}")
        self._drivers += 1
        self.history.note(f"{driver} starts")
        self._add(driver)
        self.loop.begin(driver, self._drive(driver))
        return driver

    async def _drive(self, driver: Process) -> None:
        await self.query.drive(driver)
        self._remove(driver)

    def is_written(self) -> bool:
        """Return whether the query has ended, or is given up until everything is healed."""
        return not self._running and (self.query.is_over or self._drivers >= _MOST_DRIVERS)

    def settle(self) -> None:
        """Let a last driver complete leftovers."""
        self.query.is_calm = True
        driver = Process("the last driver")
        self.loop.begin(driver, self._drive_to_the_end(driver))

    async def _drive_to_the_end(self, driver: Process) -> None:
        for _ in range(_CLEANINGS):
            await self.query.drive(driver)
            if self.query.is_over and await self.query.clean_up(driver):
                break
            await asyncio.sleep(1.0)
        else:
            self.history.wrong("the query cannot be finished")
        self._is_settled = True

    def is_settled(self) -> bool:
        """Return whether it has."""
        return self._is_settled

    def check(self) -> None:
        """Compare the table and Kafka."""
        expected, rows = self.query.at_rest()
        judge_query(self.history, self.readers, list(map(str, expected)), list(map(str, rows)))

    def _add(self, process: Process) -> None:
        self._running[process] = None

    def _remove(self, process: Process) -> None:
        self._running.pop(process, None)

    def living(self) -> list[Process]:
        return list(self._running)

    def kill(self, process: Process) -> None:
        self._remove(process)
        self.end(process)


def simulate_spark(seed: int) -> Result:
    """Run one seed."""
    return simulate(seed, SparkQuery)
