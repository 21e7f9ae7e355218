"""ApiVersions (key 18), versions 0-4.

Says which versions of which API are served, and the cluster's features.

* Built from the registry; a profile's hidden versions are left out.
* A version above ours is answered in the body of v0, with error 35 and the versions of ApiVersions itself, from the
  request's header alone, and the connection lives on (KIP-511; the server does that before it decodes).
* v3+: supported feature `transaction.version` [0, 2] and its finalized level (KIP-584, KIP-890). A Java client uses
  TV2 only where the level is 2 or more.
* v3 is the first flexible version; the response header stays v0 in all of them.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import APIS, NO_THROTTLE, Api, Call, register
from dualwrite.broker_emulator.config import BrokerConfig

KEY = 18
TRANSACTION_VERSION_FEATURE = "transaction.version"
NEWEST_TRANSACTION_VERSION = 2


def supported_versions(new: Any, config: BrokerConfig) -> tuple[Any, ...]:
    """The rows of the answer, by key."""
    return tuple(
        new.ApiVersion(
            api_key=api.key,
            min_version=api.min_version if api.advertised_min_version is None else api.advertised_min_version,
            max_version=api.max_version_for(config),
        )
        for api in sorted(APIS.values(), key=lambda api: api.key)
    )


def unsupported_version_body(new: Any, config: BrokerConfig) -> Any:
    """The v0 answer to an ApiVersions request of a version that is not served."""
    rows = tuple(row for row in supported_versions(new, config) if row.api_key == KEY)
    return new.response(error_code=ErrorCode.unsupported_version, api_keys=rows)


async def handle(call: Call) -> Any:
    new, config = call.new, call.cluster.config
    features: dict[str, Any] = {}
    if call.version >= 3:
        level = config.transaction_version
        features["supported_features"] = (
            new.SupportedFeatureKey(
                name=TRANSACTION_VERSION_FEATURE, min_version=0, max_version=NEWEST_TRANSACTION_VERSION
            ),
        )
        features["finalized_features_epoch"] = 0
        features["finalized_features"] = (
            new.FinalizedFeatureKey(name=TRANSACTION_VERSION_FEATURE, max_version_level=level, min_version_level=level),
        )
    return new.response(
        error_code=ErrorCode.none, api_keys=supported_versions(new, config), throttle_time=NO_THROTTLE, **features
    )


def refuse(call: Call, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, api_keys=(), throttle_time=NO_THROTTLE)


register(Api(key=KEY, schema_name="api_versions", min_version=0, max_version=4, handle=handle, refuse=refuse))
