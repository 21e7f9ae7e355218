"""Patterns of transactional ids: the same results as Python's engine, in time that grows with the text only."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.transactions.linear_pattern import LinearPattern, PatternError

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\.", "^", "$", "a-b"])
SUFFIXES = st.sampled_from(["", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])


def patterns() -> st.SearchStrategy[str]:
    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.lists(inner, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map("|".join),
            st.builds(lambda text, suffix: f"({text}){suffix}", inner, SUFFIXES),
            st.builds(lambda text, suffix: f"(?:{text}){suffix}", inner, SUFFIXES),
        )

    repeated = st.builds(lambda atom, suffix: atom + ("" if atom in "^$" else suffix), ATOMS, SUFFIXES)
    return st.recursive(repeated.map(lambda text: text), extend, max_leaves=6)


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(patterns(), st.text("ab.1-", max_size=6))
def test_it_matches_as_python_does(pattern: str, text: str) -> None:
    try:
        expected = re.compile(pattern).fullmatch(text) is not None
    except re.error:  # a suffix behind one of another part, a*{2} and the like
        return
    try:
        compiled = LinearPattern(pattern)
    except PatternError:
        assert re.search(r"[*+?}][*+?{]", pattern)
        return
    if pattern.endswith("$") or "$" in pattern:
        expected = re.compile(pattern.replace("$", r"\Z")).fullmatch(text) is not None
    assert compiled.fullmatch(text) == expected


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "a*a*a*a*a*a*a*a*b", "((a{1,9}){1,9}){1,9}b", "(.*)*x"]
)
def test_nothing_takes_long(pattern: str) -> None:
    assert not LinearPattern(pattern).fullmatch("a" * 2000)
    assert LinearPattern(pattern).fullmatch("a" * 200 + pattern[-1])


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "[", "a**", "*", "+a", "a{1001}", "a{2,1}", "\\", "[z-a]", r"\q", "(" * 60 + ")" * 60),
        *(r"\1", r"(a)\1", "(?=a)", "(?<!a)", "(?P=n)", "(a{1000}){1000}"),
    ],
)
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        LinearPattern(pattern)


def test_case_can_be_ignored() -> None:
    assert LinearPattern("(?i)Orders-[a-f]+").fullmatch("orders-ABC")
    assert not LinearPattern("Orders").fullmatch("orders")


def test_more_states_than_are_remembered() -> None:
    pattern = LinearPattern("(a|b|c)*x(.{12})")
    text = "abcabx" * 3000
    assert pattern.fullmatch(text) == (re.compile("(a|b|c)*x(.{12})").fullmatch(text) is not None)
