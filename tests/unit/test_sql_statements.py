"""SQL text is split into the same statements as in the database, with any strings, names and comments."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.recipes.sql.lexer import MYSQL_READINGS, POSTGRES_READINGS, SQLITE_READINGS, Reading, cut

_TEXT = st.text(st.sampled_from("a;'\"`$/*-#[]\\ \n\réCOMMIT"), max_size=12)
_WORDS = st.sampled_from(["SELECT", "COMMIT", "x", "é1", "_a"])


def _quoted(quote: str, closing: str | None = None) -> st.SearchStrategy[str]:
    closing = closing or quote
    return _TEXT.map(lambda text: f"{quote}{text.replace(closing, closing * 2)}{closing}")


def _escaped(quote: str, prefix: str = "") -> st.SearchStrategy[str]:
    def with_backslashes(text: str) -> str:
        return prefix + quote + text.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote

    return _TEXT.map(with_backslashes)


def _comments(text: str) -> str:
    return text.replace("*/", "").replace("/*", "").rstrip("/*").lstrip("!M+/")


_LINE = _TEXT.map(lambda text: "-- " + text.replace("\n", "").replace("\r", "") + "\n")
_BLOCK = _TEXT.map(lambda text: f"/* {_comments(text)} */")
_NESTED = st.recursive(_BLOCK, lambda inner: st.tuples(inner, inner).map(lambda two: f"/* {two[0]} {two[1]} */"))
_BRACKETED = _TEXT.map(lambda text: f"[{text.replace(']', '')}]")


@st.composite
def _dollar_quoted(draw: st.DrawFn) -> str:
    tag = draw(st.sampled_from(["", "a", "_b1", "é"]))
    return f"${tag}${draw(_TEXT).replace('$', '')}${tag}$"


# For each dialect: texts of one token, and other texts.
_KINDS: dict[str, tuple[Reading, list[st.SearchStrategy[str]], list[st.SearchStrategy[str]]]] = {
    "postgres": (
        POSTGRES_READINGS[0],
        [_WORDS, _quoted("'"), _quoted('"'), _escaped("'", "E"), _dollar_quoted()],
        [_LINE, _NESTED],
    ),
    "postgres with backslashes": (POSTGRES_READINGS[1], [_WORDS, _escaped("'"), _quoted('"')], [_LINE, _NESTED]),
    "mysql": (MYSQL_READINGS[0], [_WORDS, _escaped("'"), _escaped('"'), _quoted("`")], [_LINE, _BLOCK]),
    "mysql without backslashes": (MYSQL_READINGS[2], [_WORDS, _quoted("'"), _quoted("`")], [_LINE, _BLOCK]),
    "sqlite": (SQLITE_READINGS[0], [_WORDS, _quoted("'"), _quoted('"'), _quoted("`"), _BRACKETED], [_LINE, _BLOCK]),
}


@pytest.mark.parametrize("kind", _KINDS)
@given(data=st.data())
def test_statements_are_cut_where_they_were_put_together(kind: str, data: st.DataObject) -> None:
    reading, tokens, blanks = _KINDS[kind]
    blank = st.one_of(st.just(" "), st.just("\n"), *blanks)
    statements = data.draw(st.lists(st.lists(st.one_of(*tokens), min_size=1, max_size=4), max_size=4))
    text = ";".join(_written(statement, data, blank) for statement in statements)
    found = cut(text, reading)
    assert found.problem is None
    assert [_tokens(statement) for statement in found.statements] == [_tokens(statement) for statement in statements]


def _written(statement: Sequence[str], data: st.DataObject, blank: st.SearchStrategy[str]) -> str:
    """Adjacent strings may form one string, so a separator is put between them."""
    parts = [data.draw(blank)]
    for token in statement:
        parts += [token, " ,", data.draw(blank)]
    return "".join(parts)


def _tokens(statement: Sequence[str]) -> list[str]:
    """Match the parts; the content of a dollar quote is not kept."""
    return ["$$" if token.startswith("$") else token for token in statement if token != ","]


@pytest.mark.parametrize("reading", [*POSTGRES_READINGS, *MYSQL_READINGS, *SQLITE_READINGS])
@given(text=st.text(st.sampled_from("a;'\"`$/*-#[]\\ \nE!M1"), max_size=40))
def test_any_text_is_read_to_its_end_or_said_not_to_have_one(reading: Reading, text: str) -> None:
    found = cut(text, reading)
    assert all(found.statements)
    assert len(found.statements) <= text.count(";") + 1
    if not any(mark in text for mark in ("'", '"', "`", "[", "/*", "$")):
        assert found.problem is None
