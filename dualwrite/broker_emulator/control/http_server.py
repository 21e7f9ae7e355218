"""An HTTP server in the emulator's event loop: one address, its connections, and the check of origins.

The control port and the schema registry are such servers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection
from http import HTTPStatus
from typing import Final

from dualwrite.broker_emulator.control.errors import ControlError
from dualwrite.broker_emulator.control.http_connection import (
    ErrorForm,
    HttpConnection,
    HttpRequest,
    HttpResponse,
    error_response,
    refusal_reason,
)

MAX_CONNECTIONS: Final = 128


class HttpServer(ABC):
    """Listens on one address. `name` is its name in messages; `error_form` makes responses of errors."""

    def __init__(self, name: str, own_names: Collection[str], error_form: ErrorForm = error_response) -> None:
        self._name = name
        self._own_names = frozenset(name.lower() for name in own_names)
        self._error_form = error_form
        self.connections: set[HttpConnection] = set()
        self._server: asyncio.AbstractServer | None = None

    @abstractmethod
    async def respond(self, request: HttpRequest) -> HttpResponse:
        """Serve one request. Raises ControlError for an invalid or impossible request."""

    async def start(self, host: str, port: int) -> None:
        """Start listening; port 0 picks a free port. Sets `port`. Raises OSError if the address cannot be used."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connection, host, port)
        except (OSError, UnicodeError) as error:
            raise OSError(f"{self._name} cannot listen on {host}:{port}: {_reason(error)}") from error
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening, and close all connections at once."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()

    def check_origin(self, request: HttpRequest) -> None:
        """Raise ControlError for a request from a page that this port did not serve."""
        refusal = refusal_reason(request.method, request.headers, self._own_names)
        if refusal is not None:
            raise ControlError(HTTPStatus.FORBIDDEN, "refused", refusal)

    def _connection(self) -> HttpConnection:
        return HttpConnection(self.respond, self.connections, MAX_CONNECTIONS, self._error_form)


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "it is not a valid host name"
    if isinstance(error, socket.gaierror):
        return error.strerror or "unknown host"
    return os.strerror(error.errno or 0).lower()
