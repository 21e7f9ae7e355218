"""AlterConfigs (key 33), versions 0-2.

Sets the settings of a resource, and what the request does not name goes (KIP-133). Its rules are those of
IncrementalAlterConfigs, but that loggers cannot be altered so (42). v2 flexible.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.configs import altered_rows
from dualwrite.broker_emulator.api.registry import NO_THROTTLE, Api, Call, register
from dualwrite.broker_emulator.configs.alteration import Change, Operation


async def handle(call: Call) -> Any:
    return _response(call, altered_rows(call, _changes, is_incremental=False))


def _changes(resource: Any) -> list[Change]:
    return [Change(config.name, Operation.SET, config.value) for config in resource.configs]


def _response(call: Call, rows: list[tuple[Any, ErrorCode, str | None]]) -> Any:
    responses = tuple(
        call.new.AlterConfigsResourceResponse(
            error_code=error,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, error, message in rows
    )
    return call.new.response(throttle_time=NO_THROTTLE, responses=responses)


def refuse(call: Call, error: ErrorCode) -> Any:
    return _response(call, [(resource, error, None) for resource in call.request.resources])


register(Api(key=33, schema_name="alter_configs", min_version=0, max_version=2, handle=handle, refuse=refuse))
