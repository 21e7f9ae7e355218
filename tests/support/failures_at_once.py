"""Show each failure when it happens: a plugin for pytest.

pytest shows failures when all tests are over, so an aborted run shows none.
"""

from __future__ import annotations

import pytest


class FailuresAtOnce:
    """Print the name and the error of a failed test, between the dots."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or terminal is None:
            return
        terminal.ensure_newline()
        terminal.write_sep("_", f"{report.nodeid} ({report.when})", red=True, bold=True)
        terminal.write_line(report.longreprtext)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the others' reports come to the first process
        config.pluginmanager.register(FailuresAtOnce(config))
