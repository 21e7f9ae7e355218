"""Settings described, and the resources that have any listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.configs import (
    check_access,
    check_is_this_node,
    known_topic,
    layers_of,
    logger_levels,
)
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.configs.alteration import ALL_BROKERS, AlterationError, ConfigResource
from dualwrite.broker_emulator.configs.description import (
    Entry,
    all_brokers_entries,
    broker_entries,
    client_metrics_entries,
    group_entries,
    logger_entries,
    only,
    topic_entries,
)
from dualwrite.broker_emulator.configs.effective import group_values, topic_settings
from dualwrite.broker_emulator.configs.resource_settings import CLIENT_METRICS_SETTINGS
from dualwrite.broker_emulator.messages.call import CloseConnectionError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, mapped

MAX_SETTINGS = 1_000_000
"""The most settings of one response: a short request can name one resource very often."""


async def handle_describe_configs(call: NodeCall) -> Any:
    """Serve DescribeConfigs (key 32), versions 1-4.

    Settings of topics, brokers, loggers, groups and client metrics, with their values and sources (KIP-133).

    * v1 sources and synonyms (KIP-226); v3 types and, on request, documentation (KIP-569) of the settings that have an
      effect here; v4 flexible.
    * BROKER: by id all settings of that broker, which must serve the request itself (42 from another one); without a
      name, the settings altered for all brokers.
    * Names in the request limit the response; unknown ones are omitted. Sensitive settings, and settings unknown to
      Kafka, have no value.
    * A response with more than a million settings closes the connection, as one too large for a frame does in Kafka.
    * Unknown topic 3, illegal topic name 17. GROUP and CLIENT_METRICS need not exist, but must have a name (42).
    * The profile kafka-3.9 does not have GROUP (42), and returns only the altered settings of a subscription.
    * Access: DESCRIBE_CONFIGS on the topic (29) or the group (30), else on the cluster (31). An unknown type is 42.
    """
    results = []
    settings = 0
    pace = Pace()
    for resource in call.request.resources:
        await pace.keep()
        results.append(_describe(call, resource))
        settings += len(results[-1].configs)
        if settings > MAX_SETTINGS:
            raise CloseConnectionError(f"the response to DescribeConfigs would have more than {MAX_SETTINGS} settings")
    return call.new.response(results=tuple(results))


def _describe(call: NodeCall, resource: Any) -> Any:
    name = resource.resource_name
    try:
        check_access(call, AclOperation.DESCRIBE_CONFIGS, resource.resource_type, name)
        entries = _ENTRIES[ConfigResource(resource.resource_type)](call, name)
    except AlterationError as refused:
        return _result(call, resource, refused.error, refused.message)
    rows = tuple(_row(call, entry) for entry in only(entries, resource.configuration_keys))
    return _result(call, resource, ErrorCode.none, "", rows)


def _of_topic(call: NodeCall, name: str) -> Sequence[Entry]:
    topic = known_topic(call, name)
    return topic_entries(
        topic_settings(call.cluster.config.behaviours.settings), topic.configs, layers_of(call, call.node)
    )


def _of_broker(call: NodeCall, name: str) -> Sequence[Entry]:
    layers = layers_of(call, call.node)
    if name == ALL_BROKERS:
        return all_brokers_entries(layers)
    check_is_this_node(
        call, name, "Unexpected broker id, expected {} or empty string, but received {}", called="Broker"
    )
    return broker_entries(layers)


def _of_loggers(call: NodeCall, name: str) -> Sequence[Entry]:
    if not name:
        raise AlterationError(ErrorCode.invalid_request, "Broker id must not be empty")
    check_is_this_node(call, name, "Unexpected broker id, expected {} but received {}", called="Broker")
    return logger_entries(logger_levels())


def _of_client_metrics(call: NodeCall, name: str) -> Sequence[Entry]:
    if not name:
        raise AlterationError(ErrorCode.invalid_request, "Client metrics subscription name must not be empty")
    own = call.cluster.altered_configs.of(ConfigResource.CLIENT_METRICS, name)
    entries = client_metrics_entries(own)
    is_told = CLIENT_METRICS_SETTINGS if call.cluster.config.behaviours.client_metrics_show_defaults else own
    return [entry for entry in entries if entry.name in is_told]


def _of_group(call: NodeCall, name: str) -> Sequence[Entry]:
    if not name:
        raise AlterationError(ErrorCode.invalid_request, "Group name must not be empty")
    own = call.cluster.altered_configs.of(ConfigResource.GROUP, name)
    return group_entries(own, group_values(call.node.config, own), layers_of(call, call.node))


_ENTRIES = {
    ConfigResource.TOPIC: _of_topic,
    ConfigResource.BROKER: _of_broker,
    ConfigResource.BROKER_LOGGER: _of_loggers,
    ConfigResource.CLIENT_METRICS: _of_client_metrics,
    ConfigResource.GROUP: _of_group,
}


def _row(call: NodeCall, entry: Entry) -> Any:
    new, request = call.new, call.request
    return new.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=tuple(new.DescribeConfigsSynonym(**synonym._asdict()) for synonym in entry.synonyms)
        if request.include_synonyms
        else (),
        config_type=entry.type,
        documentation=entry.documentation if getattr(request, "include_documentation", False) else None,
    )


def _result(call: NodeCall, resource: Any, error: ErrorCode, message: str | None, configs: tuple[Any, ...] = ()) -> Any:
    return call.new.DescribeConfigsResult(
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def refuse_describe_configs(call: NodeCall, error: ErrorCode) -> Any:
    results = tuple(_result(call, resource, error, None) for resource in call.request.resources)
    return call.new.response(results=results)


_KNOWN = frozenset(int(resource) for resource in ConfigResource)


async def handle_list_config_resources(call: NodeCall) -> Any:
    """Serve ListConfigResources (key 74), versions 0-1.

    The resources that have settings: v0 subscriptions to client metrics only (KIP-714, then
    ListClientMetricsResources), v1 by type, or of every type if none is given (KIP-1142).

    * A type named twice is listed once.
    * Topics, living brokers and their loggers are always listed; groups and subscriptions if a setting is altered.
    * An unknown type is 35. Access: DESCRIBE_CONFIGS on the cluster (31).
    * v1 is hidden by the profile kafka-3.9.
    """
    call.require(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    wanted = (ConfigResource.CLIENT_METRICS,) if call.version == 0 else call.request.resource_types or ConfigResource
    if not _KNOWN.issuperset(wanted):
        return await call.refused(ErrorCode.unsupported_version)
    types = map(ConfigResource, dict.fromkeys(wanted))
    named = [(resource, name) for resource in types for name in _names(call, resource)]
    resources = await mapped(lambda pair: call.new.ConfigResource(resource_type=pair[0], resource_name=pair[1]), named)
    return call.new.response(error_code=ErrorCode.none, config_resources=tuple(resources))


def _names(call: NodeCall, resource: ConfigResource) -> Sequence[str]:
    if resource is ConfigResource.TOPIC:
        return sorted(call.cluster.topics)
    if resource in (ConfigResource.BROKER, ConfigResource.BROKER_LOGGER):
        return [str(node.node_id) for node in call.cluster.living_nodes]
    return call.cluster.altered_configs.names(resource)


def refuse_list_config_resources(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, config_resources=())
