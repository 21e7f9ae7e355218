"""OpenTelemetry's view of dual writes, read from its in-memory exporters."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dualwrite.recipes.core.metrics import Instruments


class Heard:
    """The measurements of an OpenTelemetry SDK."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._reader = InMemoryMetricReader()
        self._spans = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meter = MeterProvider([self._reader]).get_meter("test")
        self.tracer = tracers.get_tracer("test")
        self.instruments = Instruments(meter, self.tracer, lambda: self.now_s)

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        metrics = [
            metric
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]

    def sums(self, name: str) -> dict[str, int]:
        return {point.attributes.get("outcome", ""): point.value for point in self.points(name)}

    def count(self, name: str) -> int:
        return sum(point.count for point in self.points(name))

    @property
    def in_doubt(self) -> int:
        (point,) = self.points("dualwrite.in_doubt")
        return int(point.value)

    @property
    def ages_s(self) -> dict[str, float]:
        return {
            point.attributes["messaging.kafka.transactional_id"]: point.value
            for point in self.points("dualwrite.in_doubt.age")
        }

    @property
    def slots(self) -> dict[tuple[str, str], int]:
        points = self.points("dualwrite.pool.slots")
        return {(point.attributes["prefix"], point.attributes["state"]): point.value for point in points}

    def spans(self, name: str) -> list[Any]:
        """Return the spans with this prefix of their names, in the order in which they ended."""
        return [span for span in self._spans.get_finished_spans() if span.name.startswith(name)]
