"""The metrics of batches, read from OpenTelemetry's in-memory reader."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile, VirtualClock
from spark_sink.driver import telemetry
from spark_sink.errors import BatchLostError, SinkOptionError
from spark_sink.options import parse
from spark_sink.pause_points import PausePoint
from tests.spark.applications import ApplicationWorld
from tests.support.conditions import until
from tests.support.databases import unique


class Heard:
    """The measurements that an OpenTelemetry SDK received."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.instruments = telemetry.Instruments(MeterProvider([self._reader]).get_meter("test"))

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in (data.resource_metrics if data else []) for scope in resource.scope_metrics]
        metrics = [metric for scope in scopes for metric in scope.metrics if metric.name == f"dualwrite.spark.{name}"]
        return [point for metric in metrics for point in metric.data.data_points]

    def outcomes(self, name: str) -> dict[str, int]:
        return {point.attributes["outcome"]: point.value for point in self.points(name)}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    made = Heard()
    monkeypatch.setattr(telemetry, "_instruments", lambda: made.instruments)
    return made


@contextmanager
def world_on(emulator: Emulator, directory: Path) -> Iterator[ApplicationWorld]:
    topic = unique("topic")
    emulator.create_topic(topic, 2)
    engine = sa.create_engine(f"sqlite:///{directory / 'store.db'}")
    yield ApplicationWorld(engine, emulator.bootstrap_servers, topic)
    engine.dispose()


@pytest.fixture
def world(emulator: Emulator, tmp_path: Path) -> Iterator[ApplicationWorld]:
    with world_on(emulator, tmp_path) as made:
        yield made


def test_a_batch_is_counted_and_its_phases_are_measured(heard: Heard, world: ApplicationWorld) -> None:
    world.write("s", 0, [["a", "b"], ["c"], []])
    world.write("s", 1, [["d"]])
    assert heard.outcomes("batches") == {"decided": 2, "completed": 2}
    assert heard.outcomes("transactions") == {"committed": 3}
    assert [point.value for point in heard.points("records")] == [4]
    (transactions,) = heard.points("batch.transactions")
    assert (transactions.count, transactions.sum, transactions.max) == (2, 3, 2)
    phases = {point.attributes["phase"]: point for point in heard.points("phase.duration")}
    assert phases.keys() == {"plan", "write", "decide", "complete"}
    assert {point.count for point in phases.values()} == {2}
    assert all(point.min > 0 for point in phases.values())
    assert {point.attributes["sink"] for point in phases.values()} == {"s"}


def test_a_batch_that_was_decided_before_is_counted_as_such(heard: Heard, world: ApplicationWorld) -> None:
    world.write("s", 0, [["a"]], die_at=PausePoint.AFTER_DECISION)
    assert heard.outcomes("batches") == {"decided": 1}
    world.write("s", 0, [["a"]])
    assert heard.outcomes("batches") == {"decided": 1, "replayed": 1, "completed": 1}, "its plan completes it"
    assert heard.outcomes("transactions") == {"committed": 1}
    assert {point.count for point in heard.points("phase.duration")} == set()


def test_a_given_up_attempt_is_aborted(heard: Heard, world: ApplicationWorld) -> None:
    world.write("s", 0, [["a"], ["b"]], die_at=PausePoint.COMMIT_START)
    world.write("s", 0, [["a"], ["b"]])
    assert heard.outcomes("batches") == {"decided": 1, "completed": 1}
    assert heard.outcomes("transactions") == {"committed": 2, "aborted": 2}


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_transaction_aborted_by_kafka_is_counted_as_repaired_or_lost(
    heard: Heard, tmp_path: Path, has_manifest: bool
) -> None:
    with Emulator(config=BrokerConfig(profile=Profile.KAFKA_4_3), clock=VirtualClock()) as emulator:
        with world_on(emulator, tmp_path) as world:
            limit: dict[str, Any] = {"txn.timeoutMs": "60000"}
            world.write("s", 0, [["a"], ["b"]], die_at=PausePoint.AFTER_DECISION, **limit)
            if not has_manifest:
                world.forget_manifests()
            emulator.advance_clock(80_000)
            until(lambda: not [each for each in emulator.transactions() if each.state == "Ongoing"])
            if has_manifest:
                world.write("s", 1, [["c"]], **limit)
                assert heard.outcomes("batches") == {"decided": 2, "repaired": 1, "completed": 2}
                assert heard.outcomes("transactions") == {"repaired": 2, "committed": 1}
            else:
                with pytest.raises(BatchLostError):
                    world.write("s", 1, [["c"]], **limit)
                assert heard.outcomes("batches") == {"decided": 1, "lost": 1}


# ---- telemetry.setup ------------------------------------------------------------------------------------------------

calls: Final[Counter[str]] = Counter()
"""How often the functions below were called."""


def flushing_setup() -> Callable[[], None]:
    calls["setup"] += 1
    return flush


def flush() -> None:
    calls["flush"] += 1


def failing_setup() -> None:
    calls["setup"] += 1
    raise OSError("no collector")


def failing_flush_setup() -> Callable[[], None]:
    return failing_setup


def set_up_by(setup: Callable[[], object]) -> dict[str, Any]:
    return {"telemetry.setup": f"{__name__}:{setup.__name__}"}


@pytest.fixture
def _no_calls() -> Iterator[None]:
    calls.clear()
    telemetry.set_up.cache_clear()
    yield
    telemetry.set_up.cache_clear()


@pytest.mark.usefixtures("_no_calls")
def test_the_setup_is_called_once_in_a_process_and_flushes_each_batch(heard: Heard, world: ApplicationWorld) -> None:
    for batch_id in range(3):
        world.write("s", batch_id, [["a"]], **set_up_by(flushing_setup))
    assert calls == {"setup": 1, "flush": 3}


@pytest.mark.usefixtures("_no_calls")
@pytest.mark.parametrize("setup", [failing_setup, failing_flush_setup])
def test_a_batch_does_not_fail_because_it_cannot_be_observed(
    world: ApplicationWorld, heard: Heard, caplog: pytest.LogCaptureFixture, setup: Callable[[], object]
) -> None:
    with caplog.at_level(logging.WARNING, "spark_sink"):
        world.write("s", 0, [["a"]], **set_up_by(setup))
    assert calls["setup"] == 1
    assert "batches go on, and their metrics may be missing" in caplog.text
    assert [batch.records for batch in world.store.batches("s")] == [1]


@pytest.mark.parametrize("name", ["nowhere.at.all:setup", "tests.spark.test_telemetry:nothing", "not a name"])
def test_a_missing_telemetry_setup_is_refused(name: str) -> None:
    given = {"sinkId": "s", "kafka.bootstrap.servers": "h:1", "commitStore.urlEnv": "U", "telemetry.setup": name}
    with pytest.raises(SinkOptionError, match=r"telemetry.setup must name a function as package.module:function"):
        parse(given)


def test_without_opentelemetry_nothing_is_reported(world: ApplicationWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_instruments", lambda: None)
    world.write("s", 0, [["a"]])
    assert [batch.records for batch in world.store.batches("s")] == [1]
