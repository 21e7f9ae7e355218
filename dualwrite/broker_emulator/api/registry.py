"""What an API is: its versions, the messages of each, one request on its way, and the functions that answer it.

Message schemas are kio's, loaded when a version is first asked for (all of them together take a second to import).
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import timedelta
from functools import cache, cached_property
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader

from dualwrite.broker_emulator.api.request_bounds import bounds_check
from dualwrite.broker_emulator.config import BrokerConfig, Profile
from dualwrite.broker_emulator.metrics.counters import errors_of
from dualwrite.broker_emulator.net.codec import builder, writer
from dualwrite.broker_emulator.security.acl import (
    CLUSTER_NAME,
    OPERATIONS_OF_OLD_GROUPS,
    SUPPORTED_OPERATIONS,
    AclOperation,
    ResourceType,
)
from dualwrite.broker_emulator.security.listener import Endpoint
from dualwrite.broker_emulator.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Cluster
    from dualwrite.broker_emulator.cluster.node import Node
    from dualwrite.broker_emulator.net.server import Connection

NO_THROTTLE = timedelta(0)
"""What every response says about quotas: there are none."""

_RESPONSE_PREFIX = struct.Struct(">ii")  # frame size, correlation id
_API_VERSIONS_KEY = 18


class Schema:
    """One version of one API: reads its requests, builds and writes its responses."""

    __slots__ = (
        "_flexible_response_header",
        "_write",
        "check_bounds",
        "errors_of",
        "flexible_request_header",
        "key",
        "new",
        "read",
        "version",
    )

    def __init__(self, key: int, version: int) -> None:
        request_type = load_request_schema(key, version)
        response_type = load_response_schema(key, version)
        self.key = key
        self.version = version
        self.flexible_request_header: bool = request_type.__header_schema__.__flexible__
        # An ApiVersions answer has the old header in every version: the client does not know yet what we speak.
        self._flexible_response_header = response_type.__flexible__ and key != _API_VERSIONS_KEY
        self.read: Callable[[bytes | memoryview, int], tuple[Any, int]] = entity_reader(_untyped(request_type))
        self.check_bounds = bounds_check(request_type)
        self.errors_of = errors_of(response_type)
        self._write = writer(response_type)
        self.new = SimpleNamespace(**_builders(response_type), response=builder(response_type))

    def frame(self, correlation_id: int, response: Any) -> bytes:
        """The whole response frame, size first."""
        parts = [b"\0"] if self._flexible_response_header else []
        self._write(parts.append, response)
        body = b"".join(parts)
        return _RESPONSE_PREFIX.pack(len(body) + 4, correlation_id) + body


def _untyped(entity_type: Any) -> Any:
    """Give kio's entity type up to kio's codec, whose type parameters cannot be named for every version."""
    return entity_type


@cache
def schema(key: int, version: int) -> Schema:
    """The schema of an API's version, loaded on first use. Raises kio's UnknownEntity where there is none."""
    return Schema(key, version)


def _builders(response_type: Any) -> dict[str, Callable[..., Any]]:
    module = __import__(response_type.__module__, fromlist=["*"])
    return {
        name: builder(member)
        for name, member in vars(module).items()
        if isinstance(member, type) and is_dataclass(member) and member.__module__ == module.__name__
    }


@dataclass(slots=True)
class Call:
    """One request on its way through the broker."""

    api: Api
    version: int
    request: Any
    new: Any
    """Builders of this version's response types by name; `new.response` builds the response itself."""
    node: Node
    client_id: str | None
    client_host: str = ""
    principal: Principal = ANONYMOUS
    connection: Connection | None = None
    """What it came over; None for what brokers ask each other."""

    def is_allowed(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        is_logged: bool = True,
    ) -> bool:
        """Whether who asks may do that; everybody may where there is no access control.

        `is_logged`: a refusal is worth a line in the log, because this very resource was asked for.
        """
        authorizer = self.node.cluster.authorizer
        return authorizer is None or authorizer.is_allowed(
            self.principal, self.client_host, operation, resource_type, name, is_logged=is_logged
        )

    def may_write_id(self, transactional_id: str) -> bool:
        """Whether who asks may write with that transactional id."""
        return self.node.cluster.authorizer is None or self.is_allowed(
            AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        )

    def may_write_topic(self, name: str) -> bool:
        """Whether who asks may write to that topic."""
        return self.node.cluster.authorizer is None or self.is_allowed(AclOperation.WRITE, ResourceType.TOPIC, name)

    def is_allowed_on_any(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether there may be a resource of that type with which who asks may do that (KIP-679)."""
        authorizer = self.node.cluster.authorizer
        return authorizer is None or authorizer.is_allowed_on_any(
            self.principal, self.client_host, operation, resource_type
        )

    def authorized_operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """What who asks may do with a resource, a bit for each operation (KIP-430)."""
        operations = SUPPORTED_OPERATIONS[resource_type]
        if resource_type is ResourceType.GROUP and self.cluster.config.profile is Profile.KAFKA_3_9:
            operations = OPERATIONS_OF_OLD_GROUPS
        return sum(
            1 << operation
            for operation in operations
            if self.is_allowed(operation, resource_type, name, is_logged=False)
        )

    @property
    def cluster(self) -> Cluster:
        return self.node.cluster

    def endpoint(self, node: Node) -> Endpoint:
        """Where a client that asks this is told to find `node`: at the listener that it came over (KIP-103)."""
        listener = next(iter(node.endpoints)) if self.connection is None else self.connection.listener
        return node.endpoints[listener]


class CloseConnectionError(Exception):
    """The request ends the connection, because Kafka's broker closes it in this case; the message says why."""


Handler = Callable[[Call], Awaitable[Any]]
"""Answers a call with a response, or with None where the protocol wants no answer."""

Refusal = Callable[[Call, ErrorCode], Any]
"""Answers a call with one error everywhere the response has room for it."""


class ApiFunctions(Protocol):
    """What the file of an API has. It may have `refuse_partitions` too (see `Api`)."""

    handle: Handler
    refuse: Refusal


@dataclass(frozen=True, kw_only=True)
class Api:
    """One API key as this broker serves it."""

    key: int
    schema_name: str
    min_version: int
    max_version: int
    is_abandonable: bool = False
    """Whether a request that waits may be given up when its client is gone, because it changes nothing."""
    newest: Mapping[Profile, int] = field(default_factory=dict)
    """Newest version served under a profile, where that is not `max_version`."""
    newest_unstable: Mapping[Profile, int] = field(default_factory=dict)
    """Newest version served under a profile with `unstable.api.versions.enable`, where that is more than `newest`."""
    advertised_min_version: int | None = None
    """Oldest version in the ApiVersions answer where that differs from what is served."""

    @cached_property
    def functions(self) -> ApiFunctions:
        """Those of its file, loaded when they are first asked for: of all APIs a broker is asked for a few."""
        loaded: Any = import_module(f"{__package__}.k{self.key:02d}_{self.schema_name}")
        functions: ApiFunctions = loaded
        return functions

    @property
    def refuse_partitions(self) -> Refusal:
        """Answers with one error for every partition, also where `refuse` says it once for the whole request."""
        functions = self.functions
        refusal: Refusal = getattr(functions, "refuse_partitions", functions.refuse)
        return refusal

    def max_version_for(self, config: BrokerConfig) -> int:
        """Newest version that a broker with `config` serves."""
        stable = self.newest.get(config.profile, self.max_version)
        return self.newest_unstable.get(config.profile, stable) if config.unstable_api_versions_enable else stable


class Served(NamedTuple):
    """One version of one API that a node serves."""

    api: Api
    message: Schema


def by_key(*apis: Api) -> Mapping[int, Api]:
    """The APIs by their keys. Raises ValueError for a key given twice and for versions that the codec does not have."""
    found: dict[int, Api] = {}
    for api in apis:
        if api.key in found:
            raise ValueError(f"API key {api.key} is given twice")
        for version in (api.min_version, api.max_version):
            if version not in schema_name_map[api.schema_name]:
                raise ValueError(f"{api.schema_name} has no version {version}")
        found[api.key] = api
    return found


def producer_fenced_below(version: int, requested: int, error: ErrorCode) -> ErrorCode:
    """90 PRODUCER_FENCED as clients older than KIP-588 know it: below `version` it goes out as 47."""
    if error is ErrorCode.producer_fenced and requested < version:
        return ErrorCode.invalid_producer_epoch
    return error
