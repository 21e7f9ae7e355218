"""Which names a topic can have, and what Kafka says of those that it cannot."""

from __future__ import annotations

import re

_LONGEST = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_legal_topic_name(name: str) -> bool:
    """Kafka's rule: at most 249 of ASCII letters, digits, dot, underscore and minus, and neither "." nor ".."."""
    return _LEGAL.fullmatch(name) is not None and name not in (".", "..")


def why_not_a_topic_name(name: str) -> str | None:
    """What is wrong with a name; None where a topic can have it."""
    if is_legal_topic_name(name):
        return None
    return f"Topic name is invalid: {_what_is_wrong(name)}"


def _what_is_wrong(name: str) -> str:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > _LONGEST:
        return f"the length of '{name}' is longer than the max allowed length {_LONGEST}"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
