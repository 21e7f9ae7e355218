"""The vocabulary of access control: operations, resources and rules, with Kafka's numbers, and the decision by rules.

KIP-11, KIP-140, KIP-290, KIP-939.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, Self

from dualwrite.broker_emulator.security.principal import Principal


class ResourceType(IntEnum):
    """The types of protected resources."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    __hash__ = int.__hash__  # Enum's own hash costs a Python call per decision


class AclOperation(IntEnum):
    """The operations on resources."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15

    __hash__ = int.__hash__  # as above


class PatternType(IntEnum):
    """How a rule's name selects resources (KIP-290). ANY and MATCH are only for filters."""

    UNKNOWN = 0
    ANY = 1
    """All patterns with exactly this name."""
    MATCH = 2
    """All patterns that cover a resource of this name."""
    LITERAL = 3
    """The resource of this name, or all resources if the name is `*`."""
    PREFIXED = 4
    """All resources whose name begins with this prefix."""


class PermissionType(IntEnum):
    """Whether a rule allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""

WILDCARD: Final = "*"
"""All resources of a type, or all hosts."""

ANY_PRINCIPAL: Final = "User:*"
"""All principals, of every type."""

SUPPORTED_OPERATIONS: Final[Mapping[ResourceType, Sequence[AclOperation]]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that a response can list as authorized (KIP-430)."""


OPERATIONS_OF_OLD_GROUPS: Final = (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE)
"""The operations on groups before groups had configs."""

NOT_ASKED_FOR: Final = -(2**31)
"""The value for authorized operations in a response whose request did not ask for them (KIP-430)."""


class Acl(NamedTuple):
    """A rule: it allows or denies a principal, from a host, an operation on resources.

    Rules are compared by their fields, as in Kafka: adding the same rule twice gives one rule.
    """

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    """`User:alice`, or `User:*` for all principals."""
    host: str
    """An IP address, or `*`."""
    operation: AclOperation
    permission: PermissionType

    @classmethod
    def allow(
        cls,
        principal: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        pattern_type: PatternType = PatternType.LITERAL,
        host: str = WILDCARD,
    ) -> Self:
        """Return a rule that allows. The name may be omitted if the resource is the cluster."""
        return cls(resource_type, name, pattern_type, principal, host, operation, PermissionType.ALLOW)

    @classmethod
    def deny(
        cls,
        principal: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        pattern_type: PatternType = PatternType.LITERAL,
        host: str = WILDCARD,
    ) -> Self:
        """Return a rule that denies, overriding all rules that allow."""
        return cls(resource_type, name, pattern_type, principal, host, operation, PermissionType.DENY)

    def __str__(self) -> str:
        verb = "may" if self.permission is PermissionType.ALLOW else "may not"
        resource = f"{self.pattern_type.name} {self.resource_type.name} {self.name!r}"
        return f"{self.principal} {verb} {self.operation.name} {resource} from host {self.host}"


class AclFilter(NamedTuple):
    """Selects rules; an omitted field selects every value."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: PermissionType = PermissionType.ANY

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter selects the rule. ALL matches only ALL here, and `*` only `*`."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (PermissionType.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        match self.pattern_type:
            case PatternType.MATCH:
                return self.name is None or covers(acl, self.name)
            case PatternType.ANY:
                return self.name in (None, acl.name)
            case _:
                return self.pattern_type is acl.pattern_type and self.name in (None, acl.name)


ALL_ACLS: Final = AclFilter()


def covers(acl: Acl, name: str) -> bool:
    """Return whether the rule covers a resource of its type with this name."""
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, WILDCARD)


def acl_problem(acl: Acl) -> str | None:
    """Return why a rule cannot be added, checked in Kafka's order, or None."""
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.name:
        return "Invalid empty resource name"
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return f"Invalid resourceType {acl.resource_type.name}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {acl.pattern_type.name}"
    if acl.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        return f"Invalid operation {acl.operation.name}"
    if acl.permission not in (PermissionType.DENY, PermissionType.ALLOW):
        return f"Invalid permissionType {acl.permission.name}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` "
            "(no colon is present separating the principal type from the principal name)"
        )
    return None


class Authorizer(Protocol):
    """Keeps the rules of access control, and decides by them."""

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
        """Return whether `principal`, connected from the address `host`, may do `operation` on this resource.

        `is_logged`: whether a refusal is logged; False if the request did not name this resource.
        """

    def is_allowed_on_any(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Return whether `principal` may do `operation` on any resource of this type, existing or not."""

    def acls(self, wanted: AclFilter) -> list[Acl]:
        """Return the rules that the filter selects."""

    def add(self, acl: Acl) -> None:
        """Add a rule, effective at once. Idempotent.

        Raises ValueError for a rule that Kafka refuses, StorageError if the rule cannot be stored.
        """

    def remove(self, wanted: AclFilter) -> list[Acl]:
        """Remove the rules that the filter selects, and return them. Raises StorageError."""


IMPLIED_BY: Final[Mapping[AclOperation, frozenset[AclOperation]]] = {
    AclOperation.DESCRIBE: frozenset(
        (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE)
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset((AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS)),
}
"""The operations whose permission implies the operation. A denial implies no other operation."""


def applies_to(acl: Acl, host: str, operation: AclOperation) -> bool:
    """Return whether a rule for the principal and the resource applies to this operation and host."""
    if acl.host not in (WILDCARD, host):
        return False
    if acl.operation in (AclOperation.ALL, operation):
        return True
    return acl.permission is PermissionType.ALLOW and acl.operation in IMPLIED_BY.get(operation, ())


def decide(acls: Iterable[Acl], host: str, operation: AclOperation) -> bool:
    """Return the decision of the rules for the principal and the resource: allowed if one allows and none denies.

    KIP-11, as Kafka's StandardAuthorizer implements it.
    """
    is_allowed = False
    for acl in acls:
        if applies_to(acl, host, operation):
            if acl.permission is PermissionType.DENY:
                return False
            is_allowed = True
    return is_allowed
