"""`is_provided` reads OpenTelemetry's API, in a process of its own: a provider can be set only once."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from dualwrite.client.records.traces import is_provided
from dualwrite.recipes.core.metrics import instruments

early = instruments()
assert not is_provided(early.prepare)
assert not is_provided(early.tracer)
metrics.set_meter_provider(MeterProvider())
assert is_provided(early.prepare)
assert not is_provided(early.tracer)
trace.set_tracer_provider(TracerProvider())
assert is_provided(early.tracer)
instruments.cache_clear()
late = instruments()
assert is_provided(late.prepare) and is_provided(late.tracer)
"""


def test_a_provider_is_noticed_whenever_it_is_set() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True)
