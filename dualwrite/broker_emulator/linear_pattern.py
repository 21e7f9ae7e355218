"""Regular expressions of clients (KIP-848, KIP-1152): RE2/J's syntax and complaints, in time linear in the text.

Kafka matches them with RE2/J, which never backtracks. Python's engine does: a pattern such as `(a+)+b` would block the
whole broker for years. So RE2 itself matches them here, and this module handles the cases in which RE2/J differs from
RE2: `\\C`, names of groups, and a repetition of a literal `{`. Known to differ: RE2 also refuses nested repetitions
whose counts multiply to more than 1,000, and programs of more than a mebibyte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import re2

_MAX_PATTERN_BYTES: Final = 32_767
"""The longest pattern that a coordinator could store."""
_MAX_MEMORY_BYTES: Final = 1 << 20
_MAX_COUNT: Final = 1000

_BAD_ESCAPE: Final = "invalid escape sequence"
_BAD_NAME: Final = "invalid named capture"
_BAD_COUNT: Final = "invalid repeat count"
_NESTED: Final = "invalid nested repetition operator"

_RE2J_SAYS: Final[Mapping[str, str]] = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "unexpected )": "regexp/syntax: internal error",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "bad repetition operator": _NESTED,
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": _BAD_COUNT,
    "trailing \\": "trailing backslash at end of expression",
    "invalid named capture group": _BAD_NAME,
    "pattern too large - compile failed": "expression is too large",
}
"""RE2/J's complaint by RE2's, if they differ."""

_TOKEN: Final = re.compile(
    r"\\Q.*?(?:\\E|$)"
    r"|\\[pPx]\{[^}]*\}"
    r"|\\(?P<escaped>.)"
    r"|\[\^?\]?(?:\\.|\[:[^\]]*:\]|[^\]\\])*\]"
    r"|\(\?P?<(?P<name>[^>]*)>"
    r"|\{(?P<least>0|[1-9]\d*)(?:,(?P<most>0|[1-9]\d*)?)?\}"
    r"|\{(?P<repeated>[*+?]|\{(?:0|[1-9]\d*)(?:,(?:0|[1-9]\d*)?)?\})?",
    re.DOTALL | re.ASCII,
)
"""The relevant tokens of a legal pattern; the last alternative is a literal `{`."""
_QUOTED_OR_ESCAPED: Final = re.compile(r"(\\Q.*?(?:\\E|$))|\\(.)", re.DOTALL)


class PatternError(ValueError):
    """A pattern that Kafka refuses (128 INVALID_REGULAR_EXPRESSION); the message is RE2/J's."""


class LinearPattern:
    """A compiled pattern. Raises PatternError if RE2/J would refuse it."""

    __slots__ = ("_compiled",)

    def __init__(self, pattern: str) -> None:
        self._compiled = _compiled(pattern)

    def fullmatch(self, text: str) -> bool:
        """Return whether the whole of `text` matches."""
        return self._compiled.fullmatch(text) is not None


@lru_cache(maxsize=32)
def _compiled(pattern: str) -> Any:
    try:
        size = len(pattern.encode())
    except UnicodeEncodeError:  # one half of a surrogate pair
        raise PatternError("invalid UTF-8") from None
    if size > _MAX_PATTERN_BYTES:
        raise PatternError(_RE2J_SAYS["pattern too large - compile failed"])
    try:
        compiled = re2.compile(pattern if pattern.isascii() else _with_plain_letters(pattern), _options())
    except re2.error as error:
        raise PatternError(_complaint(error.args[0].decode())) from None
    finally:
        re2.purge()  # its own cache has no limit in bytes
    _check_for_re2j(pattern)
    return compiled


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    return options


def _with_plain_letters(pattern: str) -> str:
    """Remove the backslash before letters beyond ASCII, which only RE2/J allows."""
    return _QUOTED_OR_ESCAPED.sub(
        lambda found: found.group() if found[1] or found[2].isascii() else found[2],
        pattern,
    )


def _complaint(said: str) -> str:
    kind, _, argument = said.partition(":")
    if kind == "invalid perl operator" and argument.startswith(" (?<"):
        return _BAD_NAME
    return _RE2J_SAYS.get(kind, kind)


def _check_for_re2j(pattern: str) -> None:
    """Refuse patterns that RE2 accepts and RE2/J does not. Raises PatternError."""
    names: set[str] = set()
    for token in _TOKEN.finditer(pattern):
        if token["escaped"] == "C":  # a single byte, which Java's strings do not have
            raise PatternError(_BAD_ESCAPE)
        if token["name"] is not None:
            _check_name(token["name"], names)
        if any(len(count) > len(str(_MAX_COUNT)) for count in (token["least"], token["most"]) if count):
            raise PatternError(_BAD_COUNT)
        if token["repeated"]:
            raise PatternError(_NESTED)


def _check_name(name: str, names: set[str]) -> None:
    if not name.isascii():
        raise PatternError(_BAD_NAME)
    if name in names:
        raise PatternError("duplicate capture group name")
    names.add(name)
