"""SaslHandshake (key 17), versions 0-1.

Chooses the mechanism of a login (KIP-43). `security/login_states.py` has the states of a connection in which it is
served.

* v1: SaslAuthenticate requests follow. v0: the client's tokens follow in frames of their own (KIP-152).
* A mechanism that is not enabled is 33, with the list of enabled ones, and then the connection closes; without a
  response if the client had logged in before.
* 34 if no login is due: at a listener without SASL, and after the login unless its lifetime is limited (KIP-368).
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.call import CloseConnectionError
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.security.login_states import RequestKind


async def handle(call: NodeCall) -> Any:
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


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, mechanisms=())
