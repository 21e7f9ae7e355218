"""ApiVersions (key 18), versions 0-5.

The APIs and versions that are served, and the features of the cluster.

* Built from the registry, without versions that the profile hides.
* A version that is too new gets the body of v0, with error 35 and the versions of ApiVersions itself; only the header
  of the request is read, and the connection stays open (KIP-511; the server does that before it decodes).
* v3+: the finalized level of the feature `transaction.version` (KIP-584, KIP-890) if it is above 0. A Java client uses
  TV2 only if the level is at least 2. v4+: its supported range [0, 2]; v3 cannot express a minimum of 0 (KIP-1022). The
  profile kafka-3.9 does not have the feature.
* v3+: an illegal client software name or version is 42 (KIP-511).
* v5+: a client may name the cluster and the node that it means to reach; if these are others, the error is 129. One of
  the two without the other is 42 (KIP-1242). v5 is hidden by the profiles kafka-4.3 and kafka-3.9.
* v3 is the first flexible version; the response header stays v0 in all of them.
"""

from __future__ import annotations

import re
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import API_VERSIONS, APIS, NO_THROTTLE
from dualwrite.broker_emulator.cluster.features import NEWEST_LEVELS, finalized_level, supported_levels
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.profiles import Profile

_NO_NODE = -1
_LEGAL_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


_ROWS: dict[tuple[Any, Profile, bool], tuple[Any, ...]] = {}


def supported_versions(new: Any, config: BrokerConfig) -> tuple[Any, ...]:
    """Return the rows of the response, ordered by key; cached, because every connection starts with this request."""
    kind = (new.ApiVersion, config.profile, config.unstable_api_versions_enable)
    rows = _ROWS.get(kind)
    if rows is None:
        rows = _ROWS[kind] = tuple(
            new.ApiVersion(
                api_key=api.key,
                min_version=api.min_version if api.advertised_min_version is None else api.advertised_min_version,
                max_version=api.max_version_for(config),
            )
            for api in sorted(APIS.values(), key=lambda api: api.key)
            if api.max_version_for(config) >= api.min_version
        )
    return rows


def unsupported_version_body(new: Any, config: BrokerConfig) -> Any:
    """Return the v0 response to an ApiVersions request of an unsupported version."""
    rows = tuple(row for row in supported_versions(new, config) if row.api_key == API_VERSIONS)
    return new.response(error_code=ErrorCode.unsupported_version, api_keys=rows)


async def handle(call: NodeCall) -> Any:
    new, config = call.new, call.cluster.config
    if call.version < 3:
        rows = supported_versions(new, config)
        return new.response(error_code=ErrorCode.none, api_keys=rows, throttle_time=NO_THROTTLE)
    software = (call.request.client_software_name, call.request.client_software_version)
    if not all(_LEGAL_SOFTWARE.fullmatch(text) for text in software):
        return await call.refused(ErrorCode.invalid_request)
    misrouted = _routing_error(call)
    if misrouted is not NO_ERROR:
        return await call.refused(misrouted)
    return new.response(
        error_code=ErrorCode.none,
        api_keys=supported_versions(new, config),
        throttle_time=NO_THROTTLE,
        supported_features=_supported_features(call),
        finalized_features_epoch=call.cluster.finalized_features_epoch,
        finalized_features=_finalized_features(call),
    )


def _routing_error(call: NodeCall) -> ErrorCode:
    """Compare the cluster and the node that the client means to reach, if it names them, with these."""
    cluster_id, node_id = getattr(call.request, "cluster_id", None), getattr(call.request, "node_id", _NO_NODE)
    if (cluster_id is None) != (node_id == _NO_NODE):
        return ErrorCode.invalid_request
    is_meant = cluster_id is None or (cluster_id, node_id) == (call.cluster.cluster_id, call.node.node_id)
    return NO_ERROR if is_meant else ErrorCode.rebootstrap_required


def _supported_features(call: NodeCall) -> tuple[Any, ...]:
    if call.version < 4:
        return ()
    known = ((name, supported_levels(name, call.cluster.config)) for name in NEWEST_LEVELS)
    return tuple(
        call.new.SupportedFeatureKey(name=name, min_version=levels[0], max_version=levels[-1])
        for name, levels in known
        if levels is not None
    )


def _finalized_features(call: NodeCall) -> tuple[Any, ...]:
    levels = ((name, finalized_level(name, call.cluster.config)) for name in NEWEST_LEVELS)
    return tuple(
        call.new.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in levels
        if level > 0
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, api_keys=(), throttle_time=NO_THROTTLE)
