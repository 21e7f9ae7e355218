"""SaslAuthenticate (key 36), versions 0-2.

One token of a login (KIP-152). Which states of a connection it is served in: `security/login_states.py`.

* v1: SessionLifetimeMs says for how long the login is good, 0 for ever (KIP-368). v2 is flexible.
* A login that fails is 58 with Kafka's sentence, and then the connection closes.
* Where no login is due 34: at a listener without SASL, and after the login.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import Call
from dualwrite.broker_emulator.security.login import LoginFailedError
from dualwrite.broker_emulator.security.login_states import RequestKind


async def handle(call: Call) -> Any:
    login = None if call.connection is None else call.connection.login
    if login is None or not login.expects(RequestKind.AUTHENTICATE):
        message = "SaslAuthenticate request received after successful authentication"
        return _refuse(call, ErrorCode.illegal_sasl_state, message)
    try:
        answer, lifetime_ms = login.respond(call.request.auth_bytes)
    except LoginFailedError as error:
        return _refuse(call, ErrorCode.sasl_authentication_failed, str(error))
    return call.new.response(
        error_code=ErrorCode.none,
        error_message=None,
        auth_bytes=answer,
        session_lifetime=timedelta(milliseconds=lifetime_ms),
    )


def refuse(call: Call, error: ErrorCode) -> Any:
    return _refuse(call, error, None)


def _refuse(call: Call, error: ErrorCode, message: str | None) -> Any:
    return call.new.response(error_code=error, error_message=message, auth_bytes=b"")
