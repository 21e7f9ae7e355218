"""IncrementalAlterConfigs (key 44), versions 0-1.

Sets or deletes single settings of a resource, or adds to and removes from list settings (KIP-339). v1 flexible.

* All changes of a resource take effect or none; altered settings are stored in the data directory.
* TOPIC: takes effect on its logs at once. Unknown setting or invalid value 40, unknown topic 3, illegal topic name 17.
* BROKER: of one broker, which must serve the request itself (42 from another one), or, without a name, of all brokers.
  An invalid value, or a setting that cannot be altered at run time, is 42. Settings unknown to Kafka are stored,
  because a user's class may read them.
* BROKER_LOGGER: SET and DELETE of the levels of the emulator's loggers (KIP-412), not stored.
* GROUP, CLIENT_METRICS: stored for clients that read them; a value outside the brokers' limits is 40, an invalid
  interval 42.
* A list operation on another type of setting 40; a duplicate setting or resource, a missing value, an unknown resource
  type or operation 42. A failure of the disk is 56.
* Access: ALTER_CONFIGS on the topic (29) or the group (30), else on the cluster (31).
* ValidateOnly returns the same response and changes nothing.
"""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator.api.configs import altered, refuse_alterations
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.configs.alteration import Change


async def handle(call: NodeCall) -> Any:
    return await altered(call, _changes, is_incremental=True)


def _changes(resource: Any) -> list[Change]:
    return [Change(config.name, config.config_operation, config.value) for config in resource.configs]


refuse = refuse_alterations
