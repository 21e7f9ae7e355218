"""Split SQL text into statements, at each `;` outside of strings, quoted names and comments, per database.

Pure functions. They know only the lexical rules that decide where a string, a quoted name or a comment ends, because
those separate statements from data. If a server setting changes these rules, there is a `Reading` for each value of the
setting, and the caller compares the results.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

_SPACE: Final = r"[\s\ufeff]+"  # ASCII whitespace; SQLite skips a byte order mark too
_OTHER: Final = r"(?P<other>.)"
_CUT: Final = r"(?P<cut>;)"
_BLOCK: Final = r"(?P<block>/\*)"

# The quantifiers are possessive: backtracking must not find an earlier end for an unterminated string
_STRING: Final = r"'(?:[^']|'')*+'"
_ESCAPED_STRING: Final = r"'(?:[^'\\]|\\.|'')*+'"
_NAME: Final = r'"(?:[^"]|"")*+"'
_BACKQUOTED: Final = r"`(?:[^`]|``)*+`"
_BRACKETED: Final = r"\[[^\]]*+\]"

# An E'' string continues after a line break, and a dollar quote ends with the tag with which it began
_PIECE: Final = r"(?:[^'\\]|\\.|'')*+'"
_E_STRING: Final = rf"[eE]'{_PIECE}(?:[ \t\f\v]*[\n\r](?:\s|--[^\n\r]*[\n\r])*'{_PIECE})*+"
_DOLLAR: Final = r"(?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)?\$)"
_POSTGRES_WORD: Final = r"[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*"
_OTHER_WORD: Final = r"[\w$\x80-\U0010ffff]+"


class Reading(NamedTuple):
    """The lexical rules of one database under one setting."""

    token: str
    """The pattern of a token, compiled when a text is first read: that takes longer than loading this module."""
    comments_nest: bool = False
    comment_may_stay_open: bool = False


class Cut(NamedTuple):
    """The statements in a text."""

    statements: tuple[tuple[str, ...], ...]
    """The tokens of each complete statement: words, names and strings with their quotes, single other characters."""
    problem: str | None
    """Why the text could not be read to its end; None if it was."""
    is_conditional: bool
    """Whether only some versions of the server execute a part of it."""


def cut(text: str, reading: Reading) -> Cut:
    """Return the statements of `text`, without empty ones."""
    statements: list[list[str]] = [[]]
    is_conditional = False
    position = 0
    next_token = _compiled(reading.token).match
    while position < len(text):
        token = next_token(text, position)
        assert token is not None, "the last alternative is any character"
        position = token.end()
        match token.lastgroup:
            case "cut":
                statements.append([])
            case "blank":
                pass
            case "condition":
                is_conditional = True
            case "block":
                position = _end_of_comment(text, position, reading)
            case "dollar":
                closing = text.find(token[0], position)
                position = -1 if closing < 0 else closing + len(token[0])
                statements[-1].append("$$")
            case "open":
                position = -1
            case _:
                statements[-1].append(token[0])
        if position < 0:
            statements.pop()
            break
    problem = "a string, a quoted name or a comment in it has no end" if position < 0 else None
    return Cut(tuple(tuple(tokens) for tokens in statements if tokens), problem, is_conditional)


def _end_of_comment(text: str, position: int, reading: Reading) -> int:
    """Return the position behind the comment that was opened right before `position`, or -1 if it has no end."""
    depth = 1
    while depth:
        mark = _COMMENT_MARK.search(text, position)
        if mark is None:
            return len(text) if reading.comment_may_stay_open else -1
        position = mark.end()
        if mark[0] == "*/":
            depth -= 1
        elif reading.comments_nest:
            depth += 1
        else:
            position -= 1  # `/*/` ends a comment if comments do not nest
    return position


_COMMENT_MARK: Final = re.compile(r"/\*|\*/")


@cache
def _compiled(token: str) -> re.Pattern[str]:
    return re.compile(token, re.ASCII | re.DOTALL)


def _reading(*alternatives: str) -> str:
    return "|".join(alternatives)


def _postgres(string: str) -> Reading:
    token = _reading(
        rf"(?P<blank>{_SPACE}|--[^\n\r]*)",
        _BLOCK,
        _CUT,
        _DOLLAR,
        rf"(?P<string>{_E_STRING}|{string}|{_NAME})",
        r"(?P<open>[eE]?'|\")",
        rf"(?P<word>{_POSTGRES_WORD})",
        _OTHER,
    )
    return Reading(token, comments_nest=True)


def _mysql(string: str, quoted: str) -> Reading:
    token = _reading(
        rf"(?P<blank>{_SPACE}|#[^\n]*|--(?=[\x00-\x20]|\Z)[^\n]*)",
        r"(?P<condition>/\*M?!\d*|\*/)",
        _BLOCK,
        _CUT,
        rf"(?P<string>{string}|{quoted}|{_BACKQUOTED})",
        r"(?P<open>['\"`])",
        rf"(?P<word>{_OTHER_WORD})",
        _OTHER,
    )
    return Reading(token)


_SQLITE: Final = _reading(
    rf"(?P<blank>{_SPACE}|--[^\n]*)",
    _BLOCK,
    _CUT,
    rf"(?P<string>{_STRING}|{_NAME}|{_BACKQUOTED}|{_BRACKETED})",
    r"(?P<open>['\"`\[])",
    rf"(?P<word>{_OTHER_WORD})",
    _OTHER,
)
_ESCAPED_QUOTED: Final = _ESCAPED_STRING.replace("'", '"')

POSTGRES_READINGS: Final = (_postgres(_STRING), _postgres(_ESCAPED_STRING))
"""For `standard_conforming_strings`: on, off."""

MYSQL_READINGS: Final = (
    _mysql(_ESCAPED_STRING, _ESCAPED_QUOTED),
    _mysql(_ESCAPED_STRING, _NAME),
    _mysql(_STRING, _NAME),
)
"""For `sql_mode`: default, ANSI_QUOTES, NO_BACKSLASH_ESCAPES."""

SQLITE_READINGS: Final = (Reading(_SQLITE, comment_may_stay_open=True),)
