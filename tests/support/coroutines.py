"""Tests that are coroutines: each runs in the loop that a fixture has, or in one of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import uvloop


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    runners = [getattr(fixture, "runner", fixture) for fixture in pyfuncitem.funcargs.values()]
    with ExitStack() as stack:
        of_fixtures = [runner for runner in runners if isinstance(runner, asyncio.Runner)]
        runner = of_fixtures[0] if of_fixtures else stack.enter_context(asyncio.Runner())
        runner.run(pyfuncitem.obj(**given))
    return True


@pytest.fixture(params=[None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def either_loop(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Let a test run in each kind of loop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner
