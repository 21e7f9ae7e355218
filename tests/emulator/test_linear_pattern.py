"""Patterns of clients: decisions and complaints as RE2/J 1.8 gave them, in time that grows with the text only."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.linear_pattern import LinearPattern, PatternError


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "a*a*a*a*a*a*a*a*b", "((a{1,9}){1,9}){1,9}b", "(.*)*x", "(a+)+!"]
)
def test_nothing_takes_long(pattern: str) -> None:
    assert not LinearPattern(pattern).fullmatch("a" * 2000)
    assert LinearPattern(pattern).fullmatch("a" * 200 + pattern[-1])


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"\Qa.b\E+", "a.bb", "axb"),
        (r"\Qa.b", "a.b", "axb"),
        (r"\pL\p{Lu}\PN", "éÉx", "éé1"),
        (r"\p{Greek}+", "αω", "ab"),
        ("(?i:A)b", "ab", "aB"),
        ("(?i)K", "\u212a", "x"),
        ("(?s)a.b", "a\nb", "ab"),
        ("a.b", "a\tb", "a\nb"),
        ("(?m)a$\n^b", "a\nb", "a\n\nb"),
        (r"\Aa\z", "a", "a\n"),
        ("a$", "a", "a\n"),
        (r"\x{70}\x41\101", "pAA", "pAa"),
        ("[[:alpha:]]+", "ab", "é"),
        ("[[:^alpha:]]", "é", "a"),
        (r"[^\s]\b-\B", "a-", "a--"),
        (r"\w\d\s", "a1 ", "é1 "),
        ("(?P<n>a)(?<m>b)", "ab", "a"),
        ("(?U)a+?", "aa", ""),
        ("a{0}b{2}c{1,}", "bbc", "abbc"),
        ("a{,2}", "a{,2}", "aa"),
        (r"\é", "é", "e"),
        (r"[\p{Lu}x]\pN", "B7", "b7"),
        ("[]a]{1,3}", "a]a", "b"),
        ("", "", "a"),
    ],
)
def test_the_syntax_of_re2j(pattern: str, matching: str, other: str) -> None:
    assert LinearPattern(pattern).fullmatch(matching)
    assert not LinearPattern(pattern).fullmatch(other)


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("(", "missing closing )"),
        ("(?<k>a", "missing closing )"),
        (")", "regexp/syntax: internal error"),
        ("[", "missing closing ]"),
        ("[[:alpha:]", "missing closing ]"),
        ("a**", "invalid nested repetition operator"),
        ("a++", "invalid nested repetition operator"),
        ("a{2}{3}", "invalid nested repetition operator"),
        ("{*", "invalid nested repetition operator"),
        ("a{{2}", "invalid nested repetition operator"),
        ("*", "missing argument to repetition operator"),
        ("a|{2}", "missing argument to repetition operator"),
        ("a{1001}", "invalid repeat count"),
        ("a{2,1}", "invalid repeat count"),
        ("a{99999999999}", "invalid repeat count"),
        ("\\", "trailing backslash at end of expression"),
        ("[z-a]", "invalid character class range"),
        (r"\p{Foo}", "invalid character class range"),
        ("[[:foo:]]", "invalid character class range"),
        (r"\q", "invalid escape sequence"),
        (r"\Z", "invalid escape sequence"),
        (r"\C", "invalid escape sequence"),
        (r"a\1", "invalid escape sequence"),
        (r"\x{110000}", "invalid escape sequence"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?P=n)", "invalid or unsupported Perl syntax"),
        ("(?x)a", "invalid or unsupported Perl syntax"),
        ("(?<!a)", "invalid named capture"),
        ("(?<=a)", "invalid named capture"),
        ("(?P<é>a)", "invalid named capture"),
        ("(?P<>a)", "invalid named capture"),
        ("(?P<n>a)(?<n>b)", "duplicate capture group name"),
    ],
)
def test_patterns_refused_by_re2j_are_refused_in_its_words(pattern: str, complaint: str) -> None:
    with pytest.raises(PatternError) as refused:
        LinearPattern(pattern)
    assert str(refused.value) == complaint


@pytest.mark.parametrize("pattern", ["a" * 40_000, r"\pL{1000}", "((a{10}){100}){2}", "é" * 20_000])
def test_a_pattern_that_would_take_much_memory_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        LinearPattern(pattern)
