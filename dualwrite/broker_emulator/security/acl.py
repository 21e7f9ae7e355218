"""What access control speaks of: operations, resources and Kafka's numbers for them (KIP-11, KIP-140, KIP-939)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

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


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""


class Authorizer(Protocol):
    """Decides who may do what."""

    def is_allowed(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether `principal`, connected from the address `host`, may do `operation` with that resource."""
