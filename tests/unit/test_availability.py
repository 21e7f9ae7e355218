"""A writer's knowledge about Kafka, with a watch that only counts its starts."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import weakref

import pytest

from dualwrite.client.wire.cluster import ClusterSettings
from dualwrite.errors import KafkaUnreachableError
from dualwrite.recipes.core.availability import Availability, Steps, TaskWatch

CLUSTER = ClusterSettings((("127.0.0.1", 1),))


class Watch(TaskWatch):
    """Counts its starts."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0
        self.runs = False

    @property
    def is_running(self) -> bool:
        return self.runs

    def start(self, steps: Steps) -> None:
        steps.close()
        self.starts += 1
        self.runs = True

    def stop(self) -> None:
        self.runs = False


class World:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.watch = Watch()
        self.changes: list[bool] = []
        self.availability = Availability(CLUSTER, self.watch, lambda: self.now_s)
        self.availability.on_change = lambda: self.changes.append(self.availability.is_away)

    def note(self, since_s: float = 0.5, problem: str = "last problem: x") -> str:
        error = KafkaUnreachableError("prepare_transaction() ...", since_s=since_s, problem=problem)
        return str(self.availability.note(error))


def test_the_time_kafka_is_away_is_known_in_the_process_that_noticed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    seen = [world.availability.away_for_s]
    world.note(since_s=0.5)
    world.now_s += 9
    seen.append(world.availability.away_for_s)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        seen.append(world.availability.away_for_s)
    world.availability.note_present()
    seen.append(world.availability.away_for_s)
    assert seen == [None, 9.5, None, None]


def test_away_since_the_first_failure() -> None:
    world = World()
    first = world.note()
    assert first.startswith(
        "neither side was changed: Kafka cannot be reached since 1970-01-01 00:16:39 UTC (0.5 s; last problem: x)."
    )
    world.now_s += 9
    assert "00:16:39 UTC (9.5 s; last problem: x)" in world.note(since_s=0.7, problem="last problem: y")
    refusal = world.availability.refusal()
    assert "00:16:39 UTC (9.5 s; last problem: x)" in str(refusal)
    assert refusal.since_s == 9.5
    assert (world.changes, world.watch.starts) == ([True], 1)


def test_the_return_of_kafka_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.note()
    world.now_s += 9
    with caplog.at_level(logging.WARNING):
        world.availability.note_present()
    assert caplog.messages[-1] == "Kafka is reachable again after 9.5 s"
    assert world.changes == [True, False]
    world.availability.note_present()
    assert world.changes == [True, False]
    assert "(0.2 s; " in world.note(since_s=0.2)
    assert world.changes == [True, False, True]


def test_an_ended_watch_is_started_again_by_a_refused_block() -> None:
    """In a forked child, or when the loop was another one."""
    world = World()
    world.note()
    world.watch.runs = False
    world.availability.refusal()
    world.availability.refusal()
    assert world.watch.starts == 2


def test_closed() -> None:
    world = World()
    world.watch.runs = True
    world.availability.close()
    assert not world.watch.is_running
    assert "neither side was changed" in world.note()
    assert (world.availability.is_away, world.watch.starts, world.changes) == (False, 0, [])


def test_without_a_watch_never_away() -> None:
    availability = Availability()
    assert "neither side was changed" in str(availability.note(KafkaUnreachableError("...", since_s=0.5)))
    assert not availability.is_away


def test_a_task_belongs_to_its_loop() -> None:
    watch = TaskWatch()

    async def for_ever() -> None:
        await asyncio.Event().wait()

    async def start() -> bool:
        watch.start(for_ever())
        return watch.is_running

    async def is_running() -> bool:
        return watch.is_running

    with asyncio.Runner() as runner, asyncio.Runner() as other:
        assert runner.run(start())
        assert runner.run(is_running())
        assert not other.run(is_running())
        assert not watch.is_running
    watch.stop()


async def test_without_a_writer_no_thread_waits_for_kafka() -> None:
    """A writer that was dropped while Kafka was away leaves no watch behind."""
    availability: Availability | None = Availability(CLUSTER, TaskWatch())
    assert availability is not None
    found = weakref.ref(availability)
    availability.note(KafkaUnreachableError("...", since_s=0.5))
    watching = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(watching) == 1
    await asyncio.sleep(0)
    availability = None
    gc.collect()
    assert found() is None
    await asyncio.wait(watching, timeout=60)
    assert all(task.done() for task in watching)
