"""Patterns that the client matches in place of an old broker: only if both engines agree on them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator.linear_pattern import LinearPattern, PatternError
from dualwrite.client.admin.listing import matcher, pattern_of_prefix
from dualwrite.errors import InvalidPatternError
from tests.admin.site import Site
from tests.support.proof_only import examples

REFUSED = (
    r"(a+)+b (?:a*b?)* (a)\1 (?=a)b (?i)a \pL \Qa\E [[:alpha:]] a^b a$b ( ) a** a++ (?P<n>a) \bx [a { a{2}{3} [z-a]"
)


@pytest.mark.parametrize("pattern", [*REFUSED.split(), "[a&&b]", "a{1,2000}"])
def test_ambiguous_patterns_are_left_to_brokers(pattern: str) -> None:
    assert matcher(pattern) is None


@given(st.text(alphabet="ab.*+?|()[]^-\\d{2},", max_size=12), st.text(alphabet="ab2.-,", max_size=6))
def test_matches_agree_with_those_of_a_broker(pattern: str, text: str) -> None:
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


def random_patterns(count: int) -> Iterator[str]:
    """Yield random patterns that the client matches."""
    chooser = random.Random(1152)
    atoms = ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\.", "-", "7", "\u00e9", " "]
    suffixes = ["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "??"]

    def part(depth: int) -> str:
        if depth and chooser.random() < 0.3:
            inner = "|".join(part(0) for _ in range(chooser.randint(1, 2)))
            return f"({inner})" if chooser.random() < 0.5 else f"(?:{inner})"
        return chooser.choice(atoms) + chooser.choice(suffixes)

    while count:
        pattern = "|".join("".join(part(1) for _ in range(chooser.randint(1, 3))) for _ in range(chooser.randint(1, 2)))
        if matcher(pattern) is not None:
            count -= 1
            yield pattern


def test_a_real_broker_matches_the_same(apache_kafka: Site) -> None:
    """Apache Kafka 4.4.0 filters with RE2/J; the client's matcher accepts the same ids."""
    ids = [
        "a",
        "b",
        "ab",
        "ba",
        "aab",
        "a.b",
        "a-7",
        "77",
        "7",
        " ",
        "a b",
        "\u00e9",
        "a\u00e9",
        "\u0667",
        "a\n",
        "-",
        ".",
    ]
    with TransactionAdmin(bootstrap_servers=apache_kafka.bootstrap_servers) as admin:
        for transactional_id in ids:
            apache_kafka.wire.init_ok(transactional_id)
        for pattern in random_patterns(examples(150)):
            matches = matcher(pattern)
            assert matches is not None
            by_broker = {row.transactional_id for row in admin.list_transactions(transactional_id_pattern=pattern)}
            assert by_broker & set(ids) == {one for one in ids if matches(one)}, pattern
        assert {row.transactional_id for row in admin.transactions_of_prefix("a")} >= {"a", "a\n", "a.b"}
        for pattern in ("(", "a**", "a{1,2000}", "(?=a)"):
            with pytest.raises(InvalidPatternError, match="RE2/J"):
                admin.list_transactions(transactional_id_pattern=pattern)
