"""A part of OpenTelemetry that raises, and a signal whose handler raises while one works."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from dualwrite import guarded
from dualwrite.client.records import traces
from dualwrite.producer import Producer
from dualwrite.recipes.consume.tracing import processing
from dualwrite.recipes.core import metrics, telemetry
from dualwrite.recipes.core.slot import SlotState
from spark_sink.driver import telemetry as of_spark
from spark_sink.store.tables import Decided
from tests.crash.scenario import InjectedError, Predecessor, Scenario
from tests.recipes.pools import make_pool, write, written
from tests.recipes.test_traces import consumed


class SoftTimeLimit(Exception):  # noqa: N818 - as Celery calls it
    """Raised by the handler of a signal."""


def fail(*_: Any, **__: Any) -> Any:
    raise InjectedError


class Processor(SpanProcessor):
    def __init__(self, method: str, act: Callable[..., Any] = fail) -> None:
        setattr(self, method, act)


class FailingSampler(Sampler):
    should_sample = fail

    def get_description(self) -> str:
        return "fails"


class Propagator(TextMapPropagator):
    extract = fail

    def __init__(self, fields: Callable[[], set[str]]) -> None:
        self._fields = fields

    @property
    def fields(self) -> set[str]:
        return self._fields()

    inject = fail


class Meter:
    """A meter whose every instrument fails."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: type("Instrument", (), {"add": fail, "record": fail})()


PARTS = ["on_start", "on_end", "sampler", "inject", "fields", "instruments"]


@pytest.fixture(params=PARTS)
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let one part of OpenTelemetry fail whenever it is used."""
    name: str = request.param
    provider = TracerProvider(sampler=FailingSampler() if name == "sampler" else ALWAYS_ON)
    if name.startswith("on_"):
        provider.add_span_processor(Processor(name))
    before = propagate.get_global_textmap()
    if name in ("inject", "fields"):
        propagate.set_global_textmap(Propagator(fail if name == "fields" else lambda: {"traceparent"}))
    observe(monkeypatch, provider, Meter() if name == "instruments" else NoOpMeterProvider().get_meter("test"))
    yield name
    propagate.set_global_textmap(before)


def observe(monkeypatch: pytest.MonkeyPatch, provider: TracerProvider, meter: Any) -> None:
    tracer = provider.get_tracer("test")
    made = metrics.Instruments(meter, tracer)
    monkeypatch.setattr(guarded, "_told", set())
    monkeypatch.setattr(metrics, "instruments", lambda: made)
    monkeypatch.setattr(traces, "tracer", lambda: tracer)
    if isinstance(meter, Meter):
        monkeypatch.setattr(of_spark, "_instruments", lambda: of_spark.Instruments(meter))  # type: ignore[arg-type]


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "dualwrite.guarded"]


def test_no_block_and_no_recovery_fails(part: str, scenario: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    with scenario.writer() as writer:
        writer.recover()
        for number in (1, 2):
            assert scenario.write(writer, number).error is None
        assert writer.state is SlotState.READY
    scenario.assert_both_sides_agree()
    told = failures(caplog)
    assert told
    assert len(told) == len(set(told))


def test_no_block_of_a_pool_fails(part: str, scenario: Scenario) -> None:
    with make_pool(scenario) as pool:
        for number in (1, 2):
            write(pool, scenario, number)
        assert pool.status.in_use == 0
    assert written(scenario) == {"1", "2"}


def test_a_record_that_leaves_by_itself_is_sent(part: str, scenario: Scenario) -> None:
    with Producer(bootstrap_servers=scenario.emulator.bootstrap_servers, trace_records=True) as producer:
        told: list[Any] = []
        producer.send(scenario.topic, value="1", headers=[("a", b"")], on_delivery=lambda *how: told.append(how))
        producer.send_batch(scenario.topic, [("k", "2")]).result()
        producer.flush()
    assert [error for _, error in told] == [None]
    assert next(iter(scenario.emulator.records(scenario.topic))).headers[0] == ("a", b"")


def test_the_handler_of_a_consumed_record_decides(part: str) -> None:
    handled = []
    with processing(consumed([("traceparent", b"00-1")]), "group"):
        handled.append(1)
    error = LookupError()
    with pytest.raises(LookupError) as raised, processing(consumed([]), "group"):
        raise error
    assert (handled, raised.value) == ([1], error)
    assert not trace.get_current_span().get_span_context().is_valid


def test_no_batch_of_spark_fails(part: str) -> None:
    reports = of_spark.BatchTelemetry("sink", None)
    reports.decided(Decided(anew=True, records=1), 1)
    reports.lost()


@pytest.fixture
def limit() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise SoftTimeLimit

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_a_time_limit_that_strikes_inside_telemetry_reaches_the_caller(
    limit: None, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed: list[int] = []

    def strike(span: Any) -> None:
        if span.name == telemetry.SPAN and armed:
            armed.clear()
            signal.raise_signal(signal.SIGUSR1)

    provider = TracerProvider()
    provider.add_span_processor(Processor("on_end", strike))
    observe(monkeypatch, provider, NoOpMeterProvider().get_meter("test"))
    with scenario.writer() as writer:
        for number in (1, 2, 3):
            armed += [1] * (number == 2)
            seen = scenario.write(writer, number)
            assert isinstance(seen.error, SoftTimeLimit) is (number == 2)
        assert writer.state is SlotState.READY
    scenario.assert_both_sides_agree()
