"""Settings altered: access to the resources with settings, the sources of values, and each kind's rules.

Levels of Python's loggers are Kafka's BROKER_LOGGER resources (KIP-412): `root` is the root of the emulator's loggers,
not of the process, so requests cannot change other loggers. All nodes share them, until the process ends.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.cluster import config_changes
from dualwrite.broker_emulator.cluster.node import Node
from dualwrite.broker_emulator.configs.alteration import (
    ALL_BROKERS,
    AlterationError,
    Change,
    ConfigResource,
    Operation,
    why_invalid,
)
from dualwrite.broker_emulator.configs.description import BrokerLayers
from dualwrite.broker_emulator.configs.effective import broker_settings, broker_value, static_properties
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, Steps
from dualwrite.broker_emulator.topics.topics import Topic, why_not_a_topic_name

_PROTECTED: Final[Mapping[int, tuple[ResourceType, ErrorCode]]] = {
    ConfigResource.TOPIC: (ResourceType.TOPIC, ErrorCode.topic_authorization_failed),
    ConfigResource.GROUP: (ResourceType.GROUP, ErrorCode.group_authorization_failed),
    ConfigResource.BROKER: (ResourceType.CLUSTER, ErrorCode.cluster_authorization_failed),
    ConfigResource.BROKER_LOGGER: (ResourceType.CLUSTER, ErrorCode.cluster_authorization_failed),
    ConfigResource.CLIENT_METRICS: (ResourceType.CLUSTER, ErrorCode.cluster_authorization_failed),
}


def check_access(call: NodeCall, operation: AclOperation, resource_type: int, name: str) -> None:
    """Raise AlterationError if the client may not do the operation, or for a resource type without settings (42)."""
    is_too_new = resource_type == ConfigResource.GROUP and not call.cluster.config.behaviours.groups_have_settings
    if resource_type not in _PROTECTED or is_too_new:
        raise AlterationError(ErrorCode.invalid_request, f"Unknown resource type {resource_type}")
    protected, error = _PROTECTED[resource_type]
    if not call.is_allowed(operation, protected, CLUSTER_NAME if protected is ResourceType.CLUSTER else name):
        raise AlterationError(error, f"{operation.name} is not allowed with this {protected.name.lower()}")


def known_topic(call: NodeCall, name: str) -> Topic:
    """Return the topic of this name. Raises AlterationError: 17 for an illegal name, 3 for an unknown topic."""
    problem = why_not_a_topic_name(name)
    if problem is not None:
        raise AlterationError(ErrorCode.invalid_topic_exception, problem)
    topic = call.cluster.topics.get(name)
    if topic is None:
        raise AlterationError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    return topic


def layers_of(call: NodeCall, node: Node) -> BrokerLayers:
    """Return the settings of a broker by source."""
    cluster = call.cluster
    return BrokerLayers(
        settings=broker_settings(cluster.config.behaviours.settings),
        own=cluster.altered_configs.of(ConfigResource.BROKER, str(node.node_id)),
        of_all_brokers=cluster.altered_configs.of(ConfigResource.BROKER, ALL_BROKERS),
        static={**_addresses_of(node), **static_properties(cluster.given_config), **_identity_of(node)},
        effective=lambda name: broker_value(cluster.config_of(node.node_id), name),
    )


def _addresses_of(node: Node) -> dict[str, str]:
    """Return the listener settings that a properties file would need for a node, as defaults."""
    addresses = ",".join(f"{name}://{endpoint.address}" for name, endpoint in node.endpoints.items())
    return {"listeners": addresses, "advertised.listeners": addresses, "process.roles": "broker,controller"}


def _identity_of(node: Node) -> dict[str, str]:
    """Return the node's id settings: in a properties file they are those of the first node."""
    return {"node.id": str(node.node_id), "broker.id": str(node.node_id)}


# --- altering ---------------------------------------------------------------------------------------------------------


class _Asked(NamedTuple):
    """The alteration that a request asks for one resource."""

    changes: Sequence[Change]
    problem: AlterationError | None
    """The reason why the changes are invalid for any resource."""


def _asked(resources: Sequence[Any], changes_of: Any) -> list[_Asked]:
    return [_Asked(changes, why_invalid(changes)) for changes in map(changes_of, resources)]


async def alter(call: NodeCall, resource_type: int, name: str, asked: _Asked, *, is_incremental: bool) -> None:
    """Alter the settings of one resource, or (ValidateOnly) only check the changes. Raises AlterationError.

    Unless `is_incremental`, settings that the changes do not name are removed.
    """
    check_access(call, AclOperation.ALTER_CONFIGS, resource_type, name)
    if asked.problem is not None:
        raise asked.problem
    try:
        only_check = call.request.validate_only
        steps = _ALTERATIONS[ConfigResource(resource_type)](
            call, name, asked.changes, is_incremental=is_incremental, only_check=only_check
        )
        await call.cluster.changes.make(steps)
    except StorageError as error:
        raise AlterationError(ErrorCode.kafka_storage_error, str(error)) from error


def _alter_topic(call: NodeCall, name: str, changes: Sequence[Change], **how: bool) -> Steps[None]:
    if not name:
        raise AlterationError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
    return config_changes.alter_topic(call.cluster, known_topic(call, name), changes, **how)


def _alter_broker(call: NodeCall, name: str, changes: Sequence[Change], **how: bool) -> Steps[None]:
    if name != ALL_BROKERS:
        check_is_this_node(call, name, "Unexpected broker id, expected {}, but received {}")
    return config_changes.alter_broker(call.cluster, name, changes, **how)


def _alter_group(call: NodeCall, name: str, changes: Sequence[Change], **how: bool) -> Steps[None]:
    return config_changes.alter_stored(call.cluster, ConfigResource.GROUP, name, changes, **how)


def _alter_client_metrics(call: NodeCall, name: str, changes: Sequence[Change], **how: bool) -> Steps[None]:
    return config_changes.alter_stored(call.cluster, ConfigResource.CLIENT_METRICS, name, changes, **how)


def _alter_loggers(
    call: NodeCall, name: str, changes: Sequence[Change], *, is_incremental: bool, only_check: bool
) -> Steps[None]:
    if not is_incremental:
        raise AlterationError(ErrorCode.invalid_request, f"Unknown resource type {int(ConfigResource.BROKER_LOGGER)}")
    check_is_this_node(call, name, "Unexpected node id. Expected {}, but received {}")
    known = logger_levels()
    yield
    for change in changes:
        _check_logger(change, known)
    yield
    if not only_check:
        for change in changes:
            _set_logger_level(change.name, None if change.operation == Operation.DELETE else change.value)


def _check_logger(change: Change, known: Mapping[str, str]) -> None:
    name, operation, level = change
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        raise AlterationError(
            ErrorCode.invalid_request,
            f"{Operation(operation).name} operation is not allowed for the BROKER_LOGGER resource",
        )
    if name not in known:
        raise AlterationError(ErrorCode.invalid_config, f"Logger {name} does not exist!")
    if operation == Operation.DELETE and name == _ROOT_LOGGER:
        raise AlterationError(ErrorCode.invalid_request, "Removing the log level of the root logger is not allowed")
    if operation == Operation.SET and level not in _LOGGER_LEVELS:
        raise AlterationError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. Valid log levels are "
            f"{', '.join(_LOGGER_LEVELS)}",
        )


def check_is_this_node(call: NodeCall, name: str, message: str, *, called: str = "Node") -> None:
    """Raise AlterationError (42) unless `name` is the id of the node that serves the request."""
    if not (name.removeprefix("-").isascii() and name.removeprefix("-").isdecimal()):
        raise AlterationError(ErrorCode.invalid_request, f"{called} id must be an integer, but it is: {name}")
    if int(name) != call.node.node_id:
        raise AlterationError(ErrorCode.invalid_request, message.format(call.node.node_id, name))


_ALTERATIONS: Final = {
    ConfigResource.TOPIC: _alter_topic,
    ConfigResource.BROKER: _alter_broker,
    ConfigResource.BROKER_LOGGER: _alter_loggers,
    ConfigResource.CLIENT_METRICS: _alter_client_metrics,
    ConfigResource.GROUP: _alter_group,
}


async def altered(call: NodeCall, changes_of: Any, *, is_incremental: bool) -> Any:
    """Alter settings and return the response, for both APIs; `changes_of` reads the changes of one resource.

    A resource named twice is not altered (42).
    """
    resources = call.request.resources
    named = await call.made(_named, resources)
    asked = await call.made(_asked, resources, changes_of)
    rows: list[tuple[Any, ErrorCode, str | None]] = []
    pace = Pace()
    async with call.cluster.changes:
        for resource, asked_of_it in zip(resources, asked, strict=True):
            await pace.keep()
            key = (resource.resource_type, resource.resource_name)
            error, message = ErrorCode.none, None
            try:
                if named[key] > 1:
                    raise AlterationError(ErrorCode.invalid_request, "Each resource must appear at most once.")
                await alter(call, *key, asked_of_it, is_incremental=is_incremental)
            except AlterationError as refused:
                error, message = refused.error, refused.message
            rows.append((resource, error, message))
    return await call.made(_altered_response, call, rows)


def _named(resources: Sequence[Any]) -> Counter[tuple[int, str]]:
    """Return the number of times that each resource is named."""
    return Counter((resource.resource_type, resource.resource_name) for resource in resources)


def refuse_alterations(call: NodeCall, error: ErrorCode) -> Any:
    """Return the response with one error for every resource."""
    return _altered_response(call, [(resource, error, None) for resource in call.request.resources])


def _altered_response(call: NodeCall, rows: list[tuple[Any, ErrorCode, str | None]]) -> Any:
    responses = tuple(
        call.new.AlterConfigsResourceResponse(
            error_code=error,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, error, message in rows
    )
    return call.new.response(responses=responses)


async def handle_alter_configs(call: NodeCall) -> Any:
    """Serve AlterConfigs (key 33), versions 0-2.

    Replaces the settings of a resource: settings that the request does not name are removed (KIP-133). The rules are
    those of IncrementalAlterConfigs, except that it cannot alter loggers (42). v2 flexible.
    """
    return await altered(call, _replacements, is_incremental=False)


def _replacements(resource: Any) -> list[Change]:
    return [Change(config.name, Operation.SET, config.value) for config in resource.configs]


refuse_alter_configs = refuse_alterations


async def handle_incremental_alter_configs(call: NodeCall) -> Any:
    """Serve IncrementalAlterConfigs (key 44), versions 0-1.

    Sets or deletes single settings of a resource, or adds to and removes from list settings (KIP-339). v1 flexible.

    * All changes of a resource take effect or none; altered settings are stored in the data directory.
    * TOPIC: takes effect on its logs at once. Unknown setting or invalid value 40, unknown topic 3, illegal topic name
      17.
    * BROKER: of one broker, which must serve the request itself (42 from another one), or, without a name, of all
      brokers. An invalid value, or a setting that cannot be altered at run time, is 42. Settings unknown to Kafka are
      stored, because a user's class may read them.
    * BROKER_LOGGER: SET and DELETE of the levels of the emulator's loggers (KIP-412), not stored.
    * GROUP, CLIENT_METRICS: stored for clients that read them; a value outside the brokers' limits is 40, an invalid
      interval 42.
    * A list operation on another type of setting 40; a duplicate setting or resource, a missing value, an unknown
      resource type or operation 42. A failure of the disk is 56.
    * Access: ALTER_CONFIGS on the topic (29) or the group (30), else on the cluster (31).
    * ValidateOnly returns the same response and changes nothing.
    """
    return await altered(call, _incremental_changes, is_incremental=True)


def _incremental_changes(resource: Any) -> list[Change]:
    return [Change(config.name, config.config_operation, config.value) for config in resource.configs]


refuse_incremental_alter_configs = refuse_alterations


_ROOT_LOGGER: Final = "root"
_PACKAGE: Final = "dualwrite.broker_emulator"

_LOGGER_LEVELS: Final[Mapping[str, int]] = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": 5,
    "WARN": logging.WARNING,
}
"""Python's levels by Kafka's names, in alphabetical order."""


def logger_levels() -> dict[str, str]:
    """Return the level of every logger of the emulator."""
    names = sorted(
        name
        for name, logger in logging.Logger.manager.loggerDict.items()
        if name.startswith(f"{_PACKAGE}.") and isinstance(logger, logging.Logger)
    )
    return {name: _level_name(_logger(name)) for name in (_ROOT_LOGGER, *names)}


def _set_logger_level(name: str, level: str | None) -> None:
    """Set the level of a logger, or (None) inherit its parent's."""
    _logger(name).setLevel(logging.NOTSET if level is None else _LOGGER_LEVELS[level])


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_PACKAGE if name == _ROOT_LOGGER else name)


def _level_name(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    lower = [number for number in _LOGGER_LEVELS.values() if number <= level]
    number = max(lower, default=_LOGGER_LEVELS["TRACE"])
    return next(name for name, value in _LOGGER_LEVELS.items() if value == number)
