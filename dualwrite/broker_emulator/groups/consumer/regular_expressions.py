"""Subscriptions by regular expression: RE2's syntax, matched against whole topic names, and when they are resolved.

Kafka compiles them with RE2/J, this module with Python's `re`: syntax that RE2 does not have is refused (look-around,
back references, possessive repetition), syntax that only RE2 has is translated (`\\z`, `\\Q...\\E`, POSIX and Unicode
classes, of which only the ASCII part can be in a topic's name). Error messages are RE2/J's.

As in Kafka, expressions are resolved in the background: a member that subscribes with a new one gets its response
first, and its partitions with a later heartbeat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from functools import lru_cache

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer.change import DecisionContext, GroupChange
from dualwrite.broker_emulator.groups.consumer.group import (
    ConsumerGroup,
    ConsumerMember,
    RefusedError,
    RegularExpression,
)
from dualwrite.broker_emulator.groups.consumer.topics import Topics, metadata_hash

MIN_INTERVAL_MS = 10_000
"""Minimum interval between resolutions; a group's regular expressions are resolved together."""

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
"""RE2/J's message by the beginning of Python's; for any other, `_PERL_SYNTAX`."""

_REFUSED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\(\?<[=!]"), "invalid named capture"),
    (re.compile(r"\(\?(?!P<|<|[imsU]*-?[imsU]*[:)])"), _PERL_SYNTAX),
    (re.compile(r"[*+?}]\+"), _NESTED),
)
"""Syntax that Python accepts and RE2 does not, with RE2/J's message."""

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
    """Compile an expression for Python. Raises RefusedError (128) if it is invalid in RE2's syntax."""
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
    """Translates an expression from RE2's syntax to Python's."""

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
    """Return the visible topics that each expression matches; an invalid expression matches none."""
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


# --- when a group resolves its expressions ---------------------------------------------------------------------------


class RegexChange(Enum):
    """How a heartbeat changes its member's regular expression."""

    NONE = 0
    CHANGED = 1
    """To an expression that is not resolved yet: the group epoch is bumped when it is."""
    CHANGED_AND_RESOLVED = 2

    @property
    def is_any(self) -> bool:
        return self is not RegexChange.NONE

    @classmethod
    def of(cls, group: ConsumerGroup, before: ConsumerMember, after: ConsumerMember) -> RegexChange:
        """Compare a member before and after. Raises RefusedError (128) if a new expression is invalid."""
        regex = after.subscribed_regex
        if regex == before.subscribed_regex:
            return cls.NONE
        if not regex:
            return cls.CHANGED_AND_RESOLVED
        if group.subscribers_of(regex) == 0:
            compiled(regex)
            return cls.CHANGED
        return cls.CHANGED_AND_RESOLVED if regex in group.regular_expressions else cls.CHANGED


def due_for_resolution(group: ConsumerGroup, context: DecisionContext) -> frozenset[str]:
    """Return the group's expressions if some are unresolved, topics changed, or the refresh interval has passed."""
    wanted, known = group.subscribed_regexes, group.regular_expressions
    if not wanted or group.is_resolving:
        return frozenset()
    if not known:
        return wanted
    last_ms = max(found.timestamp_ms for found in known.values())
    if context.now_ms <= last_ms + MIN_INTERVAL_MS:
        return frozenset()
    is_due = (
        len(wanted) != len(known)
        or max(found.version for found in known.values()) != context.topics.version
        or context.now_ms > last_ms + context.settings.regex_refresh_interval_ms
    )
    return wanted if is_due else frozenset()


def resolved(group: ConsumerGroup, found: Mapping[str, RegularExpression], context: DecisionContext) -> ConsumerGroup:
    """Store the topics of resolved expressions; bump the group epoch if they changed."""
    in_use = {regex: topics for regex, topics in found.items() if regex in group.subscribed_regexes}
    known = group.regular_expressions
    is_new = any(
        known[regex].topics != now.topics if regex in known else bool(now.topics) for regex, now in in_use.items()
    )
    after = replace(group, regular_expressions={**known, **in_use}, is_resolving=False)
    if not is_new and metadata_hash(after.subscribed_topics, context.topics) == group.metadata_hash:
        return after
    change = GroupChange(group, context)
    change.bump_epoch(after)
    return change.group
