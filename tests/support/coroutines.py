"""Tests that are coroutines: each runs in the loop of the scenario that it is given, or in a loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import ExitStack

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    runners = [getattr(fixture, "runner", None) for fixture in pyfuncitem.funcargs.values()]
    with ExitStack() as stack:
        of_a_scenario = [runner for runner in runners if isinstance(runner, asyncio.Runner)]
        runner = of_a_scenario[0] if of_a_scenario else stack.enter_context(asyncio.Runner())
        runner.run(pyfuncitem.obj(**given))
    return True
