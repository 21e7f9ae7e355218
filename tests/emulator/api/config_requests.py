"""Requests about settings, over a raw connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.emulator.api.raw_client import RawClient

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)

Operation = tuple[str, int, str | None]


def describe(
    client: RawClient, resource_type: int, name: str, keys: Sequence[str] | None = None, **values: Any
) -> dict[str, Any]:
    """Return the settings of a resource by name. Fails if the response is an error."""
    result = describe_result(client, resource_type, name, keys, **values)
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


def describe_result(
    client: RawClient,
    resource_type: int,
    name: str,
    keys: Sequence[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = True,
    documentation: bool = False,
) -> Any:
    resource = {
        "resource_type": resource_type,
        "resource_name": name,
        "configuration_keys": None if keys is None else tuple(keys),
    }
    values = {"include_synonyms": synonyms, "include_documentation": documentation}
    return client.call("describe_configs", version, resources=(resource,), **values).results[0]


def values_of(client: RawClient, resource_type: int, name: str, *keys: str) -> list[tuple[str | None, int]]:
    """Return the values and sources of some settings."""
    described = describe(client, resource_type, name, keys)
    return [(described[key].value, described[key].config_source) for key in keys]


def alter(
    client: RawClient, resource_type: int, name: str, *operations: Operation, validate_only: bool = False
) -> tuple[int, str | None]:
    """Alter single settings of a resource; return the error and its message."""
    (response,) = alter_all(client, {(resource_type, name): operations}, validate_only=validate_only)
    return response


def alter_all(
    client: RawClient, operations: Mapping[tuple[int, str], Sequence[Operation]], *, validate_only: bool = False
) -> list[tuple[int, str | None]]:
    resources = tuple(
        {
            "resource_type": resource_type,
            "resource_name": name,
            "configs": tuple(
                {"name": key, "config_operation": operation, "value": value} for key, operation, value in changes
            ),
        }
        for (resource_type, name), changes in operations.items()
    )
    response = client.call("incremental_alter_configs", 1, resources=resources, validate_only=validate_only)
    return [(int(row.error_code), row.error_message) for row in response.responses]


def put(
    client: RawClient, resource_type: int, name: str, configs: Mapping[str, str | None], *, validate_only: bool = False
) -> tuple[int, str | None]:
    """Replace the settings of a resource (AlterConfigs)."""
    rows = tuple({"name": key, "value": value} for key, value in configs.items())
    resource = {"resource_type": resource_type, "resource_name": name, "configs": rows}
    (row,) = client.call("alter_configs", 2, resources=(resource,), validate_only=validate_only).responses
    return int(row.error_code), row.error_message


def listed(client: RawClient, *resource_types: int, version: int = 1) -> tuple[int, list[tuple[str, int | None]]]:
    response = client.call("list_config_resources", version, resource_types=resource_types)
    rows = [(row.resource_name, getattr(row, "resource_type", None)) for row in response.config_resources]
    return int(response.error_code), rows
