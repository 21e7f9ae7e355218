"""Regular expressions that members subscribe with: RE2's syntax, matched against whole topic names.

Kafka compiles them with RE2/J, this with Python's `re`: what RE2 does not have is refused (look-around, back
references, possessive repetition), what only RE2 has is translated (`\\z`, `\\Q...\\E`, POSIX and Unicode classes, of
which only the ASCII part can be in a topic's name). Refusals are worded as RE2/J words them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer.group import RefusedError, RegularExpression
from dualwrite.broker_emulator.groups.consumer.topics import Topics

_PERL_SYNTAX = "invalid or unsupported Perl syntax"
_BAD_ESCAPE = "invalid escape sequence"
_BAD_CLASS = "invalid character class range"
_BAD_COUNT = "invalid repeat count"
_NESTED = "invalid nested repetition operator"
_MAX_COUNT = 1000

_RE2J_SAYS: Mapping[str, str] = {
    "unterminated character set": "missing closing ]",
    "missing ), unterminated subpattern": "missing closing )",
    "unbalanced parenthesis": "regexp/syntax: internal error",
    "multiple repeat": _NESTED,
    "nothing to repeat": "missing argument to repetition operator",
    "min repeat greater than max repeat": _BAD_COUNT,
    "bad character range": _BAD_CLASS,
    "bad escape": _BAD_ESCAPE,
    "missing group name": "invalid named capture",
    "bad character in group name": "invalid named capture",
}
"""By how Python's complaint begins; anything else is `_PERL_SYNTAX`."""

_REFUSED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\(\?<[=!]"), "invalid named capture"),
    (re.compile(r"\(\?(?!P<|<|[imsU]*-?[imsU]*[:)])"), _PERL_SYNTAX),
    (re.compile(r"[*+?}]\+"), _NESTED),
)
"""What Python would take and RE2 does not, and how RE2/J puts that."""

_POSIX: Mapping[str, str] = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7F",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1F\x7F",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_UNICODE: Mapping[str, str] = {"L": "A-Za-z", "Lu": "A-Z", "Ll": "a-z", "N": "0-9", "Nd": "0-9", "P": r"._\-"}

_TOKEN = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|$)"
    r"|\\p(?:\{(?P<unicode>\w+)\}|(?P<letter>\w))"
    r"|\[:(?P<posix>\w+):\]"
    r"|\\(?P<escaped>.)"
    r"|\{(?P<count>\d+)(?:,(?P<most>\d*))?\}"
    r"|(?P<opens>\[\^?\]?)"
    r"|(?P<closes>\])",
    re.DOTALL,
)


@lru_cache(maxsize=1024)
def compiled(expression: str) -> re.Pattern[str]:
    """The expression for Python. Raises RefusedError (128) for what is none in RE2's syntax."""
    bare = re.sub(r"\\.", "..", expression)
    for pattern, complaint in _REFUSED:
        if pattern.search(bare):
            raise _invalid(expression, complaint)
    if bare.endswith("\\"):
        raise _invalid(expression, "trailing backslash at end of expression")
    translated = _Translation(expression).result
    try:
        return re.compile(re.sub(r"\(\?<(?![=!])", "(?P<", translated), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        said = str(error)
        complaint = next((says for begins, says in _RE2J_SAYS.items() if said.startswith(begins)), _PERL_SYNTAX)
        raise _invalid(expression, complaint) from error


class _Translation:
    """An expression on its way from RE2's syntax to Python's."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._in_class = False
        self.result = _TOKEN.sub(self._token, expression)

    def _token(self, found: re.Match[str]) -> str:
        kind, text = found.lastgroup or "", found.group()
        if kind == "quoted":
            return re.escape(found["quoted"])
        if kind in ("unicode", "letter"):
            return self._class(_UNICODE.get(found["unicode"] or found["letter"]))
        if kind == "posix" and self._in_class:
            return self._class(_POSIX.get(found["posix"]))
        if kind == "escaped":
            return self._escaped(found["escaped"])
        if kind in ("count", "most") and not self._in_class:
            return self._count(found)
        if kind == "opens" and not self._in_class:
            self._in_class = True
        elif kind == "closes":
            self._in_class = False
        return text

    def _class(self, members: str | None) -> str:
        if members is None:
            raise _invalid(self._expression, _BAD_CLASS)
        return members if self._in_class else f"[{members}]"

    def _escaped(self, letter: str) -> str:
        if letter in "123456789":
            raise _invalid(self._expression, _BAD_ESCAPE)
        return r"\Z" if letter == "z" else f"\\{letter}"

    def _count(self, found: re.Match[str]) -> str:
        if max(int(found["count"]), int(found["most"] or 0)) > _MAX_COUNT:
            raise _invalid(self._expression, _BAD_COUNT)
        return found.group()


def _invalid(expression: str, complaint: str) -> RefusedError:
    return RefusedError(
        ErrorCode.invalid_regular_expression,
        f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {complaint}.",
    )


def resolve(
    expressions: Iterable[str], topics: Topics, now_ms: int, is_visible: Callable[[str], bool]
) -> dict[str, RegularExpression]:
    """The topics that each expression matches, of those that may be seen. One that is none matches nothing."""
    names = [name for name in topics.names() if is_visible(name)]
    return {
        expression: RegularExpression(_matching(expression, names), topics.version, now_ms)
        for expression in expressions
    }


def _matching(expression: str, names: Iterable[str]) -> frozenset[str]:
    try:
        pattern = compiled(expression)
    except RefusedError:
        return frozenset()
    return frozenset(name for name in names if pattern.fullmatch(name))
