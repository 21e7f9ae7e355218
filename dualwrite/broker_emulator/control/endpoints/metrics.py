"""The broker's metrics, as Prometheus reads them."""

from __future__ import annotations

from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Content, Endpoint
from dualwrite.broker_emulator.metrics.prometheus import CONTENT_TYPE, render_prometheus
from dualwrite.broker_emulator.metrics.snapshot import collect


async def show(controlled: Controlled) -> Content:
    return Content(CONTENT_TYPE, render_prometheus(collect(controlled.cluster)).encode())


ENDPOINTS = (Endpoint("GET", "/metrics", show, "Metrics in Prometheus' text format", content_type="text/plain"),)
