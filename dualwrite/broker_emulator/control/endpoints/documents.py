"""Responses that are not JSON: the metrics, and the HTML page with its files."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from dualwrite.broker_emulator.control.endpoint import Content, ControlledEmulator, Endpoint
from dualwrite.broker_emulator.metrics.prometheus import CONTENT_TYPE, render_prometheus
from dualwrite.broker_emulator.metrics.snapshot import collect


async def metrics(controlled: ControlledEmulator) -> Content:
    return Content(CONTENT_TYPE, render_prometheus(collect(controlled.cluster)).encode())


_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


@cache
def _content(path: str) -> Content:
    name, content_type = _FILES[path]
    return Content(content_type, files("dualwrite.broker_emulator.control").joinpath("page", name).read_bytes())


async def index(controlled: ControlledEmulator) -> Content:
    return _content("/")


async def style(controlled: ControlledEmulator) -> Content:
    return _content("/page.css")


async def script(controlled: ControlledEmulator) -> Content:
    return _content("/page.js")


ENDPOINTS = (
    Endpoint("GET", "/metrics", metrics, "Metrics in Prometheus' text format", content_type="text/plain"),
    Endpoint("GET", "/", index, "The HTML page", content_type="text/html"),
    Endpoint("GET", "/page.css", style, "The page's style sheet", content_type="text/css"),
    Endpoint("GET", "/page.js", script, "The page's script", content_type="text/javascript"),
)
