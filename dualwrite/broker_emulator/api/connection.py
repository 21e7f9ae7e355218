"""The first requests of a connection: the versions of the APIs, and the login."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import API_VERSIONS, APIS
from dualwrite.broker_emulator.cluster.features import NEWEST_LEVELS, finalized_level, supported_levels
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.messages.call import CloseConnectionError
from dualwrite.broker_emulator.profiles import Profile
from dualwrite.broker_emulator.security.login import LoginFailedError, RequestKind

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


async def handle_api_versions(call: NodeCall) -> Any:
    """Serve ApiVersions (key 18), versions 0-5.

    The APIs and versions that are served, and the features of the cluster.

    * Built from the registry, without versions that the profile hides.
    * A version that is too new gets the body of v0, with error 35 and the versions of ApiVersions itself; only the
      header of the request is read, and the connection stays open (KIP-511; the server does that before it decodes).
    * v3+: the finalized level of the feature `transaction.version` (KIP-584, KIP-890) if it is above 0. A Java client
      uses TV2 only if the level is at least 2. v4+: its supported range [0, 2]; v3 cannot express a minimum of 0
      (KIP-1022). The profile kafka-3.9 does not have the feature.
    * v3+: an illegal client software name or version is 42 (KIP-511).
    * v5+: a client may name the cluster and the node that it means to reach; if these are others, the error is 129. One
      of the two without the other is 42 (KIP-1242). v5 is hidden by the profiles kafka-4.3 and kafka-3.9.
    * v3 is the first flexible version; the response header stays v0 in all of them.
    """
    new, config = call.new, call.cluster.config
    if call.version < 3:
        rows = supported_versions(new, config)
        return new.response(error_code=ErrorCode.none, api_keys=rows)
    software = (call.request.client_software_name, call.request.client_software_version)
    if not all(_LEGAL_SOFTWARE.fullmatch(text) for text in software):
        return await call.refused(ErrorCode.invalid_request)
    misrouted = _routing_error(call)
    if misrouted is not NO_ERROR:
        return await call.refused(misrouted)
    return new.response(
        error_code=ErrorCode.none,
        api_keys=supported_versions(new, config),
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


def refuse_api_versions(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, api_keys=())


async def handle_sasl_handshake(call: NodeCall) -> Any:
    """Serve SaslHandshake (key 17), versions 0-1.

    Chooses the mechanism of a login (KIP-43). `security/login.py` has the states of a connection in which it is
    served.

    * v1: SaslAuthenticate requests follow. v0: the client's tokens follow in frames of their own (KIP-152).
    * A mechanism that is not enabled is 33, with the list of enabled ones, and then the connection closes; without a
      response if the client had logged in before.
    * 34 if no login is due: at a listener without SASL, and after the login unless its lifetime is limited (KIP-368).
    """
    login = None if call.connection is None else call.connection.login
    if login is None or not login.expects(RequestKind.HANDSHAKE):
        return await call.refused(ErrorCode.illegal_sasl_state)
    is_enabled = login.shake_hands(call.request.mechanism, call.version)
    if not is_enabled and login.principal is not None:
        raise CloseConnectionError(login.why_failed)
    return call.new.response(
        error_code=ErrorCode.none if is_enabled else ErrorCode.unsupported_sasl_mechanism,
        mechanisms=tuple(login.settings.mechanisms),
    )


def refuse_sasl_handshake(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, mechanisms=())


async def handle_sasl_authenticate(call: NodeCall) -> Any:
    """Serve SaslAuthenticate (key 36), versions 0-2.

    One token of a login (KIP-152). `security/login.py` has the states of a connection in which it is served.

    * v1: SessionLifetimeMs is the lifetime of the login, 0 without a limit (KIP-368). v2 is flexible.
    * A failed login is 58 with Kafka's message, and then the connection closes.
    * 34 if no login is due: at a listener without SASL, and after the login.
    """
    login = None if call.connection is None else call.connection.login
    if login is None or not login.expects(RequestKind.AUTHENTICATE):
        message = "SaslAuthenticate request received after successful authentication"
        return _refuse(call, ErrorCode.illegal_sasl_state, message)
    try:
        token, lifetime_ms = login.respond(call.request.auth_bytes)
    except LoginFailedError as error:
        return _refuse(call, ErrorCode.sasl_authentication_failed, str(error))
    return call.new.response(
        error_code=ErrorCode.none,
        auth_bytes=token,
        session_lifetime=timedelta(milliseconds=lifetime_ms),
    )


def refuse_sasl_authenticate(call: NodeCall, error: ErrorCode) -> Any:
    return _refuse(call, error, None)


def _refuse(call: NodeCall, error: ErrorCode, message: str | None) -> Any:
    return call.new.response(error_code=error, error_message=message, auth_bytes=b"")
