"""Kafka's StandardAuthorizer (KIP-801): operations without an allowing rule are refused, unless a setting allows them.

Rules are found by the resource and the principal that they name, so that many rules do not slow decisions down. A
decision is cached until a rule changes, so that a client that repeats an operation costs one dictionary look-up.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from dualwrite.broker_emulator.security.acl import (
    ANY_PRINCIPAL,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    Authorizer,
    PatternType,
    PermissionType,
    ResourceType,
    acl_problem,
    decide,
)
from dualwrite.broker_emulator.security.principal import Principal
from dualwrite.broker_emulator.text import log_text

if TYPE_CHECKING:
    from dualwrite.broker_emulator.config import BrokerConfig
    from dualwrite.broker_emulator.storage.storage import Storage

_Key = TypeVar("_Key")
_Pattern = tuple[ResourceType, PatternType, str]


class AclIndex:
    """A set of rules. Finding the rules of one resource takes one look-up per length of prefix."""

    def __init__(self) -> None:
        self._all: dict[Acl, None] = {}
        self._by_principal: dict[tuple[_Pattern, str], dict[Acl, None]] = {}
        self._of_pattern: Counter[_Pattern] = Counter()
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {}

    def __iter__(self) -> Iterator[Acl]:
        """Yield every rule in the order of addition."""
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._all

    def add(self, acl: Acl) -> None:
        """Add a rule. Idempotent."""
        if acl in self._all:
            return
        self._all[acl] = None
        pattern = _pattern(acl)
        self._by_principal.setdefault((pattern, acl.principal), {})[acl] = None
        self._of_pattern[pattern] += 1
        if acl.pattern_type is PatternType.PREFIXED:
            self._prefix_lengths.setdefault(acl.resource_type, Counter())[len(acl.name)] += 1

    def remove(self, acl: Acl) -> None:
        """Remove a rule. Raises KeyError if it does not exist."""
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
        """Yield the rules that cover the resource and name the principal, or all principals."""
        for pattern in self.patterns(resource_type, name):
            yield from self._by_principal.get((pattern, principal), ())
            if principal != ANY_PRINCIPAL:
                yield from self._by_principal.get((pattern, ANY_PRINCIPAL), ())

    def is_covered(self, resource_type: ResourceType, name: str) -> bool:
        """Return whether any rule covers the resource, for any principal."""
        return any(pattern in self._of_pattern for pattern in self.patterns(resource_type, name))

    def patterns(self, resource_type: ResourceType, name: str) -> Iterator[_Pattern]:
        """Yield the patterns that cover the name and for which there may be rules."""
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


logger = logging.getLogger(__name__)

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The only authorizer that `authorizer.class.name` may name here."""

KIND: Final = "acl"
"""The kind of the stored rules."""

_MAX_REMEMBERED = 10_000
"""The most decisions and logged refusals that are cached; bounded, because clients choose the names."""

_ANY_NAME = "hardcode"
"""The name that Kafka checks first to decide on any resource of a type."""

_EVERYTHING: Final = (PatternType.LITERAL, WILDCARD)

_Question = tuple[Principal, str, AclOperation, ResourceType, str | None]
"""Principal, host, operation, resource type, and name; the name is None for any resource of the type."""


def check_settings(config: BrokerConfig) -> None:
    """Raise ValueError for an unknown authorizer, and for a super user that is not a principal."""
    if config.authorizer_class_name not in ("", STANDARD_AUTHORIZER):
        raise ValueError(
            f"authorizer.class.name={config.authorizer_class_name} is not supported: leave it out, or set it to "
            f"{STANDARD_AUTHORIZER}"
        )
    try:
        parse_super_users(config.super_users)
    except ValueError as problem:
        raise ValueError(f"super.users={config.super_users}: {problem}") from problem


def authorizer_for(config: BrokerConfig, storage: Storage) -> Authorizer | None:
    """Return the authorizer of the settings, with the stored rules; None if the settings name none."""
    if not config.authorizer_class_name:
        return None
    return StandardAuthorizer(
        storage, parse_super_users(config.super_users), is_open=config.allow_everyone_if_no_acl_found
    )


def with_access_control(config: BrokerConfig, super_users: Iterable[str]) -> BrokerConfig:
    """Return the settings with access control and further super users. Raises ValueError for an invalid principal."""
    named = ";".join(str(Principal.parse(user)) for user in super_users)
    return replace(
        config,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users=";".join(part for part in (config.super_users, named) if part),
    )


def parse_super_users(text: str) -> frozenset[Principal]:
    """Parse `User:alice;User:bob`. Raises ValueError for an invalid principal."""
    return frozenset(Principal.parse(part.strip()) for part in text.split(";") if part.strip())


class StandardAuthorizer:
    """The rules of one cluster, and decisions by them."""

    def __init__(self, storage: Storage, super_users: Iterable[Principal] = (), *, is_open: bool = False) -> None:
        self._storage = storage
        self._super_users = frozenset(super_users)
        self._is_open = is_open
        self._index = AclIndex()
        self._decisions: dict[_Question, bool] = {}
        self._logged: set[tuple[Principal, AclOperation, ResourceType, str]] = set()
        for fields in storage.values(KIND).values():
            self._index.add(_from_json(fields))

    # decisions

    def is_allowed(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        is_logged: bool = True,
    ) -> bool:
        question = (principal, host, operation, resource_type, name)
        allowed = self._decisions.get(question)
        if allowed is None:
            allowed = self._decide(principal, host, operation, resource_type, name)
            self._remember(question, allowed)
        if not allowed and is_logged:
            self._log_refusal(principal, host, operation, resource_type, name)
        return allowed

    def _decide(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        if self._is_open and not self._index.is_covered(resource_type, name):
            return True
        return decide(self._index.covering(resource_type, name, str(principal)), host, operation)

    def is_allowed_on_any(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Decide as Kafka does (`authorizeByResourceType`, KIP-679).

        Implied operations do not count, and an allowing rule counts unless a denying rule covers all its resources.
        """
        if self.is_allowed(principal, host, operation, resource_type, _ANY_NAME, is_logged=False):
            return True
        question = (principal, host, operation, resource_type, None)
        allowed = self._decisions.get(question)
        if allowed is None:
            allowed = self._is_any_left(str(principal), host, operation, resource_type)
            self._remember(question, allowed)
        return allowed

    def _remember(self, question: _Question, allowed: bool) -> None:
        if len(self._decisions) >= _MAX_REMEMBERED:
            self._decisions.clear()
        self._decisions[question] = allowed

    def _is_any_left(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether an allowed pattern remains that is not wholly denied."""
        concerned = [
            acl
            for acl in self._index
            if acl.resource_type is resource_type
            and acl.principal in (principal, ANY_PRINCIPAL)
            and acl.host in (WILDCARD, host)
            and acl.operation in (AclOperation.ALL, operation)
        ]
        refused = {(acl.pattern_type, acl.name) for acl in concerned if acl.permission is PermissionType.DENY}
        allowed = {(acl.pattern_type, acl.name) for acl in concerned if acl.permission is PermissionType.ALLOW}
        if _EVERYTHING in refused or _EVERYTHING in allowed:
            return _EVERYTHING not in refused
        return any(not _is_wholly_refused(pattern, refused) for pattern in allowed)

    def _log_refusal(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        """Log a refusal once, not at each retry of a client."""
        refusal = (principal, operation, resource_type, name)
        if refusal in self._logged:
            return
        if len(self._logged) >= _MAX_REMEMBERED:
            self._logged.clear()
        self._logged.add(refusal)
        who, what = log_text(principal), f"{operation.name} on {resource_type.name} {log_text(repr(name))}"
        logger.info("%s from host %s is denied %s", who, host, what)

    # rules

    def acls(self, wanted: AclFilter) -> list[Acl]:
        return [acl for acl in self._index if wanted.matches(acl)]

    def add(self, acl: Acl) -> None:
        problem = acl_problem(acl)
        if problem is not None:
            raise ValueError(f"{problem} (in the rule: {acl})")
        if acl in self._index:
            return
        self._storage.store_value(KIND, _key(acl), list(acl))
        self._index.add(acl)
        self._forget_decisions()

    def remove(self, wanted: AclFilter) -> list[Acl]:
        removed = self.acls(wanted)
        for acl in removed:
            self._storage.store_value(KIND, _key(acl), None)
            self._index.remove(acl)
            self._forget_decisions()  # each time: removing the next rule from the disk may fail
        return removed

    def _forget_decisions(self) -> None:
        self._decisions.clear()
        self._logged.clear()  # a refusal under new rules is logged again


def _is_wholly_refused(pattern: tuple[PatternType, str], refused: set[tuple[PatternType, str]]) -> bool:
    """Return whether a denied pattern covers everything that an allowed pattern covers."""
    kind, name = pattern
    if kind is PatternType.LITERAL and pattern in refused:
        return True
    return any((PatternType.PREFIXED, name[:length]) in refused for length in range(1, len(name) + 1))


def _key(acl: Acl) -> str:
    return json.dumps(acl)


def _from_json(fields: list[str | int]) -> Acl:
    resource_type, name, pattern_type, principal, host, operation, permission = fields
    return Acl(
        ResourceType(int(resource_type)),
        str(name),
        PatternType(int(pattern_type)),
        str(principal),
        str(host),
        AclOperation(int(operation)),
        PermissionType(int(permission)),
    )
