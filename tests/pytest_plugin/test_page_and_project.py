"""docs/pytest-plugin.md and examples/pytest_project, run as their readers would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pytest-plugin.md"


def test_the_tests_on_the_page_pass(pytester: pytest.Pytester) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    pytester.makepyfile(code)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", "--strict-markers")
    result.assert_outcomes(passed=code.count("def test_"))


def test_the_page_names_every_fixture() -> None:
    plugin = (ROOT / "dualwrite" / "testing" / "pytest_plugin.py").read_text()
    fixtures = re.findall(r"@pytest\.fixture\ndef (\w+)", plugin)
    assert set(re.findall(r'scope="session"\)\ndef (\w+)', plugin)) <= set(re.findall(r"\w+", PAGE.read_text()))
    rows = re.findall(r"^\| `(kafka_\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == fixtures


def test_the_example_project_passes(pytester: pytest.Pytester) -> None:
    pytester.copy_example(str(ROOT / "examples" / "pytest_project"))
    pytester.syspathinsert()
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist", "-q", timeout=100)
    result.assert_outcomes(passed=11)
