"""What the rules on a resource say to one request: KIP-11, as Kafka's StandardAuthorizer reads it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dualwrite.broker_emulator.security.acl import WILDCARD, Acl, AclOperation, PermissionType

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
