"""From an address to a connection that requests may be sent on: TCP or TLS, ApiVersions, login.

Where it fails, this finds out why: what a person set wrong is an `AuthenticationError`, which trying again does not
cure; anything else is an `OSError`, which it may. A listener that hangs up does not say what it expected, so it is
asked once more in the other way before the settings are blamed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable

from dualwrite.client.wire.connection import Connection
from dualwrite.client.wire.sasl import Login, refuse_listener_that_wants_sasl
from dualwrite.client.wire.tls import NOT_TLS, refusal_of_handshake, tls_context
from dualwrite.errors import AuthenticationError
from dualwrite.security_config import SecurityConfig

NewConnection = Callable[[], Connection]


class Security:
    """How all connections of a cluster are made. `ConfigError` when a file that the settings name cannot be used."""

    def __init__(self, config: SecurityConfig) -> None:
        self._tls = tls_context(config)
        self._login = Login(config) if config.uses_sasl else None

    async def connect(
        self, host: str, port: int, new_connection: NewConnection, *, timeout_ms: float, unserved_before: bool = False
    ) -> Connection:
        """A connection that is ready.

        `unserved_before`: the last one to this address was lost before it answered anything; maybe it wants a login.
        Raises `AuthenticationError`, `OSError`, and `ValueError` or `OverflowError` for what is no host or port.
        """
        progress = _Progress()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._connect(host, port, new_connection, progress, unserved_before)
        except TimeoutError as error:
            if error.errno is not None:  # the kernel's
                raise
            raise ConnectionError(f"{progress.missing} within request.timeout.ms={timeout_ms:.0f}") from None

    async def _connect(
        self, host: str, port: int, new_connection: NewConnection, progress: _Progress, unserved_before: bool
    ) -> Connection:
        async with _closed_unless_ready(await self._open(host, port, new_connection)) as connection:
            progress.missing = "no answer to ApiVersions"
            await connection.negotiate()
            if self._login is not None:
                progress.missing = "no end of the login"
                await connection.log_in(self._login)
            elif unserved_before:
                progress.missing = "no answer to SaslHandshake"
                uses_tls = self._tls is not None
                await refuse_listener_that_wants_sasl(connection.ask, connection.features, uses_tls=uses_tls)
        return connection

    async def _open(self, host: str, port: int, new_connection: NewConnection) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            name = host if self._tls is not None else None
            _, connection = await loop.create_connection(
                new_connection, host, port, ssl=self._tls, server_hostname=name
            )
        except ssl.SSLError as error:
            refusal = refusal_of_handshake(error, host)
            if refusal is not None:
                raise AuthenticationError(refusal) from error
            await self._refuse_plain_listener(host, port, new_connection)
            raise
        except ConnectionError as error:
            if self._tls is not None and not isinstance(error, ConnectionRefusedError):
                await self._refuse_plain_listener(host, port, new_connection)
            raise
        return connection

    async def _refuse_plain_listener(self, host: str, port: int, new_connection: NewConnection) -> None:
        """A broker hangs up at a TLS handshake when it expects Kafka's requests; so does one that is going away."""
        with contextlib.suppress(OSError):
            _, connection = await asyncio.get_running_loop().create_connection(new_connection, host, port)
            try:
                await connection.negotiate()
            finally:
                connection.close()
            raise AuthenticationError(NOT_TLS)


class _Progress:
    """What a connection waits for."""

    missing = "no connection"


@contextlib.asynccontextmanager
async def _closed_unless_ready(connection: Connection) -> AsyncIterator[Connection]:
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
