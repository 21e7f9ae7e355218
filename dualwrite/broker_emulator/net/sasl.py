"""A connection at a listener with SASL; `security/login.py` has the requests allowed in each state."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import API_VERSIONS, APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from dualwrite.broker_emulator.cluster.node import Node
from dualwrite.broker_emulator.messages.call import Call, CloseConnectionError
from dualwrite.broker_emulator.messages.schema import Schema
from dualwrite.broker_emulator.net.client_transport import ClosingLog
from dualwrite.broker_emulator.net.server import Connection
from dualwrite.broker_emulator.security.login import Login, LoginFailedError, Reaction, RequestKind, State
from dualwrite.broker_emulator.security.sasl.mechanism import Sasl

_REQUESTS = {
    API_VERSIONS: RequestKind.VERSIONS,
    SASL_HANDSHAKE: RequestKind.HANDSHAKE,
    SASL_AUTHENTICATE: RequestKind.AUTHENTICATE,
}
_SIZE = struct.Struct(">i")
_KEY = struct.Struct(">h")


class SaslConnection(Connection):
    """The connection of one client, which must log in before its requests are served."""

    def __init__(self, node: Node, listener: str, closing_log: ClosingLog, settings: Sasl) -> None:
        super().__init__(node, listener, closing_log)
        cluster = node.cluster
        self._delay_s = cluster.config.connection_failed_authentication_delay_ms / 1000
        self._max_frame_size = cluster.config.sasl_server_max_receive_size  # until the client has logged in
        self._verdict = Reaction.SERVE
        self._login = self.login = Login(settings, cluster.scram_users.find, cluster.clock.now_ms)

    def _serve(self, frame: bytes | memoryview) -> None:
        login = self._login
        if login.state is State.EXPECTS_TOKENS:
            self._run(self._answer_token(bytes(frame[_SIZE.size :])), APIS[SASL_AUTHENTICATE])
            return
        kind = _kind_of(frame)
        before = login.state
        self._verdict = login.admit(kind)
        match self._verdict:
            case Reaction.CLOSE if before is State.AUTHENTICATED:
                raise CloseConnectionError("its login has expired, and it did not log in again")
            case Reaction.CLOSE:
                raise CloseConnectionError(f"received {kind.value} where the login expects {before.value}")
            case Reaction.FAIL:
                self._run(self._fail(), APIS[SASL_HANDSHAKE])
            case Reaction.SERVE | Reaction.REFUSE:
                super()._serve(frame)

    def _send_response(self, message: Schema | None, correlation_id: int, response: Any) -> None:
        super()._send_response(message, correlation_id, response)
        if self._login.state is State.FAILED:
            raise CloseConnectionError(self._login.why_failed)

    async def _handle(self, call: Call) -> Any:
        login = self._login
        if self._verdict is Reaction.REFUSE:
            login.fail(f"received {call.api.schema_name} where the login expects {login.state.value}")
            response = await call.refused(ErrorCode.illegal_sasl_state)
        else:
            response = await super()._handle(call)
        if login.state is not State.AUTHENTICATED or call.api.key == SASL_AUTHENTICATE:
            await self._follow(call, response)
        return response

    async def _follow(self, call: Call, response: Any) -> None:
        """Carry out the effects of a login step besides its response."""
        login = self._login
        if call.api.key == API_VERSIONS and response.error_code == ErrorCode.none:
            login.versions_sent()
        elif login.state is State.FAILED:
            await asyncio.sleep(self._delay_s)  # so that guessing takes time
        self._apply_login()

    def _apply_login(self) -> None:
        """Set the connection's principal and frame limit according to the state of its login."""
        config, login = self.node.cluster.config, self._login
        if login.state is State.AUTHENTICATED and login.principal is not None:
            self.principal = login.principal
            self._max_frame_size = config.socket_request_max_bytes
        else:
            self._max_frame_size = config.sasl_server_max_receive_size

    async def _answer_token(self, token: bytes) -> None:
        """Respond to a bare token, from a client that only knows SaslHandshake v0."""
        try:
            response, _ = self._login.respond(token)
        except LoginFailedError:
            await self._fail()
        self._apply_login()
        self.write(_SIZE.pack(len(response)) + response)

    async def _fail(self) -> None:
        """Close without a response, after the delay."""
        login = self._login
        login.fail(login.why_failed)
        await asyncio.sleep(self._delay_s)
        raise CloseConnectionError(login.why_failed)


def _kind_of(frame: bytes | memoryview) -> RequestKind:
    if len(frame) < _SIZE.size + _KEY.size:
        return RequestKind.OTHER
    (key,) = _KEY.unpack_from(frame, _SIZE.size)
    return _REQUESTS.get(key, RequestKind.OTHER)
