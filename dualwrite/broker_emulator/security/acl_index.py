"""The rules, found by the resource and the principal that they are about: many rules make no decision slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from dualwrite.broker_emulator.security.acl import EVERYBODY, WILDCARD, Acl, PatternType, ResourceType

_Key = TypeVar("_Key")
_Pattern = tuple[ResourceType, PatternType, str]


class AclIndex:
    """A set of rules. Finding those of one resource takes as many look-ups as there are lengths of prefixes."""

    def __init__(self) -> None:
        self._all: dict[Acl, None] = {}
        self._by_principal: dict[tuple[_Pattern, str], dict[Acl, None]] = {}
        self._of_pattern: Counter[_Pattern] = Counter()
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {}

    def __iter__(self) -> Iterator[Acl]:
        """Every rule, in the order in which they came."""
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._all

    def add(self, acl: Acl) -> None:
        """Add a rule; nothing happens where it is there."""
        if acl in self._all:
            return
        self._all[acl] = None
        pattern = _pattern(acl)
        self._by_principal.setdefault((pattern, acl.principal), {})[acl] = None
        self._of_pattern[pattern] += 1
        if acl.pattern_type is PatternType.PREFIXED:
            self._prefix_lengths.setdefault(acl.resource_type, Counter())[len(acl.name)] += 1

    def remove(self, acl: Acl) -> None:
        """Remove a rule. Raises KeyError where it is not there."""
        del self._all[acl]
        pattern = _pattern(acl)
        same = self._by_principal[pattern, acl.principal]
        del same[acl]
        if not same:
            del self._by_principal[pattern, acl.principal]
        _take_one(self._of_pattern, pattern)
        if acl.pattern_type is PatternType.PREFIXED:
            _take_one(self._prefix_lengths[acl.resource_type], len(acl.name))

    def covering(self, resource_type: ResourceType, name: str, principal: str) -> Iterator[Acl]:
        """The rules about the resource that name the principal, or everybody."""
        for pattern in self._patterns(resource_type, name):
            yield from self._by_principal.get((pattern, principal), ())
            if principal != EVERYBODY:
                yield from self._by_principal.get((pattern, EVERYBODY), ())

    def is_covered(self, resource_type: ResourceType, name: str) -> bool:
        """Whether there is any rule about the resource, whomever it names."""
        return any(pattern in self._of_pattern for pattern in self._patterns(resource_type, name))

    def _patterns(self, resource_type: ResourceType, name: str) -> Iterator[_Pattern]:
        """Every pattern that the name falls under, as far as there can be rules with it."""
        yield resource_type, PatternType.LITERAL, name
        if name != WILDCARD:
            yield resource_type, PatternType.LITERAL, WILDCARD
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                yield resource_type, PatternType.PREFIXED, name[:length]


def _pattern(acl: Acl) -> _Pattern:
    return acl.resource_type, acl.pattern_type, acl.name


def _take_one(counter: Counter[_Key], key: _Key) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
