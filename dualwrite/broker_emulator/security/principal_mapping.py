"""The name of whoever shows a certificate: its distinguished name, changed by rules (KIP-371)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_DEFAULT: Final = "DEFAULT"
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_CASE: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}


class NoRuleAppliesError(Exception):
    """No rule has a name for a certificate; the message says which name it bears."""


@dataclass(frozen=True, slots=True)
class PrincipalMapping:
    """`RULE:pattern/replacement/[LU]` or `DEFAULT`, separated by commas (ssl.principal.mapping.rules).

    The first rule whose pattern is the whole name decides. Raises ValueError for rules that cannot be read.
    """

    rules: str = _DEFAULT
    _parsed: tuple[tuple[re.Pattern[str], str, str] | None, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parsed", tuple(_parse(self.rules.strip() or _DEFAULT)))

    def name_of(self, distinguished_name: str) -> str:
        """The principal's name. Raises NoRuleAppliesError."""
        for rule in self._parsed:
            if rule is None:
                return distinguished_name
            pattern, replacement, case = rule
            match = pattern.fullmatch(distinguished_name)
            if match is not None:
                return _CASE[case](match.expand(replacement))
        raise NoRuleAppliesError(f"no rule of ssl.principal.mapping.rules applies to {distinguished_name}")


def _parse(rules: str) -> list[tuple[re.Pattern[str], str, str] | None]:
    parsed: list[tuple[re.Pattern[str], str, str] | None] = []
    position = 0
    while position < len(rules):
        found = _RULE.match(rules, position)
        if found is None:
            raise ValueError(f"ssl.principal.mapping.rules: {rules[position:]!r} is no rule")
        position = found.end()
        is_default, pattern, replacement, case = found.groups()
        parsed.append(None if is_default else (_compiled(pattern), _as_python_template(replacement), case))
    return parsed


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"ssl.principal.mapping.rules: {pattern!r} is no pattern: {error}") from error


def _as_python_template(replacement: str) -> str:
    r"""Java's `$1`, and `\` before what is meant as it stands, as Python's `\g<1>` and `\\`."""

    def convert(found: re.Match[str]) -> str:
        group, escaped, other = found.groups()
        if group is not None:
            return rf"\g<{group}>"
        return (escaped if escaped is not None else other).replace("\\", r"\\")

    return re.sub(r"\$(\d)|\\(.)|([^$\\]|\$)", convert, replacement)


DEFAULT_MAPPING: Final = PrincipalMapping()
"""The distinguished name as it is."""
