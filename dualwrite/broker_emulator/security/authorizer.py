"""Kafka's StandardAuthorizer (KIP-801): what is not allowed is refused, unless a setting says otherwise.

A decision stands until a rule changes, so that a client that does the same again and again asks one dictionary.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dualwrite.broker_emulator.security.acl import (
    EVERYBODY,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    Authorizer,
    PatternType,
    PermissionType,
    ResourceType,
    why_not_an_acl,
)
from dualwrite.broker_emulator.security.acl_decision import decide
from dualwrite.broker_emulator.security.acl_index import AclIndex
from dualwrite.broker_emulator.security.principal import Principal

if TYPE_CHECKING:
    from dualwrite.broker_emulator.config import BrokerConfig
    from dualwrite.broker_emulator.storage.storage import Storage

logger = logging.getLogger(__name__)

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The one value that `authorizer.class.name` takes here, besides none."""

KIND: Final = "acl"
"""Under which the storage keeps the rules."""

_MAX_REMEMBERED = 10_000
"""How many decisions, and how many refusals that were logged, are remembered: names come from clients."""

_ANY_NAME = "hardcode"
"""The name that Kafka asks about first when any resource of a type would do."""

_EVERYTHING: Final = (PatternType.LITERAL, WILDCARD)

_Question = tuple[Principal, str, AclOperation, ResourceType, str | None]
"""Principal, host, operation, resource type, and the name, where it is not about any resource of the type."""


def check_settings(config: BrokerConfig) -> None:
    """Raise ValueError for an authorizer that is not known here, and for a super user that is no principal."""
    if config.authorizer_class_name not in ("", STANDARD_AUTHORIZER):
        raise ValueError(
            f"authorizer.class.name={config.authorizer_class_name} is not served: leave it out, or set it to "
            f"{STANDARD_AUTHORIZER}"
        )
    try:
        parse_super_users(config.super_users)
    except ValueError as problem:
        raise ValueError(f"super.users={config.super_users}: {problem}") from problem


def authorizer_for(config: BrokerConfig, storage: Storage) -> Authorizer | None:
    """The authorizer that the settings ask for, with the rules that were kept; None where they ask for none."""
    if not config.authorizer_class_name:
        return None
    return StandardAuthorizer(
        storage, parse_super_users(config.super_users), is_open=config.allow_everyone_if_no_acl_found
    )


def with_access_control(config: BrokerConfig, super_users: Iterable[str]) -> BrokerConfig:
    """The settings with access control on, and with more super users. Raises ValueError where one is no principal."""
    named = ";".join(str(Principal.parse(user)) for user in super_users)
    return replace(
        config,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users=";".join(part for part in (config.super_users, named) if part),
    )


def parse_super_users(text: str) -> frozenset[Principal]:
    """Read `User:alice;User:bob`. Raises ValueError where one is no principal."""
    return frozenset(Principal.parse(part.strip()) for part in text.split(";") if part.strip())


class StandardAuthorizer:
    """The rules of one cluster and the decisions by them."""

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
            self._log(principal, host, operation, resource_type, name)
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
        """As Kafka does it: implied operations do not count, and a rule counts unless one refuses all it covers.

        (`authorizeByResourceType`, which came with KIP-679.)
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
        """Whether an allowed pattern is not wholly refused."""
        concerned = [
            acl
            for acl in self._index
            if acl.resource_type is resource_type
            and acl.principal in (principal, EVERYBODY)
            and acl.host in (WILDCARD, host)
            and acl.operation in (AclOperation.ALL, operation)
        ]
        refused = {(acl.pattern_type, acl.name) for acl in concerned if acl.permission is PermissionType.DENY}
        allowed = {(acl.pattern_type, acl.name) for acl in concerned if acl.permission is PermissionType.ALLOW}
        if _EVERYTHING in refused or _EVERYTHING in allowed:
            return _EVERYTHING not in refused
        return any(not _is_wholly_refused(pattern, refused) for pattern in allowed)

    def _log(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        """Say a refusal once: a client that tries again and again says nothing new."""
        refusal = (principal, operation, resource_type, name)
        if refusal in self._logged:
            return
        if len(self._logged) >= _MAX_REMEMBERED:
            self._logged.clear()
        self._logged.add(refusal)
        logger.info("%s from host %s is denied %s on %s %r", principal, host, operation.name, resource_type.name, name)

    # rules

    def acls(self, wanted: AclFilter) -> list[Acl]:
        return [acl for acl in self._index if wanted.matches(acl)]

    def add(self, acl: Acl) -> None:
        problem = why_not_an_acl(acl)
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
            self._forget_decisions()  # each time: the next one may not come off the disk
        return removed

    def _forget_decisions(self) -> None:
        self._decisions.clear()
        self._logged.clear()  # a refusal under other rules is news


def _is_wholly_refused(pattern: tuple[PatternType, str], refused: set[tuple[PatternType, str]]) -> bool:
    """Whether a refused pattern covers everything that an allowed one does."""
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
