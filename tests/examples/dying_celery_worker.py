"""The worker of examples/celery_worker.py, whose prefork processes die by SIGKILL between two steps of a dual write."""

from __future__ import annotations

import random
import threading

from dualwrite.recipes.core.pause_points import PausePoint
from examples import celery_worker
from tests.examples.service_lives import Death

LEAST_POINTS = 12
"""More points than one dual write reaches, so that each process makes progress."""


def drawn_death() -> Death:
    return Death(random.SystemRandom().randint(LEAST_POINTS, 40))


class DeathOfThisProcess:
    """Draws its death after the fork, when the first point is reached.

    It dies in a task only, which is the main thread's. While that one waits for a task, it holds the lock of billiard's
    queue, and the pool recovers slots in the background: a death there would leave the other processes without tasks.
    """

    def __init__(self) -> None:
        self._death: Death | None = None

    def __call__(self, point: PausePoint) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self._death is None:
            self._death = drawn_death()
        self._death(point)


if __name__ == "__main__":
    celery_worker.pool_settings.update(lease_ms=1000, pause=DeathOfThisProcess())
    celery_worker.app.worker_main(["worker", "--concurrency", "2", "--loglevel", "ERROR"])
