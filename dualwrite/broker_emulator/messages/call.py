"""`Call`: one request that a broker serves.

Faults and quotas see its broker only through the small protocols here. The files of the APIs take `NodeCall`
(`api/node_call.py`), which has the whole node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.security.acl import (
    CLUSTER_NAME,
    NOT_ASKED_FOR,
    OPERATIONS_OF_OLD_GROUPS,
    SUPPORTED_OPERATIONS,
    AclOperation,
    Authorizer,
    ResourceType,
)
from dualwrite.broker_emulator.security.listener import Endpoint
from dualwrite.broker_emulator.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    import uuid

    from dualwrite.broker_emulator.security.login import Login
    from dualwrite.broker_emulator.topics.topics import Topic


P = ParamSpec("P")
R = TypeVar("R")

DENIED: Final[Mapping[ResourceType, ErrorCode]] = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
"""The error of a client that may not do an operation on a resource, by the type of the resource."""


Handler = Callable[[Any], Awaitable[Any]]
"""Handles a request (`api/node_call.py`) and returns its response, or None if the protocol has none."""

Refusal = Callable[[Any, ErrorCode], Any]
"""Returns the response to a request (`NodeCall`) with one error wherever the response has a field for errors."""


@dataclass(slots=True)
class ApiFunctions:
    """The functions of an API in its file, such as `handle_end_txn` and `refuse_end_txn`."""

    handle: Handler
    refuse: Refusal
    refuse_partitions: Refusal
    """One error for each partition, even if `refuse` gives one error for the whole request."""


class ServedApi(Protocol):
    """The API of a request, one row of `api/registry.py`."""

    @property
    def key(self) -> int: ...

    @property
    def schema_name(self) -> str: ...

    @property
    def functions(self) -> ApiFunctions: ...


class Broker(Protocol):
    """The broker that serves a request."""

    @property
    def node_id(self) -> int: ...

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The addresses that clients connect to, by listener."""


class BrokerCluster(Protocol):
    """The cluster of that broker."""

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def authorizer(self) -> Authorizer | None:
        """None while access control is off."""

    def topic_by_id(self, topic_id: uuid.UUID | None) -> Topic | None:
        """Return the topic with this id, or None."""


class ClientConnection(Protocol):
    """The connection of a request."""

    @property
    def node(self) -> Broker: ...

    @property
    def listener(self) -> str: ...

    @property
    def client_id(self) -> str | None:
        """The client id of the last request."""

    @property
    def peer_host(self) -> str: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def login(self) -> Login | None:
        """None at a listener without SASL."""

    def abort(self) -> None:
        """Close at once, as a broken network does."""

    def kill(self) -> None:
        """Close because the node has died: a request in progress is never finished."""


@dataclass(slots=True)
class Call:
    """One request that a broker serves."""

    api: ServedApi
    version: int
    request: Any
    new: Any
    """Builders of this version's response types by name; `new.response` builds the response itself."""
    node: Broker
    cluster: BrokerCluster
    client_id: str | None
    client_host: str = ""
    principal: Principal = ANONYMOUS
    connection: ClientConnection | None = None
    """None for a request from another broker, which has no connection here."""
    is_large: bool = False
    """Whether the request has so many elements that even its response takes long to make."""

    async def made(self, make: Callable[P, R], *args: P.args, **values: P.kwargs) -> R:
        """Return the result of `make` from the given rows; for a large request, a thread makes it.

        Other requests are served meanwhile, so `make` may only read immutable data.
        """
        return await asyncio.to_thread(make, *args, **values) if self.is_large else make(*args, **values)

    async def answered(self) -> Any:
        """Return the response of the API's handler, or the refusal if a check of the whole request refuses it."""
        try:
            return await self.api.functions.handle(self)
        except RefusedError as refused:
            return await self.refused(refused.error)

    async def refused(self, error: ErrorCode) -> Any:
        """Return the response with this error in every error field."""
        return await self.made(self.api.functions.refuse, self, error)

    def is_allowed(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        is_logged: bool = True,
    ) -> bool:
        """Return whether the client may do the operation; always true while access control is off.

        `is_logged`: log a denial, because the request names this very resource.
        """
        authorizer = self.cluster.authorizer
        return authorizer is None or authorizer.is_allowed(
            self.principal, self.client_host, operation, resource_type, name, is_logged=is_logged
        )

    def require(self, operation: AclOperation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raise RefusedError unless the client may do the operation."""
        if self.cluster.authorizer is not None and not self.is_allowed(operation, resource_type, name):
            raise RefusedError(DENIED[resource_type])

    def may_write_id(self, transactional_id: str) -> bool:
        """Return whether the client may use the transactional id to write."""
        return self.cluster.authorizer is None or self.is_allowed(
            AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        )

    def may_write_topic(self, name: str) -> bool:
        """Return whether the client may write to the topic."""
        return self.cluster.authorizer is None or self.is_allowed(AclOperation.WRITE, ResourceType.TOPIC, name)

    def is_allowed_on_any(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether the client may do the operation on at least one possible resource of the type (KIP-679)."""
        authorizer = self.cluster.authorizer
        return authorizer is None or authorizer.is_allowed_on_any(
            self.principal, self.client_host, operation, resource_type
        )

    def authorized_operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the operations that the client may do on a resource, one bit for each (KIP-430)."""
        operations = SUPPORTED_OPERATIONS[resource_type]
        if resource_type is ResourceType.GROUP and not self.cluster.config.behaviours.groups_have_settings:
            operations = OPERATIONS_OF_OLD_GROUPS
        return sum(
            1 << operation
            for operation in operations
            if self.is_allowed(operation, resource_type, name, is_logged=False)
        )

    def cluster_operations(self) -> int:
        """Return the operations that the client may do on the cluster, if asked to; 0 without DESCRIBE on it."""
        if not getattr(self.request, "include_cluster_authorized_operations", False):
            return NOT_ASKED_FOR
        is_shown = self.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER)
        return self.authorized_operations(ResourceType.CLUSTER) if is_shown else 0

    def endpoint(self, node: Broker) -> Endpoint:
        """Return the address of `node` at the listener of this request (KIP-103)."""
        listener = next(iter(node.endpoints)) if self.connection is None else self.connection.listener
        return node.endpoints[listener]


class CloseConnectionError(Exception):
    """The request ends its connection, as it does in Kafka; the message has the reason."""
