"""AlterConfigs (key 33), versions 0-2.

Replaces the settings of a resource: settings that the request does not name are removed (KIP-133). The rules are those
of IncrementalAlterConfigs, except that it cannot alter loggers (42). v2 flexible.
"""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator.api.configs import altered, refuse_alterations
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.configs.alteration import Change, Operation


async def handle(call: NodeCall) -> Any:
    return await altered(call, _changes, is_incremental=False)


def _changes(resource: Any) -> list[Change]:
    return [Change(config.name, Operation.SET, config.value) for config in resource.configs]


refuse = refuse_alterations
