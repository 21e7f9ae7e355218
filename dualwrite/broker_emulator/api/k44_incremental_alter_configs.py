"""IncrementalAlterConfigs (key 44), versions 0-1.

Sets or deletes single settings of a resource, or adds to and takes from those that are lists (KIP-339). v1 flexible.

* All changes of a resource take effect or none; what was altered is kept with the data directory.
* TOPIC: takes effect on its logs at once. Unknown setting or wrong value 40, unknown topic 3, a name that no topic can
  have 17.
* BROKER: of one broker, which alone takes it (42 from another one), or without a name of all of them. Wrong value, and
  what only a start can change, 42. What Kafka does not know is kept, because a class of the user's may.
* BROKER_LOGGER: SET and DELETE of the levels of the emulator's loggers (KIP-412), not kept.
* GROUP, CLIENT_METRICS: kept for who asks for them; a value outside the brokers' limits is 40, of an interval 42.
* A list operation on what is no list 40; a setting or a resource named twice, a missing value, an unknown resource type
  or operation 42. What the disk does not take is 56.
* Access: ALTER_CONFIGS on the topic (29) or the group (30), else on the cluster (31).
* ValidateOnly answers as if and changes nothing.
"""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator.api.configs import altered, refuse_alterations
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.configs.alteration import Change


async def handle(call: NodeCall) -> Any:
    return altered(call, _changes, is_incremental=True)


def _changes(resource: Any) -> list[Change]:
    return [Change(config.name, config.config_operation, config.value) for config in resource.configs]


refuse = refuse_alterations
