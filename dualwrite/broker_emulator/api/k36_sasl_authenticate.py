"""SaslAuthenticate (key 36), versions 0-2.

One token of a login (KIP-152). `security/login_states.py` has the states of a connection in which it is served.

* v1: SessionLifetimeMs is the lifetime of the login, 0 without a limit (KIP-368). v2 is flexible.
* A failed login is 58 with Kafka's message, and then the connection closes.
* 34 if no login is due: at a listener without SASL, and after the login.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.security.login import LoginFailedError
from dualwrite.broker_emulator.security.login_states import RequestKind


async def handle(call: NodeCall) -> Any:
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
        error_message=None,
        auth_bytes=token,
        session_lifetime=timedelta(milliseconds=lifetime_ms),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _refuse(call, error, None)


def _refuse(call: NodeCall, error: ErrorCode, message: str | None) -> Any:
    return call.new.response(error_code=error, error_message=message, auth_bytes=b"")
