"""Responses that are not JSON: the metrics, and the HTML page with its files."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.resources import files
from typing import Final

from dualwrite.broker_emulator.control.endpoint import Content, ControlledEmulator, Endpoint
from dualwrite.broker_emulator.metrics.prometheus import CONTENT_TYPE, render_prometheus
from dualwrite.broker_emulator.metrics.snapshot import collection
from dualwrite.broker_emulator.slices import in_slices

_RENDERED_IN_LOOP: Final = 200
"""Partitions whose metrics are written at once; those of more are written in a thread."""


async def metrics(controlled: ControlledEmulator) -> Content:
    snapshot = await in_slices(collection(controlled.cluster))
    is_long = len(snapshot.partitions) > _RENDERED_IN_LOOP
    text = await asyncio.to_thread(render_prometheus, snapshot) if is_long else render_prometheus(snapshot)
    return Content(CONTENT_TYPE, text.encode())


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
