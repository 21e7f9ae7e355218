"""Patterns of transactional ids, for brokers that cannot filter by them yet (below ListTransactions v2, KIP-1152).

A broker matches with RE2/J. Python's engine understands other things by some patterns, and takes years for others. So
only patterns are taken here that mean the same to both and that end soon; the rest is refused, never guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

# What both engines read alike: one alternative per kind of token.
_TOKEN: Final = re.compile(
    r"""
    (?P<open>\((?:\?:)?(?!\?))
    | (?P<close>\))
    | (?P<repeat>(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??(?![*+?{]))
    | (?P<either>\|)
    | (?P<one>
        \\[dDwWsS] | \\[^\w\s] | \.                              # classes, escaped punctuation
        | \[\^?(?:\\[dws] | \\[^\w\s] | [^\\\[\]&~|\s])+\]       # a class of characters, without classes in it
        | [^\\()\[\]{}*+?|.^$]                                   # itself
    )
    """,
    re.VERBOSE,
)


def matcher(pattern: str) -> Callable[[str], bool] | None:
    """Says of a transactional id whether all of it matches, as a broker would; None where that is not certain."""
    inner = _without_anchors(pattern)
    if not _means_the_same(inner):
        return None
    try:
        compiled = re.compile(inner, re.ASCII)
    except re.error:
        return None
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None


def _without_anchors(pattern: str) -> str:
    """All of an id has to match, so a ^ at the beginning and a $ at the end say nothing."""
    inner = pattern.removeprefix("^")
    ends_in_anchor = re.search(r"(?<!\\)(?:\\\\)*\$$", inner)
    return inner[:-1] if ends_in_anchor else inner


def _means_the_same(pattern: str) -> bool:
    """Whether all of it is made of the tokens above, and no repetition is inside of a repetition."""
    position = 0
    repeats_inside = [False]  # by depth of groups: whether the group has a repetition in it
    last_group_repeats = False
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:
            return False
        position = token.end()
        if token.lastgroup == "open":
            repeats_inside.append(False)
        elif token.lastgroup == "close":
            if len(repeats_inside) == 1:
                return False
            last_group_repeats = repeats_inside.pop()
            repeats_inside[-1] |= last_group_repeats
            continue
        elif token.lastgroup == "repeat":
            if last_group_repeats:
                return False
            repeats_inside[-1] = True
        last_group_repeats = False
    return len(repeats_inside) == 1


def pattern_of_prefix(prefix: str) -> str:
    """The pattern of all transactional ids that begin with `prefix`, for RE2/J."""
    return re.sub(r"[.*+?()\[\]{}|^$\\]", lambda found: "\\" + found[0], prefix) + r"(?:.|\n)*"
