"""Patterns that are matched here in place of an old broker: only where both engines mean the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker_emulator.transactions.linear_pattern import LinearPattern, PatternError
from dualwrite.client.admin_pattern import matcher, pattern_of_prefix


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("orders-[0-9]+", ["orders-7", "orders-12"], ["orders-", "my-orders-7", "orders-7\n", "orders-\u0667"]),
        (r"a\.b", ["a.b"], ["axb"]),
        ("a|bc?", ["a", "b", "bc"], ["ab", "ac"]),
        ("(?:x-)?[^-]*", ["x-1", "1", ""], ["y-1"]),
        (r"\w{2,3}", ["ab", "abc"], ["a", "abcd", "\u00e9\u00e9"]),
        ("^a|b$", ["a", "b"], ["ab", "a$"]),
        (r"a\$", ["a$"], ["a"]),
        ("(a|b)c", ["ac", "bc"], ["c"]),
        ("\u00e9t.", ["\u00e9t\u00e9"], ["et\u00e9"]),
    ],
)
def test_the_whole_id_has_to_match(pattern: str, matching: list[str], other: list[str]) -> None:
    matches = matcher(pattern)
    assert matches is not None
    for text in matching:
        assert matches(text), text
        assert LinearPattern(pattern).fullmatch(text)
    for text in other:
        assert not matches(text), text
        assert not LinearPattern(pattern).fullmatch(text)


REFUSED = (
    r"(a+)+b (?:a*b?)* (a)\1 (?=a)b (?i)a \pL \Qa\E [[:alpha:]] a^b a$b ( ) a** a++ (?P<n>a) \bx [a { a{2}{3} [z-a]"
)


@pytest.mark.parametrize("pattern", [*REFUSED.split(), "[a&&b]", "a{1,2000}"])
def test_what_may_mean_something_else_is_left_to_brokers(pattern: str) -> None:
    assert matcher(pattern) is None


@given(st.text(alphabet="ab.*+?|()[]^-\\d{2},", max_size=12), st.text(alphabet="ab2.-,", max_size=6))
def test_what_is_matched_here_is_what_a_broker_matches(pattern: str, text: str) -> None:
    matches = matcher(pattern)
    if matches is None:
        return
    try:
        broker = LinearPattern(pattern)
    except PatternError:
        pytest.fail(f"{pattern!r} is none for a broker")
    assert matches(text) == broker.fullmatch(text)


@given(st.text(max_size=8), st.text(max_size=4))
def test_prefixes_mean_themselves(prefix: str, rest: str) -> None:
    assert LinearPattern(pattern_of_prefix(prefix)).fullmatch(prefix + rest)
    if prefix:
        assert not LinearPattern(pattern_of_prefix(prefix)).fullmatch(prefix[:-1])
