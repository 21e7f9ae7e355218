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
"""Up to this number of partitions, metrics are written at once; beyond it, in a thread."""


async def metrics(controlled: ControlledEmulator) -> Content:
    snapshot = await in_slices(collection(controlled.cluster))
    is_long = len(snapshot.partitions) > _RENDERED_IN_LOOP
    text = await asyncio.to_thread(render_prometheus, snapshot) if is_long else render_prometheus(snapshot)
    return Content(CONTENT_TYPE, text.encode())


_SCRIPTS: Final = ("page.js", "details.js", "elements.js", "forms.js", "requests.js", "sections.js", "tables.js")
_HTML: Final = "text/html; charset=utf-8"
_CSS: Final = "text/css; charset=utf-8"
_JAVASCRIPT: Final = "text/javascript; charset=utf-8"


@cache
def _content(name: str, content_type: str) -> Content:
    return Content(content_type, files("dualwrite.broker_emulator.control").joinpath("page", name).read_bytes())


def _file(path: str, name: str, content_type: str, summary: str) -> Endpoint:
    async def serve(controlled: ControlledEmulator) -> Content:
        return _content(name, content_type)

    return Endpoint("GET", path, serve, summary, content_type=content_type.partition(";")[0])


ENDPOINTS = (
    Endpoint("GET", "/metrics", metrics, "Metrics in Prometheus' text format", content_type="text/plain"),
    _file("/", "index.html", _HTML, "The HTML page"),
    _file("/page.css", "page.css", _CSS, "The page's style sheet"),
    *(_file(f"/{name}", name, _JAVASCRIPT, "A script of the page") for name in _SCRIPTS),
)
