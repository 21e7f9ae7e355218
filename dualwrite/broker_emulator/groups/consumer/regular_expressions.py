"""Regular expressions that members subscribe with: RE2's syntax, matched against whole topic names.

Kafka compiles them with RE2/J. Python's `re` is close enough for topic names once three things are taken care of:
what RE2 does not have is refused (look-around, back references, ...), what only RE2 has is translated (`\\z`,
`\\Q...\\E`, POSIX classes), and names match as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer.group import RefusedError, RegularExpression
from dualwrite.broker_emulator.groups.consumer.topics import Topics

_ONLY_IN_PYTHON = re.compile(r"\\[1-9]|\(\?(?:[=!>(#]|<[=!]|P[=>])|[*+?}]\+")
_POSIX_CLASSES: Mapping[str, str] = {
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
_POSIX_CLASS = re.compile(r"\[:(\w+):\]")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)


@lru_cache(maxsize=1024)
def compiled(expression: str) -> re.Pattern[str]:
    """The expression for Python. Raises RefusedError (128) for what is none in RE2's syntax."""
    refused = _ONLY_IN_PYTHON.search(_without_escaped_backslashes(expression))
    if refused is not None:
        raise _invalid(expression, f"invalid or unsupported Perl syntax: `{refused.group()}`")
    translated = _QUOTED.sub(lambda quoted: re.escape(quoted.group(1)), expression)
    translated = _POSIX_CLASS.sub(_posix_class, translated).replace(r"\z", r"\Z").replace(r"(?P<", "(?P<")
    try:
        return re.compile(re.sub(r"\(\?<(?![=!])", "(?P<", translated), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise _invalid(expression, str(error)) from error


def _without_escaped_backslashes(expression: str) -> str:
    return expression.replace("\\\\", "")


def _posix_class(found: re.Match[str]) -> str:
    return _POSIX_CLASSES.get(found.group(1), found.group())


def _invalid(expression: str, why: str) -> RefusedError:
    return RefusedError(
        ErrorCode.invalid_regular_expression,
        f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {why}.",
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
