"""The vocabulary of access control: operations, resources and rules, with Kafka's numbers, and the decision by rules.

KIP-11, KIP-140, KIP-290, KIP-939.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, Self

from dualwrite.broker_emulator.security.principal import Principal


class ResourceType(IntEnum):
    """What can be protected."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    __hash__ = int.__hash__  # Enum's own takes a call of Python for each decision


class AclOperation(IntEnum):
    """What can be done with it."""

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
    """How the name in a rule is meant (KIP-290). ANY and MATCH are for filters only."""

    UNKNOWN = 0
    ANY = 1
    """Every pattern of exactly that name."""
    MATCH = 2
    """Every pattern that a resource of that name falls under."""
    LITERAL = 3
    """The resource of that name, or every one where it is `*`."""
    PREFIXED = 4
    """Every resource whose name begins so."""


class PermissionType(IntEnum):
    """What a rule does."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""

WILDCARD: Final = "*"
"""Every resource of a type, or every host."""

EVERYBODY: Final = "User:*"
"""Every principal, of whatever type."""

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
"""What an answer with authorized operations can name (KIP-430)."""


OPERATIONS_OF_OLD_GROUPS: Final = (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE)
"""As long as groups had no configs."""

NOT_ASKED_FOR: Final = -(2**31)
"""What a response has in place of authorized operations where nobody asked for them (KIP-430)."""


class Acl(NamedTuple):
    """One rule: who may, or may not, do what with which resources, connected from where.

    Compares by its fields, as rules do in Kafka: the same rule twice is one rule.
    """

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    """`User:alice`, or `User:*` for everybody."""
    host: str
    """An address as text, or `*`."""
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
        """A rule that allows. The name may be left out where the resource is the cluster."""
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
        """A rule that refuses, whatever others allow."""
        return cls(resource_type, name, pattern_type, principal, host, operation, PermissionType.DENY)

    def __str__(self) -> str:
        verb = "may" if self.permission is PermissionType.ALLOW else "may not"
        resource = f"{self.pattern_type.name} {self.resource_type.name} {self.name!r}"
        return f"{self.principal} {verb} {self.operation.name} {resource} from host {self.host}"


class AclFilter(NamedTuple):
    """Which rules are meant; what is left out means all of them."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: PermissionType = PermissionType.ANY

    def matches(self, acl: Acl) -> bool:
        """Whether the rule is one of them. ALL is an operation of its own here, as are `*` hosts and principals."""
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
    """Whether a resource of that name, and of the rule's type, falls under the rule."""
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, WILDCARD)


def why_not_an_acl(acl: Acl) -> str | None:
    """What is wrong with a rule that somebody wants to add, in Kafka's order; None where nothing is."""
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
    """Decides who may do what, and keeps the rules for it."""

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
        """Whether `principal`, connected from the address `host`, may do `operation` with that resource.

        `is_logged`: a refusal is worth a line in the log; it is not where nobody asked for that very resource.
        """

    def is_allowed_on_any(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether there may be a resource of that type with which `principal` may do `operation`."""

    def acls(self, wanted: AclFilter) -> list[Acl]:
        """The rules that the filter means."""

    def add(self, acl: Acl) -> None:
        """Add a rule, which takes effect at once; one that is there already changes nothing.

        Raises ValueError for a rule that Kafka does not take, StorageError when it cannot be kept.
        """

    def remove(self, wanted: AclFilter) -> list[Acl]:
        """Remove the rules that the filter means, and name them. Raises StorageError."""


IMPLIED_BY: Final[Mapping[AclOperation, frozenset[AclOperation]]] = {
    AclOperation.DESCRIBE: frozenset(
        (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE)
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset((AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS)),
}
"""Who is allowed one of these may do the operation as well. Refusals imply nothing."""


def speaks_to(acl: Acl, host: str, operation: AclOperation) -> bool:
    """Whether a rule that names the principal and covers the resource says anything about this."""
    if acl.host not in (WILDCARD, host):
        return False
    if acl.operation in (AclOperation.ALL, operation):
        return True
    return acl.permission is PermissionType.ALLOW and acl.operation in IMPLIED_BY.get(operation, ())


def decide(acls: Iterable[Acl], host: str, operation: AclOperation) -> bool:
    """Whether the rules that name the principal and cover the resource allow it: one of them, and none refuses."""
    is_allowed = False
    for acl in acls:
        if speaks_to(acl, host, operation):
            if acl.permission is PermissionType.DENY:
                return False
            is_allowed = True
    return is_allowed
