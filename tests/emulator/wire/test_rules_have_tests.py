"""The map from rules to tests has no holes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

from dualwrite.broker_emulator import Profile
from tests.emulator import wire
from tests.emulator.wire.rules import PROVED_ELSEWHERE, RULES
from tests.emulator.wire.world import ALL

ROOT = Path(__file__).parents[3]


def marks_of(test: Any) -> Iterator[Any]:
    """The marks of a test function, those of its parameter sets included."""
    for mark in getattr(test, "pytestmark", []):
        yield mark
        if mark.name == "parametrize":
            for values in mark.args[1]:
                yield from getattr(values, "marks", ())


@cache
def proved() -> dict[str, frozenset[Profile]]:
    """The profiles in which each rule has a test."""
    found: dict[str, frozenset[Profile]] = {}
    for info in iter_modules(wire.__path__):
        if not info.name.startswith("test_"):
            continue
        module = import_module(f"{wire.__name__}.{info.name}")
        for name, test in vars(module).items():
            if not name.startswith("test_") or getattr(test, "__module__", None) != module.__name__:
                continue
            marks = list(marks_of(test))
            profiles = frozenset(profile for mark in marks if mark.name == "profiles" for profile in mark.args) or ALL
            for mark in marks:
                if mark.name == "rule":
                    found[mark.args[0]] = found.get(mark.args[0], frozenset()) | profiles
    return found


@pytest.mark.parametrize("rule", RULES)
def test_rule_has_a_test_in_each_profile(rule: str) -> None:
    missing = RULES[rule] - proved().get(rule, frozenset())
    assert not missing, f"{rule}: no test in {sorted(missing)}"


def test_tests_name_rules_that_there_are() -> None:
    assert proved().keys() - RULES.keys() == set()


@pytest.mark.parametrize("rule", PROVED_ELSEWHERE)
def test_tests_of_other_rooms_are_there(rule: str) -> None:
    path, _, name = PROVED_ELSEWHERE[rule].partition("::")
    functions = {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert name in functions
